// What the card allows: kernels that only move bytes, or do nothing. They have no twin: their results are times.
#include "decode.cuh"

using namespace assay;

// Reads n 16-byte words, four in flight a thread; `out` is written in a case that does not occur, so that no load is dropped.
extern "C" __global__ void read_words(const uint4* from, u64 n, u32* out) {
    const u64 stride = u64(gridDim.x) * blockDim.x;
    u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    u32 mixed = 0;
    for (; i + 3 * stride < n; i += 4 * stride) {
        const uint4 a = from[i], b = from[i + stride], c = from[i + 2 * stride], d = from[i + 3 * stride];
        mixed ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    for (; i < n; i += stride) mixed ^= from[i].x;
    if (mixed == 0x9e3779b9u) out[0] = mixed;
}

// Copies n 16-byte words, e.g. out of mapped host memory; four in flight a thread.
extern "C" __global__ void copy_words(const uint4* from, uint4* to, u64 n) {
    const u64 stride = u64(gridDim.x) * blockDim.x;
    u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; i + 3 * stride < n; i += 4 * stride) {
        const uint4 a = __ldcs(from + i), b = __ldcs(from + i + stride);
        const uint4 c = __ldcs(from + i + 2 * stride), d = __ldcs(from + i + 3 * stride);
        to[i] = a;
        to[i + stride] = b;
        to[i + 2 * stride] = c;
        to[i + 3 * stride] = d;
    }
    for (; i < n; i += stride) to[i] = from[i];
}

extern "C" __global__ void nothing() {}

// Waits for the kernel before it and lets the next one start: what the order of kernels costs by itself.
extern "C" __global__ void hand_over() {
    wait_for_previous();
    let_next_start();
}

// `count` times every block waits for all others, which must be on the card together. `counter` only grows.
extern "C" __global__ void barriers(u32* counter, u32 count) {
    for (u32 i = 0; i < count; ++i) {
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            const u32 before = atomicAdd(counter, 1u);
            const u32 target = (before / gridDim.x + 1) * gridDim.x;
            u32 now;
            do {
                asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
            } while (int(now - target) < 0);
        }
        __syncthreads();
    }
}
