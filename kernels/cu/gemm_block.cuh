// What a thread block of a GEMM does with its tile, whatever the instruction: chooses the width, multiplies, hands the
// accumulators over.
//
// `Work` has: `int count` rows of the image (1 to 128), their panel `const u8* image` and its `u32 pitch`, `int groups`, `u32 cols`; `tile(i)` the first byte of the
// block's weight tile i, `scales(i)`; `finish<N>(acc, first_tile, first_block, shared)`, where acc[i][j][k] of a thread
// belongs to output 16 (first_tile + i) + lane / 4 + 8 (k / 2) and token 8 (first_block + j) + 2 (lane % 4) + k % 2. For wgmma and integers it
// has `weight_rows()` instead of tiles and scales, and the rows are what it says.
#pragma once

#include "gemm_mma.cuh"
#include "gemm_wgmma.cuh"

constexpr int WGMMA_STAGES = 5;

template <bool WGMMA, u32 FORMAT, int N, class Work> __device__ __forceinline__ void multiply_block(const Work& work, u8* shared) {
    const auto tile = [&](int i) { return work.tile(i); };
    const auto scales = [&](int i) { return work.scales(i); };
    const int blocks = blocks_of(work.count), warp = threadIdx.x >> 5;
    if constexpr (WGMMA) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        __shared__ u64 full[WGMMA_STAGES], empty[WGMMA_STAGES];
        float acc[1][N / 8][4];
        if constexpr (FORMAT != BF16) {
            // All of the block's weights at once: where few rows share them, a warp's own loads are too few to fill the memory's pipe.
            if (threadIdx.x < 8) bulk_prefetch(work.tile(threadIdx.x), work.groups * RunWords<FORMAT>::GROUP_BYTES);
            else if (threadIdx.x < 16) bulk_prefetch(work.scales(threadIdx.x - 8), work.groups * 32);
            integers_by_wgmma<FORMAT, N, WGMMA_STAGES>(acc, work.weight_rows(), work.image, work.pitch, blocks, work.groups, shared, full, empty);
        } else
            bf16_by_wgmma<N>(acc, tile, work.cols, work.image, work.pitch, blocks, work.groups, shared);
        work.template finish<N>(acc, warp, 0, shared);
#else
        __trap();  // a launcher's error: these kernels are Hopper's
#endif
    } else {
        using Shape = MmaShape<N>;
        float acc[Shape::ROWS][Shape::COLS][4];
        if constexpr (FORMAT != BF16)
            integers_by_mma<FORMAT, N>(acc, tile, scales, work.image, work.pitch, blocks, work.groups, shared);
        else
            bf16_by_mma<N>(acc, tile, work.cols, work.image, work.pitch, blocks, work.groups, shared);
        work.template finish<N>(acc, Shape::tile(warp), Shape::block(warp), shared);
    }
}

// The least of three widths, up to WIDEST, that holds the rows: 128, or 32 where several blocks are to fit a multiprocessor. An element's bits are the
// same in each.
template <bool WGMMA, u32 FORMAT, int WIDEST = 128, class Work> __device__ __forceinline__ void run_block(const Work& work) {
    extern __shared__ __align__(1024) u8 shared[];
    if (work.count > WIDEST / 2)
        multiply_block<WGMMA, FORMAT, WIDEST>(work, shared);
    else if (work.count > WIDEST / 4)
        multiply_block<WGMMA, FORMAT, WIDEST / 2>(work, shared);
    else
        multiply_block<WGMMA, FORMAT, WIDEST / 4>(work, shared);
}

// Where the tiles of a matrix in the layout of kernels/src/layout.rs begin.
template <u32 FORMAT> struct MatrixTiles {
    static constexpr int GROUP_BYTES = RunWords<FORMAT>::GROUP_BYTES;
    const u8* matrix;
    u32 rows, cols;
    int groups;

    __device__ __forceinline__ u32 tiles() const { return (rows + 15) / 16; }
    // A tile past the end is the last one: it is computed and not stored.
    __device__ __forceinline__ u32 clamped(u32 tile) const { return min(tile, tiles() - 1); }
    __device__ __forceinline__ const u8* tile(u32 tile) const {
        return matrix + (u64)clamped(tile) * (FORMAT != BF16 ? (u64)groups * GROUP_BYTES : (u64)cols * 32);
    }
    __device__ __forceinline__ const u16* scales(u32 tile) const {
        return (const u16*)(matrix + (u64)tiles() * groups * GROUP_BYTES) + (u64)clamped(tile) * groups * 16;
    }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    // Rows g and g + 8 of a tile.
    __device__ __forceinline__ WeightRows weight_rows(u32 at, u32 g) const {
        constexpr int ROW_BYTES = RunWords<FORMAT>::ROW_BYTES;
        return WeightRows{tile(at) + g * ROW_BYTES, scales(at) + g, 8 * ROW_BYTES, 8 * sizeof(u16)};
    }
#endif
};

// out[slot, output] = acc + bias, f32. Row i of the block is slot order[first + i], or first + i without an order.
template <u32 FORMAT> struct RowsWork {
    MatrixTiles<FORMAT> weights;
    const u8* image;
    u32 pitch;
    int count, groups;
    u32 cols;
    u32 first_tile;
    const u32* order;
    u64 first;
    const float* bias;
    float* out;

    __device__ __forceinline__ const u8* tile(int i) const { return weights.tile(first_tile + i); }
    __device__ __forceinline__ const u16* scales(int i) const { return weights.scales(first_tile + i); }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    __device__ __forceinline__ WeightRows weight_rows() const {
        return weights.weight_rows(first_tile + threadIdx.x / 32, threadIdx.x % 32 / 4);
    }
#endif

    template <int N, int ROWS, int COLS>
    __device__ __forceinline__ void finish(const float (&acc)[ROWS][COLS][4], int warp_tile, int warp_block, u8*) const {
        const int lane = threadIdx.x & 31;
        const u32 first_output = (first_tile + warp_tile) * 16 + (lane >> 2);
        float add[ROWS][2];
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const u32 output = first_output + 16 * i + 8 * h;
                add[i][h] = bias && output < weights.rows ? bias[output] : 0.0f;
            }
#pragma unroll
        for (int j = 0; j < COLS; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int token = 8 * (warp_block + j) + 2 * (lane & 3) + e;
                if (token >= count) continue;
                float* row = out + (order ? order[first + token] : first + token) * weights.rows;
#pragma unroll
                for (int i = 0; i < ROWS; i++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        const u32 output = first_output + 16 * i + 8 * h;
                        const float value = acc[i][j][2 * h + e];
                        if (output < weights.rows) row[output] = bias ? value + add[i][h] : value;
                    }
            }
    }
};
