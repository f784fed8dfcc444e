// What the tensor-core kernels share: PTX wrappers, conversions, and the image that activations are read from.
//
// An activation image is BF16 and made of panels of up to 128 rows, each [group of 128 columns][block of 8 rows][16 chunks]
// [8 rows][8 positions]: 2,048 bytes for each block and group, and a panel's group contiguous, one copy. Position 16 (2 t + u) + 8 h + 2 c + e of a group holds its column 32 c + 8 t + 4 u + 2 h + e, so
// that the thread which holds run c of an INT4 row has the fragment of the tensor core in its registers. Missing rows of
// a block and missing columns of the last group are +0.0. Panels of neighbouring rows have room for 16 blocks, the last one too;
// those of a grouped GEMM's tiles have as many blocks as they need.
#pragma once

#include "contract.cuh"

using namespace assay;

constexpr u32 BLOCK_ROWS = 8;       // of an image
constexpr u32 BLOCK_BYTES = 2048;   // a block's group
constexpr u32 TILE_TOKENS = 128;    // image rows that one thread block takes, at most
constexpr u32 TILE_BLOCKS = TILE_TOKENS / BLOCK_ROWS;
constexpr u32 GEMM_THREADS = 256;

// Blocks that hold so many rows.
__device__ __forceinline__ u32 blocks_of(u32 rows) { return (rows + BLOCK_ROWS - 1) / BLOCK_ROWS; }

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Two f32 as a pair of BF16, `low` in the low half; to nearest, ties to even.
__device__ __forceinline__ u32 bf16_pair(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// 2^x within 2 ulp; 2^0 is 1 and 2^-inf is 0, exactly.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / x within 1 ulp; 1 / inf is 0.
__device__ __forceinline__ float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Weights are read once by a thread block: they pass by L1.
__device__ __forceinline__ uint4 load_weights(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

__device__ __forceinline__ float load_scale(const u16* p) {
    u16 bits;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(bits) : "l"(p));
    return bf16_to_f32(bits);
}

// ---- Asynchronous copies of 16 bytes -----------------------------------------------------------------------------

__device__ __forceinline__ void copy16(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
}

// Zeros where `present` is false; `from` must be a valid address all the same.
__device__ __forceinline__ void copy16_or_zero(u32 to, const void* from, bool present) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(present ? 16 : 0) : "memory");
}

__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING> __device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}

// ---- mma.sync ----------------------------------------------------------------------------------------------------

__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(u32 (&r)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}

// ---- Integers ----------------------------------------------------------------------------------------------------

// Eight weights of a word, as four pairs of BF16 integers: columns (0, 1), (2, 3), (4, 5), (6, 7) of the word. A nibble in the
// low bits of 0x4300 is 128 + (q + 8); less 136 that is q, exactly.
__device__ __forceinline__ void widen(u32 word, u32 (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 biased;
        asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(biased) : "r"(i ? word >> (4 * i) : word), "r"(0x000F000Fu), "r"(0x43004300u));
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pairs[i]) : "r"(biased), "r"(0x3F803F80u), "r"(0xC308C308u));
    }
}

// Four weights of a word of INT8, as two pairs of BF16 integers: its columns (0, 1), (2, 3). The seven low bits of a byte in the low bits of
// 0x4300 are 128 + them; less 128, or 256 where the sign bit is set, that is q, exactly.
__device__ __forceinline__ void widen_bytes(u32 word, u32& low, u32& high) {
    const auto pair = [](u32 bytes) {
        u32 biased, less, q;
        asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(biased) : "r"(bytes), "r"(0x007F007Fu), "r"(0x43004300u));
        asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(less) : "r"(bytes), "r"(0x00800080u), "r"(0xC300C300u));
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(q) : "r"(biased), "r"(0x3F803F80u), "r"(less));
        return q;
    };
    u32 bytes;
    asm("prmt.b32 %0, %1, 0, 0x4140;" : "=r"(bytes) : "r"(word));
    low = pair(bytes);
    asm("prmt.b32 %0, %1, 0, 0x4342;" : "=r"(bytes) : "r"(word));
    high = pair(bytes);
}

// Words of rows g and g + 8 become the fragments of two steps of 16 positions.
__device__ __forceinline__ void fragments(u32 row, u32 row8, u32 (&first)[4], u32 (&second)[4]) {
    u32 p[4], q[4];
    widen(row, p);
    widen(row8, q);
    first[0] = p[0]; first[1] = q[0]; first[2] = p[1]; first[3] = q[1];
    second[0] = p[2]; second[1] = q[2]; second[2] = p[3]; second[3] = q[3];
}

__device__ __forceinline__ u32 word_of(const uint4& v, int t) { return t == 0 ? v.x : t == 1 ? v.y : t == 2 ? v.z : v.w; }

// One row's weights in a run of 32 columns, as a thread holds them.
template <u32 FORMAT> struct RunWords {
    static constexpr int PIECES = FORMAT == INT8 ? 2 : 1;
    static constexpr int ROW_BYTES = FORMAT == INT8 ? 128 : 64;  // of a group
    static constexpr int RUN_BYTES = ROW_BYTES / 4, GROUP_BYTES = 16 * ROW_BYTES;
    uint4 piece[PIECES];

    __device__ __forceinline__ void load(const u8* from) {
#pragma unroll
        for (int i = 0; i < PIECES; i++) piece[i] = load_weights(from + 16 * i);
    }
};

// Columns 8 t to 8 t + 7 of the runs of rows g and g + 8 become the fragments of two steps of 16 positions.
template <u32 FORMAT>
__device__ __forceinline__ void fragments_of(const RunWords<FORMAT>& row, const RunWords<FORMAT>& row8, int t, u32 (&first)[4], u32 (&second)[4]) {
    if constexpr (FORMAT == INT8) {
        const int piece = t / 2, at = t % 2 * 2;
        widen_bytes(word_of(row.piece[piece], at), first[0], first[2]);
        widen_bytes(word_of(row8.piece[piece], at), first[1], first[3]);
        widen_bytes(word_of(row.piece[piece], at + 1), second[0], second[2]);
        widen_bytes(word_of(row8.piece[piece], at + 1), second[1], second[3]);
    } else {
        fragments(word_of(row.piece[0], t), word_of(row8.piece[0], t), first, second);
    }
}
