// Dense products for prefill: out [tokens, rows] = image [tokens, cols] W^T (+ bias), W INT4 or BF16. Twin: twin::linear, within the
// bound of tests/cuda/gemm.rs.
//
// INT4: the integers are exact in BF16; a group's products are summed in the tensor core in f32 and join the total by
// fma(scale, sum, total), group by group, as in the contract. BF16: one chain over all columns. Grid: (ceil(rows / 128),
// ceil(tokens / 128)).
#include "gemm_block.cuh"

template <bool WGMMA, bool INT4>
__device__ __forceinline__ void gemm(const u8* matrix, u32 rows, u32 cols, const u8* image, u64 tokens, const float* bias, float* out) {
    const u64 first = (u64)blockIdx.y * TILE_TOKENS;
    const int groups = (cols + GROUP - 1) / GROUP;
    RowsWork<INT4> work;
    work.weights = MatrixTiles<INT4>{matrix, rows, cols, groups};
    work.image = image + (u64)blockIdx.y * TILE_BLOCKS * groups * BLOCK_BYTES;
    work.count = (int)(tokens - first < TILE_TOKENS ? tokens - first : TILE_TOKENS);
    work.groups = groups;
    work.cols = cols;
    work.first_tile = blockIdx.x * 8;
    work.order = nullptr;
    work.first = first;
    work.bias = bias;
    work.out = out;
    run_block<WGMMA, INT4>(work);
}

#define GEMM(name, wgmma, int4)                                                                                             \
    extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 1)                                                           \
    name(const u8* matrix, u32 rows, u32 cols, const u8* image, u64 tokens, const float* bias, float* out) {               \
        gemm<wgmma, int4>(matrix, rows, cols, image, tokens, bias, out);                                                   \
    }

GEMM(gemm_int4_mma, false, true)
GEMM(gemm_bf16_mma, false, false)
GEMM(gemm_int4_wgmma, true, true)
GEMM(gemm_bf16_wgmma, true, false)
