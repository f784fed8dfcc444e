// The greedy choice: twin in kernels/src/twin/argmax.rs.
#include "decode.cuh"

using namespace assay;

constexpr u32 THREADS = 256;
constexpr u32 MAX_BLOCKS = 128;

// A logit and where it is, and the first NaN; `better` prefers the larger, then the lower index.
struct Best {
    float value;
    u32 index;
    u32 nan;
};

__device__ __forceinline__ Best better(Best a, Best b) {
    const bool second = b.value > a.value || (b.value == a.value && b.index < a.index);
    return {second ? b.value : a.value, second ? b.index : a.index, min(a.nan, b.nan)};
}

__device__ float values[MAX_BLOCKS];
__device__ u32 indices[MAX_BLOCKS], nans[MAX_BLOCKS];
__device__ u32 ticket;

// Every thread of the first warp gets the best of the block.
__device__ __forceinline__ Best best_of_block(Best best) {
    __shared__ Best bests[THREADS / 32];
    const auto of_warp = [](Best mine) {
        for (u32 step = 16; step > 0; step /= 2)
            mine = better(mine, {__shfl_xor_sync(~0u, mine.value, step), __shfl_xor_sync(~0u, mine.index, step), __shfl_xor_sync(~0u, mine.nan, step)});
        return mine;
    };
    best = of_warp(best);
    if (threadIdx.x % 32 == 0) bests[threadIdx.x / 32] = best;
    __syncthreads();
    best = of_warp(bests[threadIdx.x % (THREADS / 32)]);
    __syncthreads();
    return best;
}

// out[0] = index of the largest of logits[n], ties to the lowest; the first NaN is reported. At most 128 blocks; the last one chooses. Where
// there is a `next`, next[0] becomes the choice too, and next[1], a position, one more.
extern "C" __global__ void __launch_bounds__(THREADS) argmax(const float* logits, u32 n, u32* out, u32* next, Status* status) {
    const Best none = {-infinity(), ~0u, ~0u};
    Best best = none;
    wait_for_previous();
    let_next_start();
    for (u64 i = u64(blockIdx.x) * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS) {
        const float value = load_fresh(logits + i);
        best = better(best, {value, u32(i), is_nan(value) ? u32(i) : ~0u});
    }
    best = best_of_block(best);
    if (threadIdx.x == 0) {
        values[blockIdx.x] = best.value;
        indices[blockIdx.x] = best.index;
        nans[blockIdx.x] = best.nan;
    }
    if (!last_block(&ticket, gridDim.x)) return;
    best = none;
    for (u32 i = threadIdx.x; i < gridDim.x; i += THREADS) best = better(best, {__ldcg(values + i), __ldcg(indices + i), __ldcg(nans + i)});
    best = best_of_block(best);
    if (threadIdx.x != 0) return;
    // All -inf but for NaNs: any index will do, the NaN is reported.
    const u32 choice = best.index == ~0u ? 0 : best.index;
    out[0] = choice;
    if (next) {
        next[0] = choice;
        next[1] += 1;
    }
    if (best.nan != ~0u) report(status, STATUS_NAN, best.nan);
}
