// The greedy choice: twin in kernels/src/twin/argmax.rs.
#include "contract.cuh"

using namespace assay;

constexpr u32 THREADS = 1024;

// A logit and where it is; `better` prefers the larger, then the lower index.
struct Best {
    float value;
    u32 index;
};

__device__ __forceinline__ Best better(Best a, Best b) {
    const bool second = b.value > a.value || (b.value == a.value && b.index < a.index);
    return second ? b : a;
}

// out[0] = index of the largest of logits[n], ties to the lowest; the first NaN is reported. One block of 1,024 threads.
extern "C" __global__ void argmax(const float* logits, u32 n, u32* out, Status* status) {
    __shared__ Best bests[THREADS / 32];
    __shared__ u32 nans[THREADS / 32];
    Best best = {-infinity(), ~0u};
    u32 nan = ~0u;
    for (u32 i = threadIdx.x; i < n; i += THREADS) {
        const float value = logits[i];
        best = better(best, {value, i});
        if (is_nan(value)) nan = min(nan, i);
    }
    for (u32 step = 16; step > 0; step /= 2) {
        const Best other = {__shfl_xor_sync(~0u, best.value, step), __shfl_xor_sync(~0u, best.index, step)};
        best = better(best, other);
        nan = min(nan, __shfl_xor_sync(~0u, nan, step));
    }
    if (threadIdx.x % 32 == 0) {
        bests[threadIdx.x / 32] = best;
        nans[threadIdx.x / 32] = nan;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (u32 i = 1; i < THREADS / 32; ++i) {
        best = better(best, bests[i]);
        nan = min(nan, nans[i]);
    }
    // All -inf but for NaNs: any index will do, the NaN is reported.
    out[0] = best.index == ~0u ? 0 : best.index;
    if (nan != ~0u) report(status, STATUS_NAN, nan);
}
