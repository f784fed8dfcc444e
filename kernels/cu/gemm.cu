// Dense products for prefill: out [tokens, rows] = image [tokens, cols] W^T (+ bias), W INT4, INT8 or BF16, for up to four matrices that share an
// image. Twin: twin::linear, within the bound of tests/cuda/gemm.rs.
//
// Integers: they are exact in BF16; a group's products are summed in the tensor core in f32 and join the total by
// fma(scale, sum, total), group by group, as in the contract. BF16: one chain over all columns. Grid: (blocks of all
// matrices, ceil(tokens / tile_tokens)), with tiles of 32, 64 or 128 tokens: how many does not change a bit.
#include "gemm_block.cuh"

struct GemmMatrix {
    const u8* matrix;
    const float* bias;  // or null
    float* out;
    u32 rows;
    u32 first_block;    // blocks of 128 rows of the matrices before this one
};

struct GemmMatrices {
    GemmMatrix matrix[4];
    u32 count;
};

template <bool WGMMA, u32 FORMAT>
__device__ __forceinline__ void gemm(const GemmMatrices& matrices, u32 cols, const u8* image, u64 tokens, u32 tile_tokens) {
    u32 at = 0;
    while (at + 1 < matrices.count && blockIdx.x >= matrices.matrix[at + 1].first_block) at++;
    const GemmMatrix& chosen = matrices.matrix[at];
    const u64 first = (u64)blockIdx.y * tile_tokens;
    const int groups = (cols + GROUP - 1) / GROUP;
    RowsWork<FORMAT> work;
    work.weights = MatrixTiles<FORMAT>{chosen.matrix, chosen.rows, cols, groups};
    work.image = image + (first / TILE_TOKENS * TILE_BLOCKS * groups + first % TILE_TOKENS / BLOCK_ROWS) * BLOCK_BYTES;
    work.pitch = TILE_BLOCKS * BLOCK_BYTES;
    work.count = (int)(tokens - first < tile_tokens ? tokens - first : tile_tokens);
    work.groups = groups;
    work.cols = cols;
    work.first_tile = (blockIdx.x - chosen.first_block) * 8;
    work.order = nullptr;
    work.first = first;
    work.bias = chosen.bias;
    work.out = chosen.out;
    run_block<WGMMA, FORMAT>(work);
}

#define GEMM(name, wgmma, format)                                                                                             \
    extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 1)                                                           \
    name(const __grid_constant__ GemmMatrices matrices, u32 cols, const u8* image, u64 tokens, u32 tile_tokens) {          \
        gemm<wgmma, format>(matrices, cols, image, tokens, tile_tokens);                                                     \
    }

GEMM(gemm_int4_mma, false, INT4)
GEMM(gemm_int8_mma, false, INT8)
GEMM(gemm_bf16_mma, false, BF16)
GEMM(gemm_int4_wgmma, true, INT4)
GEMM(gemm_int8_wgmma, true, INT8)
GEMM(gemm_bf16_wgmma, true, BF16)
