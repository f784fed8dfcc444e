// What the fused kernels of decode share: overlapping with the kernel before, tiles staged in shared memory, one row's norm.
//
// A fused kernel does for one token what several kernels do, to the bit. It asks for its weights while the kernel before it still
// runs, waits, and lets the kernel after it start. Order: whoever calls `let_next_start` has called `wait_for_previous`. So where a
// kernel runs ahead of its wait, everything older than the kernel before it is complete; it may read that, and weights.
#pragma once
#include "dot.cuh"

namespace assay {

constexpr u32 GROUP_BYTES = INT4_GROUP_BYTES;

// Until every kernel before this one is complete and what it wrote is visible. Every thread calls it.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may take what this one leaves free of each multiprocessor.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until all but the last `LEFT` committed copies of this thread are there.
template <int LEFT> __device__ __forceinline__ void wait_for_copies_but() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

// Past the first-level cache: what another multiprocessor wrote.
__device__ __forceinline__ float load_fresh(const float* from) { return __ldcg(from); }
__device__ __forceinline__ u32 load_fresh(const u32* from) { return __ldcg(from); }
__device__ __forceinline__ u64 load_fresh(const u64* from) { return __ldcg(from); }

// True in the block that is the last of `blocks` to come, which then sees what the others wrote before. `ticket` is 0 before and after.
__device__ __forceinline__ bool last_block(u32* ticket, u32 blocks) {
    __shared__ u32 last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(ticket, 1u) == blocks - 1;
        if (last) *ticket = 0;
    }
    __syncthreads();
    if (last) __threadfence();
    return last;
}

// Starts copying a lane's pieces of the groups of an INT4 tile that its warp takes: group g at `staged + g * GROUP_BYTES`. A lane reads only
// what it has copied itself, so no barrier stands between copy and product.
__device__ __forceinline__ void stage_groups(u8* staged, const u8* weights, u32 first, u32 groups, u32 step) {
    const u32 at = threadIdx.x % 32 * 16;
    for (u32 g = first; g < groups; g += step) {
        copy_16(staged + g * GROUP_BYTES + at, weights + u64(g) * GROUP_BYTES + at);
        copy_16(staged + g * GROUP_BYTES + at + 512, weights + u64(g) * GROUP_BYTES + at + 512);
    }
}

// Starts copying a tile's scales, by one warp.
__device__ __forceinline__ void stage_scales(u16* staged, const u8* scales, u32 groups) {
    for (u32 i = threadIdx.x % 32; i < 2 * groups; i += 32) copy_16(staged + 8 * i, scales + 16 * i);
}

// Sums of one group of N / 2 staged tiles, `apart` bytes apart, to part[tile][16 rows], by one warp. `row` is in padded runs; `left`
// is the number of columns from the group on.
template <int N> __device__ __forceinline__ void group_sums(const u8* staged, u32 apart, const float* row, u32 group, u32 left, float* part, u32 part_pitch) {
    const u32 lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
    uint4 w[N];
#pragma unroll
    for (int i = 0; i < N; ++i) w[i] = *(const uint4*)(staged + i / 2 * apart + i % 2 * 512 + lane * 16);
    const float* x = row + (group * RUNS + c) * RUN_WORDS;
    float acc[N];
    if (left >= GROUP)
        int4_run<N, true>(w, x, 0, acc);
    else
        int4_run<N, false>(w, x, int(left) - int(c * RUN), acc);
    float mine = 0.0f;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        float runs = acc[i] + __shfl_xor_sync(~0u, acc[i], 1);
        runs = runs + __shfl_xor_sync(~0u, runs, 2);
        if (c == i) mine = runs;
    }
    if (c < N) part[c / 2 * part_pitch + c % 2 * 8 + r] = mine;
}

// Adds up a row's group sums, `part` [groups][16] and `scales` [groups][16], both at the row.
__device__ __forceinline__ float scaled_total(const float* part, const u16* scales, u32 groups) {
    float total = 0.0f;
#pragma unroll 8
    for (u32 g = 0; g < groups; ++g) total = __fmaf_rn(bf16_to_f32(scales[g * TILE]), part[g * TILE], total);
    return total;
}

// Elements of the run from `base` on that lie below `n`.
__device__ __forceinline__ u32 run_length(u32 n, u32 base) { return n <= base ? 0 : n - base < RUN ? n - base : RUN; }

// A run of dot(x, x).
__device__ __forceinline__ float square_run(const float* run, u32 count) {
    float sum = 0.0f;
    if (count == RUN) {
#pragma unroll
        for (u32 k = 0; k < RUN; k += 4) {
            const float4 v = *(const float4*)(run + k);
            sum = __fmaf_rn(v.x, v.x, sum);
            sum = __fmaf_rn(v.y, v.y, sum);
            sum = __fmaf_rn(v.z, v.z, sum);
            sum = __fmaf_rn(v.w, v.w, sum);
        }
        return sum;
    }
    for (u32 k = 0; k < count; ++k) sum = __fmaf_rn(run[k], run[k], sum);
    return sum;
}

// (run0 + run1) + (run2 + run3), the runs in neighbouring lanes.
__device__ __forceinline__ float sum_of_four(float run) {
    run = run + __shfl_xor_sync(~0u, run, 1);
    return run + __shfl_xor_sync(~0u, run, 2);
}

__device__ __forceinline__ float inverse_rms(float square_sum, u32 n, float eps) {
    return __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(square_sum, float(n)) + eps));
}

// 1 / rms of a row in padded runs, n its length; every thread gets it, after one barrier. `sums` has a word for each group.
__device__ __forceinline__ float row_inverse_rms(const float* row, u32 n, float eps, float* sums) {
    const u32 groups = (n + GROUP - 1) / GROUP;
    for (u32 first = 0; first < groups * RUNS; first += blockDim.x) {
        const u32 run = first + threadIdx.x;
        const u32 count = run < groups * RUNS ? run_length(n, run * RUN) : 0;
        const float sum = sum_of_four(square_run(row + run * RUN_WORDS, count));
        if (run % RUNS == 0 && run < groups * RUNS) sums[run / RUNS] = sum;
    }
    __syncthreads();
    float total = 0.0f;
#pragma unroll 8
    for (u32 g = 0; g < groups; ++g) total = total + sums[g];
    return inverse_rms(total, n, eps);
}

// Where element k of a row in padded runs lies.
__device__ __forceinline__ u32 in_runs(u32 k) { return k / RUN * RUN_WORDS + k % RUN; }

// Carves a block's dynamic shared memory, 16 bytes aligned.
struct Carve {
    u8* at;
    template <class T> __device__ __forceinline__ T* take(u32 count) {
        T* taken = (T*)at;
        at += (count * sizeof(T) + 15) / 16 * 16;
        return taken;
    }
};

}  // namespace assay
