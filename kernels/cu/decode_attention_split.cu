// One token's attention over a BF16 cache of up to 1,024 positions in sight, by blocks that have one split each: what `attend` does, with heads of 128.
//
// From the wait on, a token's time is that of the instructions that follow each other. So sizes are constants, each of eight warps has a run, and half of
// the positions or dimensions, and keys and values are there before the wait.
#include "decode_attention_wide.cuh"

using namespace assay;

constexpr u32 WARPS = 8;
constexpr u32 THREADS = 32 * WARPS;

// Grid (splits, or the next power of two, in a cluster; blocks of heads).
template <int HEADS> __device__ __forceinline__ void attend_split(const Attend& form) {
    extern __shared__ __align__(16) u8 shared[];
    __shared__ u64 arrivals[3];  // of keys, of values, and of what the cluster's other blocks have found
    __shared__ float run_sums[HEADS][RUNS];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, side = warp / RUNS, c = warp % RUNS;
    const auto [kv_head, first, first_head, count] = Heads<HEADS>(form);
    const auto [position, end, from, first_split, splits] = Seen(form);
    if (blockIdx.x >= splits) {
        if (form.clustered) cluster_arrive();
        wait_for_previous();
        return;
    }
    Carve carve{shared};
    u8* keys = carve.take<u8>(SPLIT / TILE * TILE_PITCH);
    u8* values = carve.take<u8>(SPLIT * DIM * 2);
    float* scores = carve.take<float>(HEADS * RUNS * SPLIT);  // of each run of dimensions
    float* sums = carve.take<float>(HEADS * RUNS * DIM);      // of each run of positions
    float* q = carve.take<float>(HEADS * DIM);
    float* p = carve.take<float>(WARPS * HEADS * RUN);  // of a warp's run
    float* scratch = carve.take<float>((HEADS + 1) * HEAD_WORDS);
    float* found = carve.take<float>(form.clustered ? MOST_SPLITS * HEADS * FOUND_WORDS : 0);  // in a cluster's first block, [splits][HEADS]: o, m, l
    const u32 split = first_split + blockIdx.x, start = split * SPLIT, lo = from > start ? from - start : 0, hi = min(SPLIT, end - start);
    const bool newest = end - start <= SPLIT, alone = splits == 1;
    const u32 place = position - start, tiles = (hi + TILE - 1) / TILE;
    u8* cached = form.cache + (u64(split) * form.kv_heads + kv_head) * SPLIT * DIM * 4;
    if (threadIdx.x == 0) {
        arrival_init(arrivals);
        arrival_init(arrivals + 1);
        arrival_init(arrivals + 2);
        arrivals_ready();
        if (!alone && blockIdx.x == 0) arrival_expect(arrivals + 2, (splits - 1) * count * (DIM + 2) * sizeof(float));
        // The token's own row is not there yet; what is copied in its place is overwritten.
        arrival_expect(arrivals, tiles * BF16_COL_BYTES * DIM);
        for (u32 tile = 0; tile < tiles; ++tile) copy_bulk(keys + tile * TILE_PITCH, cached + tile * BF16_COL_BYTES * DIM, BF16_COL_BYTES * DIM, arrivals);
        arrival_expect(arrivals + 1, hi * DIM * 2);
        copy_bulk(values, cached + SPLIT * DIM * 2, hi * DIM * 2, arrivals + 1);
    }
    if (form.clustered) {
        cluster_arrive();
        cluster_wait();  // all blocks have begun before one writes into another
    }
    __syncthreads();
    // Each query has a warp, the token's key the next one, and its value the one after that.
    const bool has_query = warp < count, has_key = newest && warp == HEADS, has_value = newest && warp == HEADS + 1;
    const Turn<true> turn(form, has_key ? form.k_norm : form.q_norm, position);
    arrival_wait(arrivals, 0);
    arrival_wait(arrivals + 1, 0);
    wait_for_previous();
    let_next_start();
    if (has_query || has_key) {
        float own[PIECES];
        load_head(has_key ? form.k + kv_head * DIM : form.q + (first_head + warp) * DIM, own);
        if (has_key ? form.k_norm : form.q_norm) norm(form, turn, scratch + warp * HEAD_WORDS, own);
        turn_head(form, turn, scratch + warp * HEAD_WORDS, own);
#pragma unroll
        for (u32 i = 0; i < PIECES; ++i) {
            const u32 d = i * 32 + lane;
            if (!has_key) {
                q[warp * DIM + d] = own[i];
                continue;
            }
            const u16 key = f32_to_bf16(own[i]);
            *(u16*)(keys + place / TILE * TILE_PITCH + d * BF16_COL_BYTES + place % TILE * 2) = key;
            if (first == 0) *(u16*)(cached + (place / TILE * DIM + d) * BF16_COL_BYTES + place % TILE * 2) = key;
        }
    } else if (has_value) {
        const uint2 four = four_of_value(form, kv_head);
        *(uint2*)(values + (place * DIM + 4 * lane) * 2) = four;
        if (first == 0) *(uint2*)(cached + (SPLIT + place) * DIM * 2 + 8 * lane) = four;
    }
    __syncthreads();
    {
        // Scores: two positions of a lane, a run of the dimensions.
        const u32 at = 64 * side + 2 * lane;
        const u8* key = keys + at / TILE * TILE_PITCH + c * RUN * BF16_COL_BYTES + at % TILE * 2;
        float one[HEADS] = {}, other[HEADS] = {};
#pragma unroll
        for (u32 k = 0; k < RUN; k += 4) {
            u32 w[4];
#pragma unroll
            for (u32 i = 0; i < 4; ++i) w[i] = *(const u32*)(key + (k + i) * BF16_COL_BYTES);
#pragma unroll
            for (int h = 0; h < HEADS; ++h) {
                const float4 f = *(const float4*)(q + h * DIM + c * RUN + k);
                one[h] = __fmaf_rn(f.x, low_half(w[0]), one[h]), other[h] = __fmaf_rn(f.x, high_half(w[0]), other[h]);
                one[h] = __fmaf_rn(f.y, low_half(w[1]), one[h]), other[h] = __fmaf_rn(f.y, high_half(w[1]), other[h]);
                one[h] = __fmaf_rn(f.z, low_half(w[2]), one[h]), other[h] = __fmaf_rn(f.z, high_half(w[2]), other[h]);
                one[h] = __fmaf_rn(f.w, low_half(w[3]), one[h]), other[h] = __fmaf_rn(f.w, high_half(w[3]), other[h]);
            }
        }
#pragma unroll
        for (int h = 0; h < HEADS; ++h) *(float2*)(scores + (h * RUNS + c) * SPLIT + at) = make_float2(one[h], other[h]);
    }
    __syncthreads();
    // Softmax: every warp finds the largest of all scores, and has the weights of its run.
    float largest[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        const float* mine = scores + h * RUNS * SPLIT;
        const auto score = [&](float a, float b, float c, float d) { return (0.0f + ((a + b) + (c + d))) * form.scale; };
        const float4 a = *(const float4*)(mine + 4 * lane), b = *(const float4*)(mine + SPLIT + 4 * lane);
        const float4 e = *(const float4*)(mine + 2 * SPLIT + 4 * lane), f = *(const float4*)(mine + 3 * SPLIT + 4 * lane);
        const float four[4] = {score(a.x, b.x, e.x, f.x), score(a.y, b.y, e.y, f.y), score(a.z, b.z, e.z, f.z), score(a.w, b.w, e.w, f.w)};
        largest[h] = -infinity();
#pragma unroll
        for (u32 i = 0; i < 4; ++i)
            if (4 * lane + i >= lo && 4 * lane + i < hi) largest[h] = larger(largest[h], four[i]);
        largest[h] = largest_of_warp(largest[h]);
        const float* own = mine + c * RUN + lane;
        p[(warp * HEADS + h) * RUN + lane] = assay::exp(score(own[0], own[SPLIT], own[2 * SPLIT], own[3 * SPLIT]) - largest[h]);
    }
    __syncwarp();
    {
        // Values: two dimensions of a lane, a run of the positions.
        const u8* value = values + c * RUN * DIM * 2 + (64 * side + 2 * lane) * 2;
        const float* weights = p + warp * HEADS * RUN;
        float one[HEADS] = {}, other[HEADS] = {}, sum[HEADS] = {};
        const u32 run_lo = run_length(lo, c * RUN), run_hi = run_length(hi, c * RUN);
        const auto step = [&](int h, float f, u32 two) {
            one[h] = __fmaf_rn(f, low_half(two), one[h]);
            other[h] = __fmaf_rn(f, high_half(two), other[h]);
            sum[h] = sum[h] + f;
        };
        if (run_lo == 0 && run_hi == RUN) {
#pragma unroll
            for (u32 k = 0; k < RUN; k += 4) {
                u32 w[4];
#pragma unroll
                for (u32 i = 0; i < 4; ++i) w[i] = *(const u32*)(value + (k + i) * DIM * 2);
#pragma unroll
                for (int h = 0; h < HEADS; ++h) {
                    const float4 f = *(const float4*)(weights + h * RUN + k);
                    step(h, f.x, w[0]);
                    step(h, f.y, w[1]);
                    step(h, f.z, w[2]);
                    step(h, f.w, w[3]);
                }
            }
        } else {
#pragma unroll 2
            for (u32 k = run_lo; k < run_hi; ++k) {
                const u32 w = *(const u32*)(value + k * DIM * 2);
#pragma unroll
                for (int h = 0; h < HEADS; ++h) step(h, weights[h * RUN + k], w);
            }
        }
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            *(float2*)(sums + (h * RUNS + c) * DIM + 64 * side + 2 * lane) = make_float2(one[h], other[h]);
            if (side == 0 && lane == 0) run_sums[h][c] = sum[h];
        }
    }
    __syncthreads();
    const u32 head = threadIdx.x / DIM, d = threadIdx.x % DIM;
    if (head >= count) return;
    const float* own = sums + head * RUNS * DIM + d;
    const float o = 0.0f + ((own[0] + own[DIM]) + (own[2 * DIM] + own[3 * DIM]));
    const float l = 0.0f + ((run_sums[head][0] + run_sums[head][1]) + (run_sums[head][2] + run_sums[head][3]));
    const float most = HEADS > 1 && head > 0 ? largest[HEADS - 1] : largest[0];
    if (!alone && blockIdx.x > 0) {
        float* to = found + (blockIdx.x * HEADS + head) * FOUND_WORDS;
        send(to + d, arrivals + 2, 0, o);
        if (d < 2) send(to + DIM + d, arrivals + 2, 0, d == 0 ? most : l);
        return;
    }
    // Lane j has what split j brings: the largest m up to it does not depend on the order in which it is found.
    const float sink = form.sinks ? form.sinks[first_head + head] : -infinity();
    float m = -infinity(), length = 0.0f;
    if (!alone) arrival_wait(arrivals + 2, 0);
    if (lane < splits) {
        const float* of = found + (lane * HEADS + head) * FOUND_WORDS + DIM;
        m = lane == 0 ? most : of[0];
        length = lane == 0 ? l : of[1];
    }
    float upto = m;
#pragma unroll
    for (u32 step = 1; step < MOST_SPLITS; step *= 2) {
        const float before = __shfl_up_sync(~0u, upto, step);
        if (lane >= step) upto = larger(upto, before);
    }
    float before = __shfl_up_sync(~0u, upto, 1);
    if (lane == 0) before = -infinity();
    const float now = larger(sink, upto), old = larger(sink, before);  // a sink that is NaN stays the maximum
    const float old_factor = assay::exp(old - now), new_factor = assay::exp(m - now);
    float total = 0.0f, sum = form.sinks ? 1.0f : 0.0f;
#pragma unroll 2
    for (u32 j = 0; j < splits; ++j) {
        const float a = __shfl_sync(~0u, old_factor, j), b = __shfl_sync(~0u, new_factor, j), of = __shfl_sync(~0u, length, j);
        sum = __fmaf_rn(of, b, sum * a);
        total = __fmaf_rn(j == 0 ? o : found[(j * HEADS + head) * FOUND_WORDS + d], b, total * a);
    }
    form.out[(first_head + head) * DIM + d] = __fdiv_rn(total, sum);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) attend_split_1(const __grid_constant__ Attend form) { attend_split<1>(form); }
extern "C" __global__ void __launch_bounds__(THREADS, 2) attend_split_2(const __grid_constant__ Attend form) { attend_split<2>(form); }
