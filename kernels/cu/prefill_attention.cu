// Causal attention of many queries over a layer's KV cache on tensor cores (FlashAttention, arXiv 2205.14135, in its second form
// 2307.08691). Twin: twin::attention, within the bound of tests/cuda/prefill_attention.rs.
//
// Keys come in tiles at absolute positions in ascending order, and a tile of which a row sees nothing multiplies that row's
// state by exactly 1 and adds exactly 0: a row's bits depend on its query and its keys alone, not on the rows beside it or on
// the chunk. (A masked value that is infinite or NaN would not be 0: values are finite.)
// Queries and the softmax's weights are rounded to BF16, as are keys and values of an F32 cache; sums are f32.
#include "attention.cuh"

constexpr int ATTENTION_THREADS = 128;

// How HEAD_DIM is cut: rows of a block in units of 64, positions of a tile.
template <int HEAD_DIM> struct AttentionShape {
    static constexpr int ROWS = HEAD_DIM == 256 ? 1 : 2;
    static constexpr int POSITIONS = HEAD_DIM == 256 ? 32 : 64;
    static constexpr int CHUNKS = HEAD_DIM / 8;  // of 16 bytes in a row
    static constexpr int BLOCK_QUERIES = 64 * ROWS;
    static constexpr u32 QUERY_BYTES = BLOCK_QUERIES * HEAD_DIM * 2;
    static constexpr u32 KEY_BYTES = POSITIONS * HEAD_DIM * 2;
    static constexpr u32 STAGE = 2 * KEY_BYTES;
    static constexpr u32 SHARED = QUERY_BYTES + 2 * STAGE;
};

// Byte of a chunk in rows of CHUNKS chunks, permuted so that eight rows of a column lie in different banks.
template <int CHUNKS> __device__ __forceinline__ u32 swizzled(u32 row, u32 chunk) {
    const u32 x = CHUNKS >= 8 ? row & 7 : (row >> 1) & 3;
    return (row * CHUNKS + (chunk ^ x)) * 16;
}

template <int HEAD_DIM, bool BF16> struct AttentionTile {
    using Shape = AttentionShape<HEAD_DIM>;
    static constexpr int ELEMENT = BF16 ? 2 : 4;

    // Brings keys and values of tile `tile` into a stage; values from `end` on become zeros, since what they hold is unknown.
    // Keys [POSITIONS / 16][HEAD_DIM][2 halves of 8 positions], the halves of dimensions 4 to 7 of every 8 exchanged.
    __device__ static void load(u32 stage, const u8* cache, u32 kv_head, u32 kv_heads, u32 tile, u32 end) {
        constexpr int PIECES = Shape::POSITIONS * HEAD_DIM / 8;
        const u32 first = tile * Shape::POSITIONS;
        const u8* split = cache + ((u64)(first / SPLIT) * kv_heads + kv_head) * (2 * SPLIT * HEAD_DIM * ELEMENT);
        const u8* keys = split + (u64)(first % SPLIT) * HEAD_DIM * ELEMENT;
        const u8* values = keys + (u64)SPLIT * HEAD_DIM * ELEMENT;
#pragma unroll(BF16 ? 4 : 1)
        for (int piece = threadIdx.x; piece < PIECES; piece += ATTENTION_THREADS) {
            const u32 key_to = stage + (piece ^ ((piece >> 3) & 1)) * 16;
            const u32 position = piece / Shape::CHUNKS;
            const u32 value_to = stage + Shape::KEY_BYTES + swizzled<Shape::CHUNKS>(position, piece % Shape::CHUNKS);
            const bool present = first + position < end;
            if constexpr (BF16) {
                copy16(key_to, keys + piece * 16);
                copy16_or_zero(value_to, values + piece * 16, present);
            } else {
                store16(key_to, eight_bf16((const float*)keys + piece * 8));
                store16(value_to, present ? eight_bf16((const float*)values + piece * 8) : make_uint4(0, 0, 0, 0));
            }
        }
        copy_commit();
    }
};

template <int HEAD_DIM, bool BF16> __device__ __forceinline__ void attend(const AttentionArgs& args) {
    using Shape = AttentionShape<HEAD_DIM>;
    using Tile = AttentionTile<HEAD_DIM, BF16>;
    constexpr int ROWS = Shape::ROWS, POSITIONS = Shape::POSITIONS, CHUNKS = Shape::CHUNKS;
    constexpr int SCORES = POSITIONS / 8, DIMS = HEAD_DIM / 8;
    extern __shared__ __align__(128) u8 shared[];
    const u32 queries = shared_address(shared), stages = queries + Shape::QUERY_BYTES;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const u32 group = args.heads / args.kv_heads, kv_head = blockIdx.x;
    // The last rows have the most to do: they start first.
    const u32 total = args.tokens * group, first_row = (gridDim.y - 1 - blockIdx.y) * Shape::BLOCK_QUERIES;
    const u32 last_row = min(first_row + Shape::BLOCK_QUERIES, total) - 1;

    const u32 first_token = first_row / group, last_token = last_row / group;
    const u32 end = args.first_position + args.tokens;
    const u32 oldest = args.first_position + first_token, newest = args.first_position + last_token;
    const u32 first_tile = first_seen(oldest, args.window) / POSITIONS, last_tile = newest / POSITIONS;
    Tile::load(stages, args.cache, kv_head, args.kv_heads, first_tile, end);

    for (int piece = threadIdx.x; piece < Shape::BLOCK_QUERIES * CHUNKS; piece += ATTENTION_THREADS) {
        const u32 row = min(first_row + piece / CHUNKS, last_row);
        const u64 head = (u64)(row / group) * args.heads + kv_head * group + row % group;
        store16(queries + swizzled<CHUNKS>(piece / CHUNKS, piece % CHUNKS), eight_bf16(args.q + head * HEAD_DIM + piece % CHUNKS * 8));
    }

    // Rows of a thread: 16 ROWS warp + 16 i + lane / 4 + 8 h. Scores are in units of log 2.
    const float factor = args.scale * LOG2_E;
    u32 to[ROWS][2];
    float maximum[ROWS][2], sum[ROWS][2], out[ROWS][DIMS][4];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const u32 row = min(first_row + (warp * ROWS + i) * 16 + (lane >> 2) + 8 * h, last_row);
            to[i][h] = args.first_position + row / group;
            maximum[i][h] = args.sinks ? args.sinks[kv_head * group + row % group] * LOG2_E : -infinity();
            // The four threads of a row add their sums up at the end: one of them starts with the sink's.
            sum[i][h] = args.sinks && (lane & 3) == 0 ? 1.0f : 0.0f;
        }
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int n = 0; n < DIMS; n++)
#pragma unroll
            for (int k = 0; k < 4; k++) out[i][n][k] = 0.0f;

    for (u32 tile = first_tile; tile <= last_tile; tile++) {
        copy_wait<0>();
        __syncthreads();
        const u32 keys = stages + ((tile - first_tile) & 1) * Shape::STAGE, values = keys + Shape::KEY_BYTES;
        if (tile < last_tile)
            Tile::load(stages + ((tile + 1 - first_tile) & 1) * Shape::STAGE, args.cache, kv_head, args.kv_heads, tile + 1, end);

        float score[ROWS][SCORES][4];
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int n = 0; n < SCORES; n++)
#pragma unroll
                for (int k = 0; k < 4; k++) score[i][n][k] = 0.0f;
#pragma unroll
        for (int step = 0; step < HEAD_DIM / 16; step++) {
            u32 a[ROWS][4];
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                load_matrices(a[i], queries + swizzled<CHUNKS>((warp * ROWS + i) * 16 + (lane & 15), 2 * step + (lane >> 4)));
            const u32 dim = 16 * step + (lane & 15), half = (lane >> 4) ^ ((dim >> 2) & 1);
#pragma unroll
            for (int n = 0; n < SCORES; n += 2) {
                u32 b[4];
                load_matrices_transposed(b, keys + (n / 2 * HEAD_DIM + dim) * 32 + half * 16);
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
                    mma(score[i][n], a[i], b[0], b[1]);
                    mma(score[i][n + 1], a[i], b[2], b[3]);
                }
            }
        }

        const u32 first = tile * POSITIONS;
        if (first + POSITIONS > oldest + 1 || first < first_seen(newest, args.window)) {
#pragma unroll
            for (int i = 0; i < ROWS; i++)
#pragma unroll
                for (int n = 0; n < SCORES; n++)
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        const u32 position = first + 8 * n + 2 * (lane & 3) + (k & 1);
                        if (position > to[i][k >> 1] || position < first_seen(to[i][k >> 1], args.window)) score[i][n][k] = -infinity();
                    }
        }

#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float largest = -infinity();
#pragma unroll
                for (int n = 0; n < SCORES; n++) largest = fmaxf(largest, fmaxf(score[i][n][2 * h], score[i][n][2 * h + 1]));
                largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
                largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
                const float before = maximum[i][h], after = fmaxf(before, largest * factor);
                // A row that has seen nothing yet stays as it is: all its weights are 0.
                const float anchor = after == -infinity() ? 0.0f : after;
                const float keep = exp2_fast(before - anchor);
                maximum[i][h] = after;
                float total = sum[i][h] * keep;
#pragma unroll
                for (int n = 0; n < SCORES; n++)
#pragma unroll
                    for (int k = 2 * h; k < 2 * h + 2; k++) {
                        score[i][n][k] = exp2_fast(__fmaf_rn(score[i][n][k], factor, -anchor));
                        total += score[i][n][k];
                    }
                sum[i][h] = total;
#pragma unroll
                for (int n = 0; n < DIMS; n++) {
                    out[i][n][2 * h] *= keep;
                    out[i][n][2 * h + 1] *= keep;
                }
            }

#pragma unroll
        for (int step = 0; step < POSITIONS / 16; step++) {
            u32 a[ROWS][4];
#pragma unroll
            for (int i = 0; i < ROWS; i++)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const float* pair = &score[i][2 * step + (k >> 1)][2 * (k & 1)];
                    a[i][k] = bf16_pair(pair[0], pair[1]);
                }
#pragma unroll
            for (int n = 0; n < DIMS; n += 2) {
                u32 b[4];
                load_matrices_transposed(b, values + swizzled<CHUNKS>(16 * step + (lane & 15), n + (lane >> 4)));
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
                    mma(out[i][n], a[i], b[0], b[1]);
                    mma(out[i][n + 1], a[i], b[2], b[3]);
                }
            }
        }
    }

#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float total = sum[i][h];
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            const u32 row = first_row + (warp * ROWS + i) * 16 + (lane >> 2) + 8 * h;
            if (row > last_row) continue;
            const u64 head = (u64)(row / group) * args.heads + kv_head * group + row % group;
            float* to = args.out + head * HEAD_DIM + 2 * (lane & 3);
#pragma unroll
            for (int n = 0; n < DIMS; n++)
                *(float2*)(to + 8 * n) = make_float2(__fdiv_rn(out[i][n][2 * h], total), __fdiv_rn(out[i][n][2 * h + 1], total));
        }
}

// Grid: (kv_heads, ceil(tokens * group / BLOCK_QUERIES)).
#define ATTENTION(head_dim, blocks)                                                                                         \
    extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS, blocks)                                                 \
    prefill_attention_bf16_##head_dim(const __grid_constant__ AttentionArgs args) { attend<head_dim, true>(args); }        \
    extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS, blocks)                                                 \
    prefill_attention_f32_##head_dim(const __grid_constant__ AttentionArgs args) { attend<head_dim, false>(args); }

ATTENTION(32, 2)
ATTENTION(64, 2)
ATTENTION(128, 2)
ATTENTION(256, 2)
