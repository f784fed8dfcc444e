// One token's norm, router and choice of experts: a composition of the twins `rms_norm`, `linear` (BF16) and `router_topk`.
#include "decode.cuh"
#include "routing.cuh"

using namespace assay;

constexpr u32 THREADS = 256;

struct Route {
    const float* x;            // [cols]
    const float* norm;         // [cols]
    float* normed;             // [cols]
    const u8* matrix;          // BF16 [experts, cols]
    const float* linear_bias;  // [experts], or null
    const float* bias;         // [experts], or null
    float* parts;              // [experts padded to 16, groups]: sums of groups
    u32* ids;                  // [top_k]
    float* weights;            // [top_k]
    float eps;
    u32 cols, experts, top_k;
    Routing routing;
};

__device__ u32 ticket;

// Keys that are greater, or equal and of a lower index, come before.
__device__ __forceinline__ u32 before(float other, u32 at, float key, u32 own) { return other > key || (other == key && at < own); }

// The choice, by one block; logits lie in `scores` [experts]. keys and scores are padded to a multiple of 32.
__device__ __forceinline__ void choose(const Route& work, float* scores, float* keys, Status* status) {
    __shared__ float largest[THREADS / 32], sums[MAX_EXPERTS / RUN];
    __shared__ u32 chosen[MAX_EXPERTS];
    const u32 experts = work.experts, runs = (experts + RUN - 1) / RUN, lane = threadIdx.x % 32, scoring = work.routing.scoring;
    if (scoring == SOFTMAX) {
        float max = -infinity();
        for (u32 e = threadIdx.x; e < experts; e += THREADS) max = scores[e] > max ? scores[e] : max;
        for (u32 step = 16; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(~0u, max, step);
            max = other > max ? other : max;
        }
        if (lane == 0) largest[threadIdx.x / 32] = max;
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < THREADS / 32; ++i) max = largest[i] > max ? largest[i] : max;
        for (u32 e = threadIdx.x; e < experts; e += THREADS) keys[in_runs(e)] = assay::exp(scores[e] - max);
        __syncthreads();
        for (u32 first = 0; first < runs; first += THREADS) {
            const u32 run = first + threadIdx.x;
            float sum = 0.0f;
            if (run < runs) {
                const u32 count = run_length(experts, run * RUN);
                const float* at = keys + run * RUN_WORDS;
#pragma unroll 8
                for (u32 k = 0; k < count; ++k) sum = sum + at[k];
            }
            sum = sum_of_four(sum);
            if (run < runs && run % RUNS == 0) sums[run / RUNS] = sum;
        }
        __syncthreads();
        float total = 0.0f;
        for (u32 g = 0; g < (runs + RUNS - 1) / RUNS; ++g) total = total + sums[g];
        for (u32 e = threadIdx.x; e < experts; e += THREADS) scores[e] = __fdiv_rn(keys[in_runs(e)], total);
        __syncthreads();
    }
    for (u32 e = threadIdx.x; e < (experts + 31) / 32 * 32; e += THREADS) {
        if (e >= experts) {
            keys[e] = -infinity();  // its index is above all others
            continue;
        }
        const float score = scoring > SOFTMAX_OF_CHOSEN ? sigmoid(scores[e]) : scores[e];
        if (is_nan(score)) report(status, STATUS_NAN, e);
        scores[e] = score;
        keys[e] = work.bias ? score + work.bias[e] : score;
    }
    // Where a NaN leaves a rank empty.
    for (u32 rank = threadIdx.x; rank < work.top_k; rank += THREADS) chosen[rank] = rank;
    __syncthreads();
    // A key's rank is the number of those before it: two threads count for one.
    const u32 half = (experts + 31) / 32 * 16, side = threadIdx.x % 2;
    for (u32 first = 0; first < experts; first += THREADS / 2) {
        const u32 own = first + threadIdx.x / 2;
        const float key = keys[min(own, experts - 1)];
        u32 rank = 0;
#pragma unroll 4
        for (u32 i = side * half; i < (side + 1) * half; i += 4) {
            const float4 four = *(const float4*)(keys + i);
            rank += before(four.x, i, key, own) + before(four.y, i + 1, key, own) + before(four.z, i + 2, key, own) + before(four.w, i + 3, key, own);
        }
        rank += __shfl_xor_sync(~0u, rank, 1);
        if (side == 0 && own < experts && rank < work.top_k) chosen[rank] = own;
    }
    __syncthreads();
    // Each rank's thread takes the sum by itself, in the order of ranks.
    const bool of_chosen = scoring == SOFTMAX_OF_CHOSEN, divides = work.routing.norm_topk_prob || of_chosen;
    for (u32 own = threadIdx.x; own < work.top_k; own += THREADS) {
        float max = -infinity(), sum = 0.0f;
        if (of_chosen)
            for (u32 rank = 0; rank < work.top_k; ++rank) max = scores[chosen[rank]] > max ? scores[chosen[rank]] : max;
        const auto weight_of = [&](u32 rank) { return of_chosen ? assay::exp(scores[chosen[rank]] - max) : scores[chosen[rank]]; };
        if (divides)
#pragma unroll 8
            for (u32 rank = 0; rank < work.top_k; ++rank) sum = rank == 0 ? weight_of(rank) : sum + weight_of(rank);
        const float weight = divides ? __fdiv_rn(weight_of(own), sum + SUM_FLOOR) : weight_of(own);
        work.ids[own] = chosen[own];
        work.weights[own] = weight * work.routing.scaling_factor;
    }
}

// Grid (groups of columns, tiles of experts). Each block norms the row, takes one group of one tile, and the last one chooses.
extern "C" __global__ void __launch_bounds__(THREADS, 3) norm_route(const __grid_constant__ Route work, Status* status) {
    extern __shared__ __align__(16) u8 shared[];
    const u32 groups = gridDim.x, g = blockIdx.x, tile = blockIdx.y, left = work.cols - g * GROUP;
    const u32 padded_experts = (work.experts + 31) / 32 * 32;
    // A run of a tile's columns, padded so that its rows' chains read from other banks than the next run's.
    constexpr u32 PITCH = RUN * BF16_COL_BYTES + 16;
    Carve carve{shared};
    float* row = carve.take<float>(groups * RUNS * RUN_WORDS);
    float* sums = carve.take<float>(groups);
    float* factors = carve.take<float>(GROUP);
    u8* weights = carve.take<u8>(RUNS * PITCH);
    float* scores = carve.take<float>(padded_experts);
    float* keys = carve.take<float>(padded_experts / RUN * RUN_WORDS);
    const u8* from = work.matrix + (u64(tile) * work.cols + g * GROUP) * BF16_COL_BYTES;
    for (u32 i = threadIdx.x; i < 2 * min(left, GROUP); i += THREADS) copy_16(weights + i / (2 * RUN) * PITCH + i % (2 * RUN) * 16, from + 16 * i);
    if (threadIdx.x < GROUP / 4 && 4 * threadIdx.x < left) copy_16(factors + 4 * threadIdx.x, work.norm + g * GROUP + 4 * threadIdx.x);
    wait_for_previous();
    let_next_start();
    load_row(row, work.x, work.cols);
    wait_for_copies();
    __syncthreads();
    const float inverse = row_inverse_rms(row, work.cols, work.eps, sums);
    if (threadIdx.x < GROUP && threadIdx.x < left) {
        float* at = row + in_runs(g * GROUP + threadIdx.x);
        *at = (*at * inverse) * factors[threadIdx.x];
        if (tile == 0) work.normed[g * GROUP + threadIdx.x] = *at;
    }
    __syncthreads();
    if (threadIdx.x < TILE * RUNS) {
        const u32 r = threadIdx.x / RUNS, c = threadIdx.x % RUNS, count = run_length(left, c * RUN);
        const u8* w = weights + c * PITCH + 2 * r;
        const float* x = row + (g * RUNS + c) * RUN_WORDS;
        float sum = 0.0f;
        if (count == RUN) {
#pragma unroll 8
            for (u32 k = 0; k < RUN; ++k) sum = __fmaf_rn(bf16_to_f32(*(const u16*)(w + k * BF16_COL_BYTES)), x[k], sum);
        } else {
            for (u32 k = 0; k < count; ++k) sum = __fmaf_rn(bf16_to_f32(*(const u16*)(w + k * BF16_COL_BYTES)), x[k], sum);
        }
        sum = sum_of_four(sum);
        if (c == 0) work.parts[u64(tile * TILE + r) * groups + g] = sum;
    }
    if (!last_block(&ticket, gridDim.x * gridDim.y)) return;
    for (u32 e = threadIdx.x; e < work.experts; e += THREADS) {
        const float* part = work.parts + u64(e) * groups;
        float total = 0.0f;
        if (groups % 4 == 0) {
#pragma unroll 4
            for (u32 i = 0; i < groups; i += 4) {
                const float4 four = __ldcg((const float4*)(part + i));
                total = total + four.x;
                total = total + four.y;
                total = total + four.z;
                total = total + four.w;
            }
        } else {
            for (u32 i = 0; i < groups; ++i) total = total + load_fresh(part + i);
        }
        scores[e] = work.linear_bias ? total + work.linear_bias[e] : total;
    }
    __syncthreads();
    choose(work, scores, keys, status);
}
