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

// The sum of a run, of which `count` elements are there.
__device__ __forceinline__ float run_sum(const float* at, u32 count) {
    float sum = 0.0f;
    if (count == RUN) {
#pragma unroll
        for (u32 k = 0; k < RUN; k += 4) {
            const float4 four = *(const float4*)(at + k);
            sum = sum + four.x;
            sum = sum + four.y;
            sum = sum + four.z;
            sum = sum + four.w;
        }
    } else {
        for (u32 k = 0; k < count; ++k) sum = sum + at[k];
    }
    return sum;
}

// Keys that are greater, or equal and of a lower index, come before.
__device__ __forceinline__ u32 before(float other, u32 at, float key, u32 own) { return other > key || (other == key && at < own); }

// The choice, by one block of COUNT threads; logits lie in `scores` [experts]. scores and keys are padded to a multiple of 32, exps to runs.
template <u32 COUNT> __device__ __forceinline__ void choose(const Route& work, float* scores, float* keys, float* exps, Status* status) {
    __shared__ u32 chosen[MAX_EXPERTS];
    const u32 experts = work.experts, padded = (experts + 31) / 32 * 32, lane = threadIdx.x % 32, scoring = work.routing.scoring;
    float total = 0.0f;
    if (scoring == SOFTMAX) {
        // Every warp for itself: that spares barriers.
        float max = -infinity();
        for (u32 e = lane; e < experts; e += 32) max = scores[e] > max ? scores[e] : max;
        for (u32 step = 16; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(~0u, max, step);
            max = other > max ? other : max;
        }
        for (u32 e = threadIdx.x; e < experts; e += COUNT) exps[in_runs(e)] = assay::exp(scores[e] - max);
        __syncthreads();
        for (u32 first = 0; first < experts; first += GROUP) {
            const u32 base = first + lane % RUNS * RUN, count = run_length(experts, base);
            const float* at = exps + in_runs(base);
            total = total + sum_of_four(run_sum(at, count));
        }
    }
    for (u32 e = threadIdx.x; e < padded; e += COUNT) {
        if (e >= experts) {
            keys[e] = -infinity();  // its index is above all others
            continue;
        }
        const float score = scoring == SOFTMAX ? __fdiv_rn(exps[in_runs(e)], total) : scoring > SOFTMAX_OF_CHOSEN ? sigmoid(scores[e]) : scores[e];
        if (is_nan(score)) report(status, STATUS_NAN, e);
        scores[e] = score;
        keys[e] = work.bias ? score + work.bias[e] : score;
    }
    // Where a NaN leaves a rank empty.
    for (u32 rank = threadIdx.x; rank < work.top_k; rank += COUNT) chosen[rank] = rank;
    __syncthreads();
    // A key's rank is the number of those before it: several threads count for one.
    constexpr u32 SIDES = COUNT / 128;
    const u32 part = padded / SIDES, side = threadIdx.x % SIDES;
    for (u32 first = 0; first < experts; first += COUNT / SIDES) {
        const u32 own = first + threadIdx.x / SIDES;
        const float key = keys[min(own, experts - 1)];
        u32 rank = 0;
#pragma unroll 4
        for (u32 i = side * part; i < (side + 1) * part; i += 4) {
            const float4 four = *(const float4*)(keys + i);
            rank += before(four.x, i, key, own) + before(four.y, i + 1, key, own) + before(four.z, i + 2, key, own) + before(four.w, i + 3, key, own);
        }
#pragma unroll
        for (u32 step = 1; step < SIDES; step *= 2) rank += __shfl_xor_sync(~0u, rank, step);
        if (side == 0 && own < experts && rank < work.top_k) chosen[rank] = own;
    }
    __syncthreads();
    // Each rank's thread takes the sum by itself, in the order of ranks.
    const bool of_chosen = scoring == SOFTMAX_OF_CHOSEN, divides = work.routing.norm_topk_prob || of_chosen;
    for (u32 own = threadIdx.x; own < work.top_k; own += COUNT) {
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

constexpr u32 FEW = 4;  // experts of a lane

// The same by one warp, for at most 32 FEW experts of which at most 32 are chosen: lane l has experts l, 32 + l, ... `exps` is padded to runs.
__device__ __forceinline__ void choose_by_warp(const Route& work, const float* logits, float* exps, Status* status) {
    const u32 experts = work.experts, lane = threadIdx.x % 32, scoring = work.routing.scoring;
    float score[FEW];
#pragma unroll
    for (u32 i = 0; i < FEW; ++i) score[i] = i * 32 + lane < experts ? logits[i * 32 + lane] : -infinity();
    if (scoring == SOFTMAX) {
        float max = -infinity();
#pragma unroll
        for (u32 i = 0; i < FEW; ++i) max = score[i] > max ? score[i] : max;
#pragma unroll
        for (u32 step = 16; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(~0u, max, step);
            max = other > max ? other : max;
        }
#pragma unroll
        for (u32 i = 0; i < FEW; ++i) {
            score[i] = assay::exp(score[i] - max);
            exps[i * RUN_WORDS + lane] = score[i];
        }
        __syncwarp();
        const u32 base = lane % RUNS * RUN, count = run_length(experts, base);
        const float* at = exps + in_runs(base);
        const float total = 0.0f + sum_of_four(run_sum(at, count));
#pragma unroll
        for (u32 i = 0; i < FEW; ++i) score[i] = __fdiv_rn(score[i], total);
    } else if (scoring > SOFTMAX_OF_CHOSEN) {
#pragma unroll
        for (u32 i = 0; i < FEW; ++i) score[i] = sigmoid(score[i]);
    }
    // A number that orders as the key does; 0 for what is not there and for NaN.
    u32 key[FEW];
    bool wrong = false;
    u32 which = 0;
#pragma unroll
    for (u32 i = 0; i < FEW; ++i) {
        const u32 e = i * 32 + lane;
        const bool there = e < experts;
        const float sorted = (work.bias && there ? score[i] + work.bias[e] : score[i]) + 0.0f;  // no -0
        key[i] = there && !is_nan(sorted) ? ordered(sorted) : 0u;
        if (there && is_nan(score[i])) wrong = true, which = e;
    }
    if (wrong) report(status, STATUS_NAN, which);
    // The largest key of all, the lowest index of equal ones, again and again; lane r keeps that of rank r.
    u32 chosen = lane;
    float of_chosen = 0.0f, sum = 0.0f;
#pragma unroll 1
    for (u32 rank = 0; rank < work.top_k; ++rank) {
        const u32 best = __reduce_max_sync(~0u, max(max(key[0], key[1]), max(key[2], key[3])));
        if (best == 0) break;  // nothing but NaN is left
        u32 lanes[FEW];
#pragma unroll
        for (u32 i = 0; i < FEW; ++i) lanes[i] = __ballot_sync(~0u, key[i] == best);
        const u32 at = lanes[0] ? 0 : lanes[1] ? 1 : lanes[2] ? 2 : 3;
        const u32 its = __ffs(lanes[0] ? lanes[0] : lanes[1] ? lanes[1] : lanes[2] ? lanes[2] : lanes[3]) - 1;
        float found = unordered(best);
        if (work.bias) found = __shfl_sync(~0u, at == 0 ? score[0] : at == 1 ? score[1] : at == 2 ? score[2] : score[3], its);
#pragma unroll
        for (u32 i = 0; i < FEW; ++i)
            if (i == at && lane == its) key[i] = 0;
        if (lane == rank) chosen = at * 32 + its, of_chosen = found;
        sum = rank == 0 ? found : sum + found;
    }
    if (scoring == SOFTMAX_OF_CHOSEN) {
        float max = lane < work.top_k ? of_chosen : -infinity();
#pragma unroll
        for (u32 step = 16; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(~0u, max, step);
            max = other > max ? other : max;
        }
        of_chosen = assay::exp(of_chosen - max);
        for (u32 rank = 0; rank < work.top_k; ++rank) {
            const float one = __shfl_sync(~0u, of_chosen, rank);
            sum = rank == 0 ? one : sum + one;
        }
    }
    if (lane >= work.top_k) return;
    const bool divides = work.routing.norm_topk_prob || scoring == SOFTMAX_OF_CHOSEN;
    work.ids[lane] = chosen;
    work.weights[lane] = (divides ? __fdiv_rn(of_chosen, sum + SUM_FLOOR) : of_chosen) * work.routing.scaling_factor;
}

// As `norm_route`, by one cluster whose blocks take every gridDim.x-th tile: logits meet in the first block's shared memory, which is nearer than
// the level-2 cache. Compute capability 9.0 and later.
extern "C" __global__ void __launch_bounds__(512, 2) norm_route_cluster(const __grid_constant__ Route work, Status* status) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) u8 shared[];
    const u32 cols = work.cols, groups = (cols + GROUP - 1) / GROUP, tiles = (work.experts + TILE - 1) / TILE, most = (tiles + gridDim.x - 1) / gridDim.x;
    const u32 warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32, c = lane % RUNS, padded = (work.experts + 31) / 32 * 32;
    // A run of a tile's columns, padded so that a warp reads four of them from all banks.
    constexpr u32 PITCH = RUN * BF16_COL_BYTES + 32;
    Carve carve{shared};
    float* row = carve.take<float>(groups * RUNS * RUN_WORDS);
    float* factors = carve.take<float>(cols);
    float* sums = carve.take<float>(groups);
    float* part = carve.take<float>(most * groups * TILE);
    float* scores = carve.take<float>(padded);
    float* keys = carve.take<float>(padded);
    float* exps = carve.take<float>(padded / RUN * RUN_WORDS);
    u8* weights = carve.take<u8>(most * groups * RUNS * PITCH);
    const u32 count = blockIdx.x < tiles ? (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
    // A warp copies the weights of its own groups.
    for (u32 t = 0; t < count; ++t)
        for (u32 g = warp; g < groups; g += warps) {
            const u8* from = work.matrix + (u64(blockIdx.x + t * gridDim.x) * cols + g * GROUP) * BF16_COL_BYTES;
            u8* to = weights + (t * groups + g) * RUNS * PITCH;
#pragma unroll 4
            for (u32 i = lane; i < 2 * min(GROUP, cols - g * GROUP); i += 32) copy_16(to + i / (2 * RUN) * PITCH + i % (2 * RUN) * 16, from + 16 * i);
        }
    const u32 own = warp * GROUP + 4 * lane;
    for (u32 k = own; k < cols; k += 4 * blockDim.x) copy_16(factors + k, work.norm + k);
    // All blocks have begun before one writes into another.
    cluster_arrive();
    cluster_wait();
    __syncthreads();
    wait_for_previous();
    let_next_start();
    copy_own_groups(row, work.x, cols);
    wait_for_own_copies();
    const float inverse = row_inverse_rms(row, cols, work.eps, sums);
    apply_norm(row, factors, cols, inverse, work.normed);
    // Lane 4 r + c has run c of rows 2 r and 2 r + 1.
    for (u32 g = warp; g < groups; g += warps) {
        const u32 length = run_length(cols, g * GROUP + c * RUN);
        float x[RUN];
        load_run(x, row + (g * RUNS + c) * RUN_WORDS);
        for (u32 t = 0; t < count; ++t) {
            const u8* w = weights + ((t * groups + g) * RUNS + c) * PITCH + lane / RUNS * 4;
            float low = 0.0f, high = 0.0f;
            const auto step = [&](u32 k) {
                const u32 two = *(const u32*)(w + k * BF16_COL_BYTES);
                low = __fmaf_rn(__uint_as_float(two << 16), x[k], low);
                high = __fmaf_rn(__uint_as_float(two & 0xffff0000u), x[k], high);
            };
            if (length == RUN)
#pragma unroll
                for (u32 k = 0; k < RUN; ++k) step(k);
            else
#pragma unroll
                for (u32 k = 0; k < RUN; ++k)
                    if (k < length) step(k);
            low = sum_of_four(low);
            high = sum_of_four(high);
            if (c == 0) *(float2*)(part + (t * groups + g) * TILE + lane / RUNS * 2) = make_float2(low, high);
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < count * TILE; i += blockDim.x) {
        const u32 t = i / TILE, r = i % TILE, e = (blockIdx.x + t * gridDim.x) * TILE + r;
        float total = 0.0f;
#pragma unroll 8
        for (u32 g = 0; g < groups; ++g) total = total + part[(t * groups + g) * TILE + r];
        if (e >= work.experts) continue;
        if (work.linear_bias) total = total + work.linear_bias[e];
        asm volatile("{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %0, 0;\nst.shared::cluster.f32 [at], %1;\n}" ::"r"(shared_address(scores + e)), "f"(total)
                     : "memory");
    }
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (blockIdx.x != 0) return;
    if (work.experts > 32 * FEW || work.top_k > 32)
        choose<512>(work, scores, keys, exps, status);
    else if (warp == 0)
        choose_by_warp(work, scores, exps, status);
#endif
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
    float* keys = carve.take<float>(padded_experts);
    float* exps = carve.take<float>(padded_experts / RUN * RUN_WORDS);
    const u8* from = work.matrix + (u64(tile) * work.cols + g * GROUP) * BF16_COL_BYTES;
    for (u32 i = threadIdx.x; i < 2 * min(left, GROUP); i += THREADS) copy_16(weights + i / (2 * RUN) * PITCH + i % (2 * RUN) * 16, from + 16 * i);
    if (threadIdx.x < GROUP / 4 && 4 * threadIdx.x < left) copy_16(factors + 4 * threadIdx.x, work.norm + g * GROUP + 4 * threadIdx.x);
    wait_for_previous();
    let_next_start();
    copy_own_groups(row, work.x, work.cols);
    wait_for_own_copies();
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
    choose<THREADS>(work, scores, keys, exps, status);
}
