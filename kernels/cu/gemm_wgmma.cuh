// One thread block's product by wgmma (Hopper): eight tiles of 16 weight rows with up to 128 rows of an activation image.
//
// Two warpgroups of 64 outputs each. Integers go from memory to registers, are widened there and are the register operand; the image comes
// in bulk copies, a ring of stages of one group, and each group's product is scaled into the total while the other warpgroup
// multiplies. Order as in gemm_mma.cuh.
#pragma once

#include "async.cuh"
#include "gemm_mma.cuh"
#include "wgmma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Operand B in core matrices of 8 rows x 16 bytes without swizzle: 128 bytes apart along the positions, `block` bytes apart
// along the rows.
__device__ __forceinline__ Operand image_operand(u32 address, u32 block) { return Operand(address, 128, block, 0); }

// Where the two weight rows of a thread, g and g + 8 of the warp's 16, have their integers and scales.
struct WeightRows {
    const u8* integers;  // of row g
    const u16* scale;
    u64 to_integers, to_scale;  // bytes from row g to row g + 8
};

// acc = W x, INT4 or INT8, 16 rows a warp. Arguments as in `integers_by_mma`; `shared` has STAGES * N * 256 bytes and is aligned to 128.
// Warps end when they end: nothing waits for the block's last.
template <u32 FORMAT, int N, int STAGES>
__device__ __forceinline__ void integers_by_wgmma(float (&acc)[1][N / 8][4], const WeightRows& rows, const u8* image, u32 pitch,
                                              int blocks, int groups, u8* shared, u64 (&full)[STAGES], u64 (&empty)[STAGES]) {
    using Words = RunWords<FORMAT>;
    constexpr u32 STAGE = N * 256;
    constexpr int SLACK = 2;  // groups between the last use of a stage and its refill, so that nobody waits for it
    const int tid = threadIdx.x, lane = tid & 31;
    const u8* integers = rows.integers + (lane & 3) * Words::RUN_BYTES;
    const u32 base = shared_address(shared);
    if (tid == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&full[i], 1);
            barrier_init(&empty[i], GEMM_THREADS / 32);
        }
        barrier_init_fence();
    }
    __syncthreads();
    // By one thread.
    auto fill = [&](int group) {
        u64* b = &full[group % STAGES];
        barrier_expect(b, blocks * BLOCK_BYTES);
        bulk_copy(base + group % STAGES * STAGE, image + (u64)group * pitch, blocks * BLOCK_BYTES, b);
    };
    if (tid == 0)
        for (int group = 0; group < STAGES && group < groups; group++) fill(group);

    u32 fragment[2][8][4];
    Words words[2][2];
    float factor[2][2];
    auto load = [&](int group, Words (&w)[2]) {
        w[0].load(integers + group * Words::GROUP_BYTES);
        w[1].load(integers + rows.to_integers + group * Words::GROUP_BYTES);
    };
    auto load_factor = [&](int group, float (&f)[2]) {
        f[0] = load_scale(rows.scale + group * 16);
        f[1] = load_scale((const u16*)((const u8*)rows.scale + rows.to_scale) + group * 16);
    };
    auto convert = [&](const Words (&w)[2], u32 (&to)[8][4]) {
#pragma unroll
        for (int t = 0; t < 4; t++) fragments_of<FORMAT>(w[0], w[1], t, to[2 * t], to[2 * t + 1]);
    };
    float sum[N / 8][4];
    auto multiply = [&](int group, u32 (&now)[8][4], u32 (&next)[8][4], Words (&next_words)[2], float (&f)[2]) {
        const int stage = group % STAGES;
        barrier_wait(&full[stage], group / STAGES & 1);
        const Operand tokens = image_operand(base + stage * STAGE, BLOCK_BYTES);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 8; step++) wgmma(sum, now[step], tokens.at(step * 256), step > 0);
        wgmma_commit();
        if (tid == 0) {
            const int old = group - SLACK;
            if (old >= 0 && old + STAGES < groups) {
                barrier_wait(&empty[old % STAGES], old / STAGES & 1);
                fill(old + STAGES);
            }
        }
        __syncwarp();
        const float f0 = f[0], f1 = f[1];
        if (group + 1 < groups) convert(next_words, next);
        if (group + 3 < groups) load(group + 3, next_words);
        if (group + 2 < groups) load_factor(group + 2, f);
        wgmma_wait<0>();
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int k = 0; k < 4; k++) acc[0][j][k] = __fmaf_rn(k < 2 ? f0 : f1, sum[j][k], acc[0][j][k]);
        __syncwarp();
        if (lane == 0) barrier_arrive(&empty[stage]);
    };
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int k = 0; k < 4; k++) acc[0][j][k] = 0.0f;
    load(0, words[0]);
    load_factor(0, factor[0]);
    if (groups > 1) {
        load(1, words[1]);
        load_factor(1, factor[1]);
    }
    convert(words[0], fragment[0]);
    if (groups > 2) load(2, words[0]);
    for (int group = 0; group < groups; group += 2) {
        multiply(group, fragment[0], fragment[1], words[1], factor[0]);
        if (group + 1 < groups) multiply(group + 1, fragment[1], fragment[0], words[0], factor[1]);
    }
}

// acc = W x, BF16. Weights pass through shared memory; `shared` has 4 * (N * 128 + BF16_WEIGHT_STAGE) bytes.
template <int N, class Tile>
__device__ __forceinline__ void bf16_by_wgmma(float (&acc)[1][N / 8][4], Tile tile, u32 cols, const u8* image, u32 pitch,
                                              int blocks, int groups, u8* shared) {
    constexpr int STAGES = 4;
    constexpr u32 STAGE = N * 128 + BF16_WEIGHT_STAGE;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, halves = 2 * groups;
    const u32 base = shared_address(shared);
    auto fill = [&](int half) {
        if (half < halves) {
            const u32 stage = base + half % STAGES * STAGE;
            fill_half_image(stage + BF16_WEIGHT_STAGE, image, pitch, blocks, half);
            fill_bf16_weights(stage, tile, half, cols);
        }
        copy_commit();
    };
    auto arrived = [&] {
        async_proxy_fence();
        __syncthreads();
    };
    auto load = [&](int half, u32 (&a)[4][4]) {
#pragma unroll
        for (int step = 0; step < 4; step++) weight_fragment(a[step], base + half % STAGES * STAGE, warp, step, lane);
    };
    u32 fragment[2][4][4];
    auto multiply = [&](int half, u32 (&now)[4][4], u32 (&next)[4][4]) {
        const Operand tokens = image_operand(base + half % STAGES * STAGE + BF16_WEIGHT_STAGE, 1024);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++) wgmma(acc[0], now[step], tokens.at(step * 256), 1);
        wgmma_commit();
        copy_wait<1>();
        arrived();       // half + 1 is here, and every warp is done with half - 1
        fill(half + 3);
        if (half + 1 < halves) load(half + 1, next);
        wgmma_wait<0>();
    };
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int k = 0; k < 4; k++) acc[0][j][k] = 0.0f;
    fill(0);
    fill(1);
    fill(2);
    copy_wait<2>();
    arrived();
    load(0, fragment[0]);
    for (int half = 0; half < halves; half += 2) {
        multiply(half, fragment[0], fragment[1]);
        multiply(half + 1, fragment[1], fragment[0]);
    }
    copy_wait<0>();
    __syncthreads();
}

#endif
