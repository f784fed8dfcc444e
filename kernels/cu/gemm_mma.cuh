// One thread block's product by mma.sync: eight tiles of 16 weight rows with up to 128 rows of an activation image.
//
// Weights are the register operand. Steps of 16 positions, and groups, are taken in ascending order whatever N is, so that an
// element of the result depends on its own weight row and activation row alone.
#pragma once

#include "tensor.cuh"

// How eight warps share 128 outputs x N tokens: a warp has ROWS tiles of 16 outputs and COLS blocks of 8 tokens.
template <int N> struct MmaShape {
    static constexpr int ROWS = N == 128 ? 2 : 1;
    static constexpr int COLS = N == 128 ? 8 : N / 8;
    static constexpr int STAGES = 3;
    __device__ static int tile(int warp) { return N == 128 ? (warp & 3) * 2 : warp; }
    __device__ static int block(int warp) { return N == 128 ? (warp >> 2) * 8 : 0; }
};

constexpr u32 BF16_TILE_STAGE = 2048;  // 16 rows x 64 columns
constexpr u32 BF16_WEIGHT_STAGE = 8 * BF16_TILE_STAGE;

// Fragments of B for step `step` of a stage of CHUNKS chunks, blocks `block` and `block + 1`: b[0..1] and b[2..3].
template <int CHUNKS> __device__ __forceinline__ void activation_fragments(u32 (&b)[4], u32 stage, int block, int step, int lane) {
    load_matrices(b, stage + (block + (lane >> 4)) * (CHUNKS * 128) + (2 * step + ((lane >> 3) & 1)) * 128 + (lane & 7) * 16);
}

// acc = W x, INT4 or INT8. `tile(i)` gives the integers of the block's tile i, `scales(i)` its scales; `image` is
// the panel, `pitch` bytes from group to group, of which `blocks` blocks are wanted; `groups` of 128 columns. `shared` has STAGES * N * 256 bytes.
template <u32 FORMAT, int N, class Tile, class Scales>
__device__ __forceinline__ void integers_by_mma(float (&acc)[MmaShape<N>::ROWS][MmaShape<N>::COLS][4], Tile tile, Scales scales,
                                            const u8* image, u32 pitch, int blocks, int groups, u8* shared) {
    using Shape = MmaShape<N>;
    using Words = RunWords<FORMAT>;
    constexpr int ROWS = Shape::ROWS, COLS = Shape::COLS;
    const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, row = lane >> 2, run = lane & 3;
    const int first_tile = Shape::tile(warp), first_block = Shape::block(warp);
    const u32 base = shared_address(shared);
    const u8* integers[ROWS];
    const u16* scale[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        integers[i] = tile(first_tile + i) + row * Words::ROW_BYTES + run * Words::RUN_BYTES;
        scale[i] = scales(first_tile + i) + row;
    }
    auto fill = [&](int group) {
        if (group < groups) {
            const u32 stage = base + group % Shape::STAGES * (N * 256);
            const u8* from = image + (u64)group * pitch;
            for (int piece = tid; piece < blocks * 128; piece += GEMM_THREADS) copy16(stage + piece * 16, from + piece * 16);
        }
        copy_commit();
    };
    Words words[2][ROWS][2];
    float factor[2][ROWS][2];
    auto load = [&](int group, Words (&w)[ROWS][2], float (&f)[ROWS][2]) {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                w[i][h].load(integers[i] + group * Words::GROUP_BYTES + h * 8 * Words::ROW_BYTES);
                f[i][h] = load_scale(scale[i] + group * 16 + h * 8);
            }
    };
    auto multiply = [&](int group, Words (&w)[ROWS][2], float (&f)[ROWS][2]) {
        copy_wait<1>();
        __syncthreads();
        fill(group + 2);
        const u32 stage = base + group % Shape::STAGES * (N * 256);
        float sum[ROWS][COLS][4];
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLS; j++)
#pragma unroll
                for (int k = 0; k < 4; k++) sum[i][j][k] = 0.0f;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            u32 a[ROWS][2][4];
#pragma unroll
            for (int i = 0; i < ROWS; i++) fragments_of<FORMAT>(w[i][0], w[i][1], t, a[i][0], a[i][1]);
#pragma unroll
            for (int u = 0; u < 2; u++)
#pragma unroll
                for (int j = 0; j < COLS; j += 2) {
                    u32 b[4];
                    activation_fragments<16>(b, stage, first_block + j, 2 * t + u, lane);
#pragma unroll
                    for (int i = 0; i < ROWS; i++) {
                        mma(sum[i][j], a[i][u], b[0], b[1]);
                        mma(sum[i][j + 1], a[i][u], b[2], b[3]);
                    }
                }
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLS; j++)
#pragma unroll
                for (int k = 0; k < 4; k++) acc[i][j][k] = __fmaf_rn(f[i][k >> 1], sum[i][j][k], acc[i][j][k]);
        if (group + 2 < groups) load(group + 2, w, f);
    };
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < COLS; j++)
#pragma unroll
            for (int k = 0; k < 4; k++) acc[i][j][k] = 0.0f;
    fill(0);
    fill(1);
    load(0, words[0], factor[0]);
    if (groups > 1) load(1, words[1], factor[1]);
    for (int group = 0; group < groups; group += 2) {
        multiply(group, words[0], factor[0]);
        if (group + 1 < groups) multiply(group + 1, words[1], factor[1]);
    }
    copy_wait<0>();
    __syncthreads();
}

// Brings half `half` (64 positions) of eight BF16 tiles into a stage: [tile][64 positions][2 halves of 8 rows], the halves of
// positions 4 to 7 of every 8 exchanged, which keeps `load_matrices_transposed` free of bank conflicts. Columns past the end are zeros.
template <class Tile> __device__ __forceinline__ void fill_bf16_weights(u32 stage, Tile tile, u32 half, u32 cols) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 piece = threadIdx.x + i * GEMM_THREADS, at = piece & 127;
        const u32 within = (at >> 1) & 15, run = at >> 5, rows8 = at & 1;
        const u32 col = half / 2 * GROUP + 32 * run + 16 * (half & 1) + within;
        const u32 position = 8 * (within >> 1) + 2 * run + (within & 1);
        const bool present = col < cols;
        const u8* from = tile(piece >> 7) + (u64)(present ? col : 0) * 32 + rows8 * 16;
        copy16_or_zero(stage + (piece >> 7) * BF16_TILE_STAGE + position * 32 + ((rows8 ^ ((position >> 2) & 1)) << 4), from, present);
    }
}

// Fragment of A for step `step` of a stage's tile.
__device__ __forceinline__ void weight_fragment(u32 (&a)[4], u32 stage, int tile, int step, int lane) {
    const u32 position = 16 * step + (lane >> 4) * 8 + (lane & 7), rows8 = (lane >> 3) & 1;
    load_matrices_transposed(a, stage + tile * BF16_TILE_STAGE + position * 32 + ((rows8 ^ ((position >> 2) & 1)) << 4));
}

// Brings half `half` of the image's blocks into a stage, [block][8 chunks][8 rows][8].
__device__ __forceinline__ void fill_half_image(u32 stage, const u8* image, u32 pitch, int blocks, u32 half) {
    const u8* group = image + (u64)(half / 2) * pitch + (half & 1) * 1024;
    for (int piece = threadIdx.x; piece < blocks * 64; piece += GEMM_THREADS) {
        copy16(stage + piece * 16, group + (piece >> 6) * BLOCK_BYTES + (piece & 63) * 16);
    }
}

// acc = W x, BF16. As `integers_by_mma`; `shared` has STAGES * (N * 128 + BF16_WEIGHT_STAGE) bytes.
template <int N, class Tile>
__device__ __forceinline__ void bf16_by_mma(float (&acc)[MmaShape<N>::ROWS][MmaShape<N>::COLS][4], Tile tile, u32 cols,
                                            const u8* image, u32 pitch, int blocks, int groups, u8* shared) {
    using Shape = MmaShape<N>;
    constexpr int ROWS = Shape::ROWS, COLS = Shape::COLS;
    constexpr u32 STAGE = N * 128 + BF16_WEIGHT_STAGE;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int first_tile = Shape::tile(warp), first_block = Shape::block(warp), halves = 2 * groups;
    const u32 base = shared_address(shared);
    auto fill = [&](int half) {
        if (half < halves) {
            const u32 stage = base + half % Shape::STAGES * STAGE;
            fill_half_image(stage + BF16_WEIGHT_STAGE, image, pitch, blocks, half);
            fill_bf16_weights(stage, tile, half, cols);
        }
        copy_commit();
    };
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < COLS; j++)
#pragma unroll
            for (int k = 0; k < 4; k++) acc[i][j][k] = 0.0f;
    fill(0);
    fill(1);
    for (int half = 0; half < halves; half++) {
        copy_wait<1>();
        __syncthreads();
        fill(half + 2);
        const u32 stage = base + half % Shape::STAGES * STAGE;
#pragma unroll
        for (int step = 0; step < 4; step++) {
            u32 a[ROWS][4];
#pragma unroll
            for (int i = 0; i < ROWS; i++) weight_fragment(a[i], stage, first_tile + i, step, lane);
#pragma unroll
            for (int j = 0; j < COLS; j += 2) {
                u32 b[4];
                activation_fragments<8>(b, stage + BF16_WEIGHT_STAGE, first_block + j, step, lane);
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
                    mma(acc[i][j], a[i], b[0], b[1]);
                    mma(acc[i][j + 1], a[i], b[2], b[3]);
                }
            }
        }
    }
    copy_wait<0>();
    __syncthreads();
}
