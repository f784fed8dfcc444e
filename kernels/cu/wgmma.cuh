// wgmma of 64 rows of A with N columns of B in shared memory: D [64, N] += A [64, 16] B [16, N], BF16 to f32. A is in registers or in
// shared memory, its columns neighbours. With TRANSPOSED the columns N of B are neighbours in memory, else its rows. With
// `accumulate` 0, D = A B. Thread layouts are those of mma.sync, a warp to each 16 rows.
#pragma once

#include "tensor.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}

// An operand in shared memory: its first byte, and the distances in bytes that its major-ness and swizzle give a meaning
// (PTX ISA, "Shared memory matrix layout"). Swizzle 0: none, 1: 128 bytes, 2: 64, 3: 32.
struct Operand {
    u32 low, high;

    __device__ __forceinline__ Operand(u32 address, u32 leading, u32 stride, u32 swizzle)
        : low((leading >> 4) << 16 | (address & 0x3FFFF) >> 4), high(swizzle << 30 | stride >> 4) {}
    // The same, so many bytes further on.
    __device__ __forceinline__ u64 at(u32 bytes) const { return (u64)high << 32 | (low + (bytes >> 4)); }
};

#define D1(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define D2(i) D1(i), D1(i + 1)
#define D4(i) D2(i), D2(i + 2)
#define D8(i) D4(i), D4(i + 4)
#define D16(i) D8(i), D8(i + 8)
#define D1_NAMES "%0, %1, %2, %3"
#define D2_NAMES "%0, %1, %2, %3, %4, %5, %6, %7"
#define D4_NAMES \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define D8_NAMES \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define D16_NAMES \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// A in registers; in shared memory.
#define WGMMA(blocks, n, a0, a1, a2, a3, b, p, trans)                                                                       \
    template <int TRANSPOSED = 0>                                                                                           \
    __device__ __forceinline__ void wgmma(float (&d)[blocks][4], const u32 (&a)[4], u64 b_operand, u32 accumulate) {        \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p ", 0;\n"                                                       \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" D##blocks##_NAMES "}, "                     \
                     "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", p, 1, 1, %" #trans ";\n}"                             \
                     : D##blocks(0)                                                                                         \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_operand), "r"(accumulate), "n"(TRANSPOSED));       \
    }                                                                                                                       \
    template <int TRANSPOSED = 0>                                                                                           \
    __device__ __forceinline__ void wgmma(float (&d)[blocks][4], u64 a_operand, u64 b_operand, u32 accumulate) {            \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #a2 ", 0;\n"                                                      \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" D##blocks##_NAMES "}, "                     \
                     "%" #a0 ", %" #a1 ", p, 1, 1, 0, %" #a3 ";\n}"                                                          \
                     : D##blocks(0)                                                                                         \
                     : "l"(a_operand), "l"(b_operand), "r"(accumulate), "n"(TRANSPOSED));                                   \
    }

WGMMA(1, 8, 4, 5, 6, 7, 8, 9, 10)
WGMMA(2, 16, 8, 9, 10, 11, 12, 13, 14)
WGMMA(4, 32, 16, 17, 18, 19, 20, 21, 22)
WGMMA(8, 64, 32, 33, 34, 35, 36, 37, 38)
WGMMA(16, 128, 64, 65, 66, 67, 68, 69, 70)

#undef WGMMA

#endif
