// Products with one matrix, in the contract's order: twin in kernels/src/twin/linear.rs.
#include "dot.cuh"

using namespace assay;

// out[t, n] = w[n] . x[t] (+ bias[n]); a block takes UNITS tiles of rows for one token. Tokens are neighbours in the grid, so that
// a tile comes from memory once.
template <u32 FORMAT, int UNITS>
__device__ __forceinline__ void linear(const u8* matrix, u32 rows, u32 cols, const float* x, u32 tokens, const float* bias, float* out) {
    extern __shared__ __align__(16) u8 shared[];
    const u32 token = blockIdx.x % tokens, tile = blockIdx.x / tokens * UNITS;
    Unit units[UNITS];
    // A tile past the last is computed as the last and not stored.
#pragma unroll
    for (int u = 0; u < UNITS; ++u) units[u] = unit_of<FORMAT>(matrix, rows, cols, min(tile + u, (rows - 1) / TILE));
    const float total = block_dots<FORMAT, UNITS>(units, x + u64(token) * cols, cols, shared);
    const u32 row = tile * TILE + threadIdx.x;
    if (threadIdx.x < UNITS * TILE && row < rows) out[u64(token) * rows + row] = bias ? total + bias[row] : total;
}

#define LINEAR(name, format, units, blocks)                                                                                \
    extern "C" __global__ void __launch_bounds__(256, blocks) name(const u8* matrix, u32 rows, u32 cols, const float* x, \
                                                                   u32 tokens, const float* bias, float* out) {          \
        linear<format, units>(matrix, rows, cols, x, tokens, bias, out);                                                   \
    }

LINEAR(linear_int4_1, INT4, 1, 3)
LINEAR(linear_int4_2, INT4, 2, 3)
LINEAR(linear_int8_1, INT8, 1, 2)
LINEAR(linear_int8_2, INT8, 2, 2)
LINEAR(linear_bf16_1, BF16, 1, 2)
LINEAR(linear_bf16_2, BF16, 2, 2)
