// The choice of experts and their weights, and the sum of what they answer: twins in kernels/src/twin/{router,experts}.rs.
#include "routing.cuh"
#include "sum.cuh"

using namespace assay;

constexpr u32 MAX_GROUPS = 64;

// exp(x[e] - max) over their sum, in the group-sum order; `sums` has a word for each run. In place on padded `scores`.
__device__ void softmax(float* scores, u32 experts, float* sums) {
    __shared__ float largest[32];
    float max = -infinity();
    for (u32 e = threadIdx.x; e < experts; e += blockDim.x) {
        const float x = scores[padded(e)];
        max = x > max ? x : max;
    }
    for (u32 step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(~0u, max, step);
        max = other > max ? other : max;
    }
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = max;
    __syncthreads();
    for (u32 i = 0; i < blockDim.x / 32; ++i) max = largest[i] > max ? largest[i] : max;
    for (u32 e = threadIdx.x; e < experts; e += blockDim.x) scores[padded(e)] = assay::exp(scores[padded(e)] - max);
    __syncthreads();
    const u32 runs = (experts + RUN - 1) / RUN;
    for (u32 run = threadIdx.x; run < runs; run += blockDim.x) {
        float sum = 0.0f;
        for (u32 e = run * RUN; e < min((run + 1) * RUN, experts); ++e) sum = sum + scores[padded(e)];
        sums[run] = sum;
    }
    __syncthreads();
    const float total = run_total(sums, runs);
    for (u32 e = threadIdx.x; e < experts; e += blockDim.x) scores[padded(e)] = __fdiv_rn(scores[padded(e)], total);
    __syncthreads();
}

// The first warp writes the `count` best of keys[n] to `chosen`, the largest first, ties to the lowest index.
__device__ void choose(const float* keys, u32 n, u32 count, u32* chosen) {
    if (threadIdx.x >= 32) return;
    const u32 lane = threadIdx.x;
    u32 taken = 0;  // bit i: key lane + 32 i
    for (u32 rank = 0; rank < count; ++rank) {
        float best = 0.0f;
        u32 at = ~0u;
        for (u32 i = 0; lane + 32 * i < n; ++i) {
            const float key = keys[lane + 32 * i];
            if (!(taken >> i & 1) && (at == ~0u || key > best)) {
                best = key;
                at = lane + 32 * i;
            }
        }
        for (u32 step = 16; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(~0u, best, step);
            const u32 other_at = __shfl_xor_sync(~0u, at, step);
            const bool wins = at == ~0u || other > best || (other == best && other_at < at);
            if (other_at != ~0u && wins) {
                best = other;
                at = other_at;
            }
        }
        if (at % 32 == lane) taken |= 1u << (at / 32);
        if (lane == 0) chosen[rank] = at;
    }
    __syncwarp();
}

// A block a token. logits[T, experts]; bias[experts] or null; ids and weights [T, top_k].
extern "C" __global__ void router_topk(const float* logits, const float* bias, u32 experts, u32 top_k, Routing routing,
                                       u32* ids, float* weights, Status* status) {
    __shared__ float scores[MAX_EXPERTS + MAX_EXPERTS / RUN];
    __shared__ float keys[MAX_EXPERTS];
    __shared__ float sums[MAX_EXPERTS / RUN];
    __shared__ float worth[MAX_GROUPS];
    __shared__ u32 groups[MAX_GROUPS];
    __shared__ u32 chosen[MAX_EXPERTS];
    const u64 token = blockIdx.x;
    for (u32 e = threadIdx.x; e < experts; e += blockDim.x) {
        const float logit = logits[token * experts + e];
        scores[padded(e)] = routing.scoring > SOFTMAX_OF_CHOSEN ? sigmoid(logit) : logit;
    }
    __syncthreads();
    if (routing.scoring == SOFTMAX) softmax(scores, experts, sums);
    for (u32 e = threadIdx.x; e < experts; e += blockDim.x) {
        const float score = scores[padded(e)];
        if (is_nan(score)) report(status, STATUS_NAN, u32(token * experts + e));
        keys[e] = bias ? score + bias[e] : score;
    }
    __syncthreads();
    if (routing.topk_group != routing.n_group) {
        const u32 size = experts / routing.n_group;
        for (u32 group = threadIdx.x; group < routing.n_group; group += blockDim.x) {
            float first = -infinity(), second = -infinity();
            for (u32 e = group * size; e < (group + 1) * size; ++e) {
                const float key = keys[e];
                if (key > first) {
                    second = first;
                    first = key;
                } else if (key > second) {
                    second = key;
                }
            }
            worth[group] = first + second;
        }
        __syncthreads();
        choose(worth, routing.n_group, routing.topk_group, groups);
        __syncthreads();
        for (u32 e = threadIdx.x; e < experts; e += blockDim.x) {
            bool kept = false;
            for (u32 i = 0; i < routing.topk_group; ++i) kept = kept || groups[i] == e / size;
            if (!kept) keys[e] = -infinity();
        }
        __syncthreads();
    }
    choose(keys, experts, top_k, chosen);
    if (threadIdx.x != 0) return;
    float max = -infinity();
    for (u32 rank = 0; rank < top_k; ++rank) {
        const float score = scores[padded(chosen[rank])];
        max = score > max ? score : max;
    }
    float sum = 0.0f;
    for (u32 rank = 0; rank < top_k; ++rank) {
        float weight = scores[padded(chosen[rank])];
        if (routing.scoring == SOFTMAX_OF_CHOSEN) weight = assay::exp(weight - max);
        sum = rank == 0 ? weight : sum + weight;
        keys[rank] = weight;
    }
    for (u32 rank = 0; rank < top_k; ++rank) {
        float weight = keys[rank];
        if (routing.norm_topk_prob || routing.scoring == SOFTMAX_OF_CHOSEN) weight = __fdiv_rn(weight, sum + SUM_FLOOR);
        ids[token * top_k + rank] = chosen[rank];
        weights[token * top_k + rank] = weight * routing.scaling_factor;
    }
}

// out[t, d] = the token's experts in rank order, fma(weight, slot, sum) from +0.0. slots[T * top_k, hidden].
extern "C" __global__ void combine(const float* slots, const float* weights, u32 top_k, u32 hidden, float* out) {
    const u64 token = blockIdx.x;
    const u32 d = blockIdx.y * blockDim.x + threadIdx.x;
    if (d >= hidden) return;
    float sum = 0.0f;
    for (u32 rank = 0; rank < top_k; ++rank) {
        const u64 slot = token * top_k + rank;
        sum = __fmaf_rn(weights[slot], slots[slot * hidden + d], sum);
    }
    out[token * hidden + d] = sum;
}
