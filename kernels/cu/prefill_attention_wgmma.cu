// Causal attention of many queries over a BF16 KV cache by wgmma (Hopper): FlashAttention as its third form arranges it (arXiv
// 2407.08608). Arithmetic and promises as in prefill_attention.cu, with tiles of a whole split.
//
// One warp brings tiles by the tensor copy engine; two warpgroups of 64 rows each multiply, or one where rows are few. A warpgroup issues the scores of tile j and the
// weighted values of tile j - 1 together, and does the softmax of j while the latter run; the two take turns to issue, so
// that one's softmax also overlaps the other's products. Blocks are persistent: the copies of the next rows' tiles start
// while the last rows end.
#include "async.cuh"
#include "attention.cuh"
#include "wgmma.cuh"

constexpr u32 POSITIONS = SPLIT;  // of a tile: what a split holds of a head
constexpr u32 WARPGROUP = 128;
constexpr u32 WARPGROUP_QUERIES = 64;
constexpr u32 STAGES = 2;
constexpr u32 PANEL = 64;  // columns that a swizzle of 128 bytes spans

struct alignas(64) TensorMap { u64 opaque[16]; };  // CUtensorMap

template <int HEAD_DIM> struct AttentionBytes {
    static constexpr u32 QUERIES = WARPGROUP_QUERIES * HEAD_DIM * 2;  // of a warpgroup
    static constexpr u32 TILE = POSITIONS * HEAD_DIM * 2;
};

// Rows of one turn of a block of so many warpgroups that multiply.
template <u32 CONSUMERS> struct AttentionWork {
    static constexpr u32 BLOCK_QUERIES = CONSUMERS * WARPGROUP_QUERIES;
    u32 kv_head, first_row, last_row, first_tile, last_tile;

    // The last rows have the most to do: they come first.
    __device__ __forceinline__ AttentionWork(const AttentionArgs& args, u32 index) {
        const u32 group = args.heads / args.kv_heads, rows = args.tokens * group;
        kv_head = index % args.kv_heads;
        first_row = ((rows - 1) / BLOCK_QUERIES - index / args.kv_heads) * BLOCK_QUERIES;
        last_row = min(first_row + BLOCK_QUERIES, rows) - 1;
        first_tile = first_seen(args.first_position + first_row / group, args.window) / POSITIONS;
        last_tile = (args.first_position + last_row / group) / POSITIONS;
    }
};

// Calls `visit` with the block's share of the work: every other round is dealt in reverse, which evens out the lengths.
template <u32 CONSUMERS, class Visit> __device__ __forceinline__ void for_each_work(const AttentionArgs& args, Visit visit) {
    using Work = AttentionWork<CONSUMERS>;
    const u32 rows = args.tokens * (args.heads / args.kv_heads);
    const u32 count = (rows + Work::BLOCK_QUERIES - 1) / Work::BLOCK_QUERIES * args.kv_heads;
    for (u32 first = 0, round = 0; first < count; first += gridDim.x, round++) {
        const u32 index = first + (round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        if (index < count) visit(Work(args, index));
    }
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

struct AttentionBarriers {
    u64 key_full[STAGES], key_empty[STAGES], value_full[STAGES], value_empty[STAGES];
};

// Keys of tile j are brought before the values of tile j - 1, in the order in which they are used.
template <int HEAD_DIM, u32 CONSUMERS>
__device__ __forceinline__ void bring_tiles(const AttentionArgs& args, const TensorMap* key_map, const TensorMap* value_map,
                                            u32 keys, u32 values, AttentionBarriers& barriers) {
    constexpr u32 TILE = AttentionBytes<HEAD_DIM>::TILE;
    u32 brought = 0, waiting = 0;  // `waiting`: the block of the cache whose keys have been brought last
    const auto bring_values = [&](u32 count, u32 block) {
        const u32 stage = count % STAGES;
        barrier_wait(&barriers.value_empty[stage], ~(count / STAGES) & 1);
        barrier_expect(&barriers.value_full[stage], TILE);
#pragma unroll
        for (u32 x = 0; x < HEAD_DIM; x += PANEL)
            tensor_copy(values + stage * TILE + x / PANEL * (POSITIONS * 128), value_map, x, 0, block, &barriers.value_full[stage]);
    };
    for_each_work<CONSUMERS>(args, [&](const AttentionWork<CONSUMERS>& work) {
        for (u32 tile = work.first_tile; tile <= work.last_tile; tile++, brought++) {
            const u32 block = tile * args.kv_heads + work.kv_head, stage = brought % STAGES;
            barrier_wait(&barriers.key_empty[stage], ~(brought / STAGES) & 1);
            barrier_expect(&barriers.key_full[stage], TILE);
            tensor_copy(keys + stage * TILE, key_map, 0, 0, block, &barriers.key_full[stage]);
            if (brought > 0) bring_values(brought - 1, waiting);
            waiting = block;
        }
    });
    if (brought > 0) bring_values(brought - 1, waiting);
}

// A warpgroup's queries as BF16, in panels of 64 dimensions [64 rows][128 bytes], swizzled by 128 bytes. The keys of a tile lie in memory as
// [dimension][16 positions], and the copy swizzles them by 128 bytes too; wgmma reads them as swizzled by 32 bytes, which finds in
// dimension d the keys of d ^ (d / 8 % 4). Queries are put in the same order.
template <int HEAD_DIM, class Work> __device__ __forceinline__ void bring_queries(const AttentionArgs& args, const Work& work, u32 first, u32 to) {
    constexpr u32 CHUNKS = HEAD_DIM / 8;
    const u32 group = args.heads / args.kv_heads;
    for (u32 piece = threadIdx.x % WARPGROUP; piece < WARPGROUP_QUERIES * CHUNKS; piece += WARPGROUP) {
        const u32 local = piece / CHUNKS, chunk = piece % CHUNKS;
        const u32 row = min(first + local, work.last_row);
        const u64 head = (u64)(row / group) * args.heads + work.kv_head * group + row % group;
        uint4 v = eight_bf16(args.q + head * HEAD_DIM + chunk * 8);
        if (chunk & 1) v = make_uint4(v.x << 16 | v.x >> 16, v.y << 16 | v.y >> 16, v.z << 16 | v.z >> 16, v.w << 16 | v.w >> 16);
        if (chunk & 2) v = make_uint4(v.y, v.x, v.w, v.z);
        store16(to + chunk / 8 * (WARPGROUP_QUERIES * 128) + local * 128 + (chunk % 8 ^ local % 8) * 16, v);
    }
}

template <int HEAD_DIM> struct Consumer {
    static constexpr u32 TILE = AttentionBytes<HEAD_DIM>::TILE;
    static constexpr int SCORES = POSITIONS / 8, DIMS = HEAD_DIM / 8;
    float score[SCORES][4], out[DIMS][4];
    u32 weight[POSITIONS / 16][4];
    float maximum[2], sum[2], keep[2];
    u32 position[2];  // of the thread's rows

    // score = queries x keys
    __device__ __forceinline__ void multiply_keys(const Operand& queries, u32 tile) {
        const Operand keys(tile, HEAD_DIM * 32, 256, 3);
#pragma unroll
        for (u32 step = 0; step < HEAD_DIM / 16; step++)
            wgmma<1>(score, queries.at(step / 4 * (WARPGROUP_QUERIES * 128) + step % 4 * 32), keys.at(step * 512), step > 0);
        wgmma_commit();
    }

    // out += weights x values
    __device__ __forceinline__ void multiply_values(u32 tile) {
        const Operand values(tile, POSITIONS * 128, 1024, 1);
#pragma unroll
        for (u32 step = 0; step < POSITIONS / 16; step++)
            wgmma<1>(out, weight[step], values.at(step * 2048), 1);
        wgmma_commit();
    }

    // Hides what the rows may not see of the tile that starts at `first`.
    __device__ __forceinline__ void mask(u32 first, u32 window) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int origin = (int)first + 2 * (int)(threadIdx.x & 3);
            const int last = (int)position[h] - origin, least = (int)first_seen(position[h], window) - origin;
#pragma unroll
            for (int n = 0; n < SCORES; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (8 * n + e > last || 8 * n + e < least) score[n][2 * h + e] = -infinity();
        }
    }

    // Scores to weights. `factor` turns scores into units of log 2. Leaves in `keep` what the sums so far are worth.
    __device__ __forceinline__ void soften(float factor) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float largest[2] = {score[0][2 * h], score[0][2 * h + 1]};
#pragma unroll
            for (int n = 1; n < SCORES; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) largest[e] = fmaxf(largest[e], score[n][2 * h + e]);
            float most = fmaxf(largest[0], largest[1]);
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            const float before = maximum[h], after = fmaxf(before, most * factor);
            // A row that has seen nothing yet stays as it is: all its weights are 0.
            const float anchor = after == -infinity() ? 0.0f : after;
            keep[h] = exp2_fast(before - anchor);
            maximum[h] = after;
            float part[2] = {0.0f, 0.0f};
#pragma unroll
            for (int n = 0; n < SCORES; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float& w = score[n][2 * h + e];
                    w = exp2_fast(__fmaf_rn(w, factor, -anchor));
                    part[e] += w;
                }
            sum[h] = __fmaf_rn(sum[h], keep[h], part[0] + part[1]);
        }
    }

    // What has been computed so far is computed before what follows, though that does not need it: the softmax before the wait.
    __device__ __forceinline__ void settle() {
#pragma unroll
        for (int n = 0; n < SCORES; n++)
#pragma unroll
            for (int k = 0; k < 4; k++) asm volatile("" : "+f"(score[n][k]) :: "memory");
    }

    // Weights as the operand of the values' product.
    __device__ __forceinline__ void round_weights() {
#pragma unroll
        for (int step = 0; step < POSITIONS / 16; step++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float* pair = &score[2 * step + (k >> 1)][2 * (k & 1)];
                weight[step][k] = bf16_pair(pair[0], pair[1]);
            }
    }

    // A maximum seldom changes: multiplying by 1 is left out, which changes no bit.
    __device__ __forceinline__ void rescale() {
        if (!__any_sync(0xffffffffu, keep[0] != 1.0f || keep[1] != 1.0f)) return;
#pragma unroll
        for (int n = 0; n < DIMS; n++)
#pragma unroll
            for (int k = 0; k < 4; k++) out[n][k] *= keep[k >> 1];
    }
};

// What a position past the last appended one holds is unknown: its values become zeros.
template <int HEAD_DIM> __device__ __forceinline__ void clear_values(u32 values, u32 from, u32 barrier) {
    for (u32 piece = threadIdx.x % WARPGROUP; piece < (POSITIONS - from) * HEAD_DIM / 8; piece += WARPGROUP) {
        const u32 row = from + piece / (HEAD_DIM / 8), chunk = piece % (HEAD_DIM / 8);
        store16(values + chunk / 8 * (POSITIONS * 128) + row * 128 + chunk % 8 * 16, make_uint4(0, 0, 0, 0));
    }
    async_proxy_fence();
    named_sync(barrier, WARPGROUP);
}

template <int HEAD_DIM, u32 CONSUMERS>
__device__ __forceinline__ void attend_rows(const AttentionArgs& args, u32 warpgroup, u32 queries, u32 keys, u32 values,
                                            AttentionBarriers& barriers) {
    constexpr u32 TILE = AttentionBytes<HEAD_DIM>::TILE;
    using State = Consumer<HEAD_DIM>;
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32 % 4;
    const u32 group = args.heads / args.kv_heads, end = args.first_position + args.tokens;
    const float factor = args.scale * LOG2_E;
    const Operand query_operand(queries, 16, 1024, 1);
    // Barriers: whose turn it is to issue, and one of each warpgroup's own.
    const u32 my_turn = 1 + warpgroup, other_turn = 2 - warpgroup, own = 3 + warpgroup;
    const auto take_turn = [&] { if (CONSUMERS > 1) named_sync(my_turn, CONSUMERS * WARPGROUP); };
    const auto give_turn = [&] { if (CONSUMERS > 1) named_arrive(other_turn, CONSUMERS * WARPGROUP); };
    if (warpgroup == 1) give_turn();
    u32 used = 0;  // tiles
    const auto await = [&](u64* full, u32 count) { barrier_wait(&full[count % STAGES], count / STAGES & 1); };
    const auto release = [&](u64* empty, u32 count) {
        __syncwarp();
        if (lane == 0) barrier_arrive(&empty[count % STAGES]);
    };
    for_each_work<CONSUMERS>(args, [&](const AttentionWork<CONSUMERS>& work) {
        State state;
        const u32 first_row = work.first_row + warpgroup * WARPGROUP_QUERIES;
        named_sync(own, WARPGROUP);  // every warp is done with the last queries
        bring_queries<HEAD_DIM>(args, work, first_row, queries);
        async_proxy_fence();
        named_sync(own, WARPGROUP);

        // Positions of the warpgroup's oldest and newest row; rows past the last repeat it.
        const u32 oldest = args.first_position + min(first_row, work.last_row) / group;
        const u32 newest = args.first_position + min(first_row + WARPGROUP_QUERIES - 1, work.last_row) / group;
        const u32 row = first_row + warp * 16 + lane / 4;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const u32 present = min(row + 8 * h, work.last_row);
            state.position[h] = args.first_position + present / group;
            state.maximum[h] = args.sinks ? args.sinks[work.kv_head * group + present % group] * LOG2_E : -infinity();
            // The four threads of a row add their sums up at the end: one of them starts with the sink's.
            state.sum[h] = args.sinks && lane % 4 == 0 ? 1.0f : 0.0f;
        }
#pragma unroll
        for (int n = 0; n < State::DIMS; n++)
#pragma unroll
            for (int k = 0; k < 4; k++) state.out[n][k] = 0.0f;
        const auto softmax = [&](u32 tile) {
            const u32 first = tile * POSITIONS;
            if (first + POSITIONS > oldest + 1 || first < first_seen(newest, args.window)) state.mask(first, args.window);
            state.soften(factor);
        };

        await(barriers.key_full, used);
        wgmma_fence();
        state.multiply_keys(query_operand, keys + used % STAGES * TILE);
        wgmma_wait<0>();
        release(barriers.key_empty, used);
        softmax(work.first_tile);
        state.round_weights();
        if (work.first_tile < work.last_tile) await(barriers.key_full, used + 1);
        for (u32 tile = work.first_tile + 1; tile <= work.last_tile; tile++) {
            used++;
            take_turn();
            wgmma_fence();
            state.multiply_keys(query_operand, keys + used % STAGES * TILE);
            await(barriers.value_full, used - 1);
            wgmma_fence();
            state.multiply_values(values + (used - 1) % STAGES * TILE);
            give_turn();
            wgmma_wait<1>();
            release(barriers.key_empty, used);
            softmax(tile);
            state.settle();
            if (tile < work.last_tile) await(barriers.key_full, used + 1);
            wgmma_wait<0>();
            release(barriers.value_empty, used - 1);
            state.rescale();
            state.round_weights();
        }
        await(barriers.value_full, used);
        const u32 last_values = values + used % STAGES * TILE, last_first = work.last_tile * POSITIONS;
        if (last_first + POSITIONS > end) clear_values<HEAD_DIM>(last_values, end - last_first, own);
        wgmma_fence();
        state.multiply_values(last_values);
        wgmma_wait<0>();
        release(barriers.value_empty, used);
        used++;

#pragma unroll
        for (int h = 0; h < 2; h++) {
            float total = state.sum[h];
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            const float inverse = __fdiv_rn(1.0f, total);
            const u32 at = row + 8 * h;
            if (at > work.last_row) continue;
            const u64 head = (u64)(at / group) * args.heads + work.kv_head * group + at % group;
            float* to = args.out + head * HEAD_DIM + 2 * (lane & 3);
#pragma unroll
            for (int n = 0; n < State::DIMS; n++)
                *(float2*)(to + 8 * n) = make_float2(state.out[n][2 * h] * inverse, state.out[n][2 * h + 1] * inverse);
        }
    });
    // The other's last arrival.
    if (warpgroup == 0) take_turn();
}

#endif

template <int HEAD_DIM, u32 CONSUMERS>
__device__ __forceinline__ void attend(const TensorMap& key_map, const TensorMap& value_map, const AttentionArgs& args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using Bytes = AttentionBytes<HEAD_DIM>;
    extern __shared__ u8 shared[];
    __shared__ AttentionBarriers barriers;
    const u32 queries = (shared_address(shared) + 1023) & ~1023u;
    const u32 keys = queries + CONSUMERS * Bytes::QUERIES, values = keys + STAGES * Bytes::TILE;
    const u32 warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / WARPGROUP, 0);  // known to be one value in a warp
    if (threadIdx.x == 0) {
        tensor_prefetch(&key_map);
        tensor_prefetch(&value_map);
        for (u32 i = 0; i < STAGES; i++) {
            barrier_init(&barriers.key_full[i], 1);
            barrier_init(&barriers.value_full[i], 1);
            barrier_init(&barriers.key_empty[i], CONSUMERS * 4);
            barrier_init(&barriers.value_empty[i], CONSUMERS * 4);
        }
        barrier_init_fence();
    }
    __syncthreads();
    if (warpgroup == CONSUMERS) {
        if constexpr (CONSUMERS > 1) fewer_registers<24>();
        if (threadIdx.x == CONSUMERS * WARPGROUP)
            bring_tiles<HEAD_DIM, CONSUMERS>(args, &key_map, &value_map, keys, values, barriers);
    } else {
        if constexpr (CONSUMERS > 1) more_registers<240>();
        attend_rows<HEAD_DIM, CONSUMERS>(args, warpgroup, queries + warpgroup * Bytes::QUERIES, keys, values, barriers);
    }
#else
    __trap();  // a launcher's error: these kernels are Hopper's
#endif
}

// Grid: at most as many blocks as the device has multiprocessors. Maps: of rows of 64 positions and dimensions, [block of the cache]
// [2 head_dim] rows of keys, [block][128 positions][head_dim / 64] of values.
#define ATTENTION(name, head_dim, consumers)                                                                                  \
    extern "C" __global__ void __launch_bounds__((consumers + 1) * WARPGROUP, 1)                                            \
    name(const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap values,                                  \
         const __grid_constant__ AttentionArgs args) {                                                                     \
        attend<head_dim, consumers>(keys, values, args);                                                                    \
    }

ATTENTION(prefill_attention_wgmma_64, 64, 2)
ATTENTION(prefill_attention_wgmma_128, 128, 2)
// Half the rows a block: where rows are so few that blocks of twice as many would leave multiprocessors idle.
ATTENTION(prefill_attention_short_64, 64, 1)
ATTENTION(prefill_attention_short_128, 128, 1)
