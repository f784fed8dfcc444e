// The group sum over a row that a block holds in shared memory.
#pragma once
#include "contract.cuh"

namespace assay {

// Where element k lies: runs are 33 words apart, so that 32 chains read from 32 banks.
__device__ __forceinline__ u32 padded(u32 k) { return k + k / RUN; }

// Runs to groups, groups to the total, ascending; every thread computes it for itself.
__device__ __forceinline__ float run_total(const float* sums, u32 runs) {
    float total = 0.0f;
    for (u32 first = 0; first < runs; first += RUNS) {
        float part[RUNS];
        for (u32 i = 0; i < RUNS; ++i) part[i] = first + i < runs ? sums[first + i] : 0.0f;
        total = total + ((part[0] + part[1]) + (part[2] + part[3]));
    }
    return total;
}

// dot(x, x) in the contract's order; every thread gets it. `row` is padded; `sums` holds a word for each run.
__device__ __forceinline__ float block_square_sum(const float* row, u32 width, float* sums) {
    const u32 runs = (width + RUN - 1) / RUN;
    for (u32 run = threadIdx.x; run < runs; run += blockDim.x) {
        const u32 end = min((run + 1) * RUN, width);
        float sum = 0.0f;
        for (u32 k = run * RUN; k < end; ++k) sum = __fmaf_rn(row[padded(k)], row[padded(k)], sum);
        sums[run] = sum;
    }
    __syncthreads();
    return run_total(sums, runs);
}

// 1 / sqrt(dot(x, x) / width + eps)
__device__ __forceinline__ float block_inverse_rms(const float* row, u32 width, float eps, float* sums) {
    const float mean = __fdiv_rn(block_square_sum(row, width, sums), float(width));
    return __fdiv_rn(1.0f, __fsqrt_rn(mean + eps));
}

}  // namespace assay
