// Activations from f32 rows into the image that GEMMs read (tensor.cuh), in place or gathered by expert; and the plan of a grouped GEMM.
#include "tensor.cuh"
#include "plan.cuh"

// Packs one group of a panel, which has room for `blocks` blocks. Row i comes from row `source(i)` of x; rows from `count`
// to the end of the last block of 8 are zeros.
template <class Source>
__device__ __forceinline__ void pack_panel(const float* x, u64 cols, u32 group, u8* panel, u32 blocks, u32 count, Source source) {
    const u32 chunk = threadIdx.x & 15;
    const u32 rows = blocks_of(count) * BLOCK_ROWS;
    for (u32 row = threadIdx.x >> 4; row < rows; row += blockDim.x >> 4) {
        u32 pairs[4] = {0, 0, 0, 0};
        if (row < count) {
            const float* from = x + (u64)source(row) * cols;
#pragma unroll
            for (int run = 0; run < 4; run++) {
                const u64 col = (u64)group * GROUP + 32 * run + 2 * chunk;
                const float low = col < cols ? from[col] : 0.0f;
                const float high = col + 1 < cols ? from[col + 1] : 0.0f;
                pairs[run] = bf16_pair(low, high);
            }
        }
        u8* to = panel + (u64)(group * blocks + row / BLOCK_ROWS) * BLOCK_BYTES + chunk * 128 + row % BLOCK_ROWS * 16;
        *(uint4*)to = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
}

// x [tokens, cols] -> image of tokens rows. Grid: (groups, ceil(tokens / 128)).
extern "C" __global__ void __launch_bounds__(256) pack_rows(const float* x, u64 tokens, u64 cols, u8* image) {
    const u64 first = (u64)blockIdx.y * TILE_TOKENS;
    const u32 count = (u32)(tokens - first < TILE_TOKENS ? tokens - first : TILE_TOKENS);
    u8* panel = image + (u64)blockIdx.y * TILE_BLOCKS * gridDim.x * BLOCK_BYTES;
    pack_panel(x, cols, blockIdx.x, panel, TILE_BLOCKS, count, [=](u32 row) { return first + row; });
}

// x [tokens, cols] -> image of all slots in the order of the plan; slot s takes row s / top_k. Grid: (groups, tile bound).
extern "C" __global__ void __launch_bounds__(256)
pack_slots(const float* x, u64 cols, u32 top_k, const u32* order, const u32* plan, u8* image) {
    if (blockIdx.y >= plan[0]) return;
    const PlanTile tile = plan_tiles(plan)[blockIdx.y];
    pack_panel(x, cols, blockIdx.x, image + (u64)tile.first_block * gridDim.x * BLOCK_BYTES, blocks_of(tile.count), tile.count,
               [=](u32 row) { return (u64)(order[tile.first + row] / top_k); });
}

// The tiles of a grouped GEMM, of up to `tile_slots` slots each (a multiple of 8, at most 128), from offsets [experts + 1]; one block of 256
// threads. Experts without slots have no tile.
extern "C" __global__ void __launch_bounds__(256) grouped_plan(const u32* offsets, u32 experts, u32 tile_slots, u32* plan) {
    __shared__ u32 tiles_before[256], blocks_before[256];
    // Each thread takes neighbouring experts; sums of threads are scanned, then each thread writes its own tiles.
    const u32 each = (experts + blockDim.x - 1) / blockDim.x;
    const u32 begin = min(threadIdx.x * each, experts), end = min(begin + each, experts);
    u32 tiles = 0, blocks = 0;
    for (u32 expert = begin; expert < end; expert++) {
        const u32 slots = offsets[expert + 1] - offsets[expert];
        tiles += (slots + tile_slots - 1) / tile_slots;
        blocks += (slots + BLOCK_ROWS - 1) / BLOCK_ROWS;
    }
    tiles_before[threadIdx.x] = tiles;
    blocks_before[threadIdx.x] = blocks;
    for (u32 step = 1; step < blockDim.x; step *= 2) {
        __syncthreads();
        const u32 t = threadIdx.x >= step ? tiles_before[threadIdx.x - step] : 0;
        const u32 b = threadIdx.x >= step ? blocks_before[threadIdx.x - step] : 0;
        __syncthreads();
        tiles_before[threadIdx.x] += t;
        blocks_before[threadIdx.x] += b;
    }
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1) plan[0] = tiles_before[threadIdx.x];
    u32 tile = tiles_before[threadIdx.x] - tiles, block = blocks_before[threadIdx.x] - blocks;
    for (u32 expert = begin; expert < end; expert++) {
        const u32 last = offsets[expert + 1];
        for (u32 first = offsets[expert]; first < last; first += tile_slots) {
            const u32 count = min(last - first, tile_slots);
            plan_tiles(plan)[tile++] = PlanTile{expert, block, first, count};
            block += (count + BLOCK_ROWS - 1) / BLOCK_ROWS;
        }
    }
}
