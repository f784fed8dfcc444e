// One token's attention over a BF16 cache of many splits: what `attend` does, with heads of 128.
//
// A block takes every gridDim.x-th split for up to HEADS query heads that share a key-value head. Of a part of the heads each of four warps has a run: of the
// dimensions where scores are found, of the positions where values are added up; a lane has four positions, or dimensions, of the part's heads. The
// time is that of the instructions, whose latencies four warps of each quarter of a multiprocessor hide; with parts of eight heads there are fewer
// instructions and half of the warps, and it takes longer.
#include "decode_attention_wide.cuh"

using namespace assay;

constexpr int PART = 4;  // heads of a part
constexpr u32 WEIGHTS_WORDS = RUNS * RUN_WORDS;

// Four columns of BF16.
struct Four {
    float at[4];
    __device__ __forceinline__ explicit Four(const u8* from) {
        const uint2 w = *(const uint2*)from;
        at[0] = low_half(w.x), at[1] = high_half(w.x), at[2] = low_half(w.y), at[3] = high_half(w.y);
    }
};

__device__ __forceinline__ void step(float (&acc)[PART][4], int h, float f, const Four& four) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[h][i] = __fmaf_rn(f, four.at[i], acc[h][i]);
}

// Chains of four neighbouring columns for every head of a part over a run: element k at `at + k * stride`, its factor for head h at `factors[h * PITCH + k]`. `every` is
// called with every fourth element.
template <u32 STRIDE, u32 PITCH, class Every>
__device__ __forceinline__ void chains(const u8* at, const float* factors, float (&acc)[PART][4], const Every& every) {
#pragma unroll 2
    for (u32 k = 0; k < RUN; k += 4) {
        const Four four[4] = {Four(at + k * STRIDE), Four(at + (k + 1) * STRIDE), Four(at + (k + 2) * STRIDE), Four(at + (k + 3) * STRIDE)};
        every(k);
#pragma unroll
        for (int h = 0; h < PART; ++h) {
            const float4 f = *(const float4*)(factors + h * PITCH + k);
            step(acc, h, f.x, four[0]);
            step(acc, h, f.y, four[1]);
            step(acc, h, f.z, four[2]);
            step(acc, h, f.w, four[3]);
        }
    }
}

// What a lane's four columns of every head of a part come to in this warp's run; a head's runs lie side by side.
__device__ __forceinline__ void store_run(float* to, const float (&acc)[PART][4]) {
#pragma unroll
    for (int h = 0; h < PART; ++h) *(float4*)(to + h * RUNS * SPLIT + 4 * (threadIdx.x % 32)) = make_float4(acc[h][0], acc[h][1], acc[h][2], acc[h][3]);
}

// Four columns of a head, their runs added up.
__device__ __forceinline__ float4 sum_runs(const float* of_head) {
    const float4* at = (const float4*)of_head + threadIdx.x % 32;
    const float4 a = at[0], b = at[SPLIT / 4], c = at[2 * SPLIT / 4], d = at[3 * SPLIT / 4];
    const auto add = [](float a, float b, float c, float d) { return 0.0f + ((a + b) + (c + d)); };
    return make_float4(add(a.x, b.x, c.x, d.x), add(a.y, b.y, c.y, d.y), add(a.z, b.z, c.z, d.z), add(a.w, b.w, c.w, d.w));
}

// One split's keys and values of one key-value head.
struct Place {
    u8* cached;
    u32 lo, hi;
    bool newest;  // the token's own position is here

    __device__ __forceinline__ Place(const Attend& form, const Seen& seen, u32 kv_head, u32 index) {
        const u32 split = seen.first_split + index, start = split * SPLIT;
        cached = form.cache + (u64(split) * form.kv_heads + kv_head) * SPLIT * DIM * 4;
        lo = seen.from > start ? seen.from - start : 0;
        hi = min(SPLIT, seen.end - start);
        newest = seen.end - start <= SPLIT;
    }

    // By one thread. The token's own row is not there yet; what is copied in its place is overwritten.
    __device__ __forceinline__ void stage_keys(u8* keys, u64* arrival) const {
        constexpr u32 BYTES = BF16_COL_BYTES * DIM;
        const u32 tiles = (hi + TILE - 1) / TILE;
        arrival_expect(arrival, tiles * BYTES);
        for (u32 tile = 0; tile < tiles; ++tile) copy_bulk(keys + tile * TILE_PITCH, cached + tile * BYTES, BYTES, arrival);
    }

    __device__ __forceinline__ void stage_values(u8* values, u64* arrival) const {
        arrival_expect(arrival, hi * DIM * 2);
        copy_bulk(values, cached + SPLIT * DIM * 2, hi * DIM * 2, arrival);
    }
};

// A barrier of a part of the block: of the four warps that have a part of its heads.
__device__ __forceinline__ void part_barrier(u32 part) { asm volatile("bar.sync %0, %1;" ::"r"(1 + part), "n"(32 * RUNS) : "memory"); }

// Grid (blocks that share the splits, blocks of heads), a warp a head. Parts go on by themselves: the last to be done with keys, or with values, asks for the
// next split's.
template <int HEADS> __device__ __forceinline__ void attend_deep(const Attend& form) {
    constexpr u32 PARTS = HEADS / PART;
    extern __shared__ __align__(16) u8 shared[];
    __shared__ u64 arrivals[2];  // of keys and of values
    __shared__ u32 done[2];      // parts that are done with keys, and with values, of all splits
    __shared__ float run_sums[HEADS][RUNS];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp / RUNS, c = warp % RUNS;
    const auto [kv_head, first, first_head, count] = Heads<HEADS>(form);
    const Seen seen(form);
    if (blockIdx.x >= seen.splits) {
        wait_for_previous();
        return;
    }
    Carve carve{shared};
    u8* keys = carve.take<u8>(SPLIT / TILE * TILE_PITCH);
    u8* values = carve.take<u8>(SPLIT * DIM * 2);
    float* scores = carve.take<float>(HEADS * RUNS * SPLIT);  // of each run of dimensions
    float* sums = carve.take<float>(HEADS * RUNS * DIM);      // of each run of positions
    float* q = carve.take<float>(HEADS * DIM);
    float* p = carve.take<float>(HEADS * WEIGHTS_WORDS);
    Place here(form, seen, kv_head, blockIdx.x);
    if (threadIdx.x == 0) {
        arrival_init(arrivals);
        arrival_init(arrivals + 1);
        arrivals_ready();
        here.stage_keys(keys, arrivals);
        here.stage_values(values, arrivals + 1);
        done[0] = done[1] = 0;
    }
    const bool has_newest = (seen.splits - 1) % gridDim.x == blockIdx.x;
    uint2 own_key = {}, own_value = {};  // as warp 0 writes them
    {
        Turn<true> turn(form, form.q_norm, seen.position);
        float* scratch = sums + warp * HEAD_WORDS;
        wait_for_previous();
        let_next_start();
        float own[PIECES] = {};
        if (warp < count) load_head(form.q + (first_head + warp) * DIM, own);
        if (form.q_norm) norm(form, turn, scratch, own);
        turn_head(form, turn, scratch, own);
#pragma unroll
        for (u32 j = 0; j < PIECES; ++j) q[warp * DIM + j * 32 + lane] = own[j];
        if (has_newest && warp == 0) {
            load_head(form.k + kv_head * DIM, own);
            if (form.k_norm) {
#pragma unroll
                for (u32 j = 0; j < PIECES; ++j) turn.weight[j] = form.k_norm[j * 32 + lane];
                __syncwarp();
                norm(form, turn, scratch, own);
            }
            turn_head(form, turn, scratch, own);
            own_key = {f32_to_bf16(own[0]) | u32(f32_to_bf16(own[1])) << 16, f32_to_bf16(own[2]) | u32(f32_to_bf16(own[3])) << 16};
            own_value = four_of_value(form, kv_head);
        }
    }
    __syncthreads();
    for (u32 index = blockIdx.x, parity = 0; index < seen.splits; index += gridDim.x, parity ^= 1) {
        here = Place(form, seen, kv_head, index);
        const u32 lo = here.lo, hi = here.hi, place = hi - 1;  // of the token's own position, where it is here
        // Whether this thread asks for the next split's: it is its part's first, and the other part is done.
        const auto asks = [&](u32 what) {
            return threadIdx.x % (32 * RUNS) == 0 && index + gridDim.x < seen.splits && (PARTS == 1 || atomicAdd(done + what, 1) % PARTS == PARTS - 1);
        };
        const Place next(form, seen, kv_head, index + gridDim.x);
        arrival_wait(arrivals, parity);
        if (here.newest) {
            arrival_wait(arrivals + 1, parity);
            if (warp == 0) {
                const u32 at = place / TILE * DIM, column = place % TILE * 2;
                const u16 key[PIECES] = {u16(own_key.x), u16(own_key.x >> 16), u16(own_key.y), u16(own_key.y >> 16)};
#pragma unroll
                for (u32 j = 0; j < PIECES; ++j) {
                    const u32 d = j * 32 + lane;
                    *(u16*)(keys + place / TILE * TILE_PITCH + d * BF16_COL_BYTES + column) = key[j];
                    if (first == 0) *(u16*)(here.cached + (at + d) * BF16_COL_BYTES + column) = key[j];
                }
                *(uint2*)(values + (place * DIM + 4 * lane) * 2) = own_value;
                if (first == 0) *(uint2*)(here.cached + (SPLIT + place) * DIM * 2 + 8 * lane) = own_value;
            }
            __syncthreads();
        }
        {
            float acc[PART][4] = {};
            chains<BF16_COL_BYTES, DIM>(keys + lane / 4 * TILE_PITCH + c * RUN * BF16_COL_BYTES + lane % 4 * 8, q + part * PART * DIM + c * RUN, acc, [](u32) {});
            store_run(scores + (part * PART * RUNS + c) * SPLIT, acc);
        }
        part_barrier(part);
        if (asks(0)) next.stage_keys(keys, arrivals);
        const float4 sum_of_runs = sum_runs(scores + warp * RUNS * SPLIT);
        const float s[4] = {sum_of_runs.x * form.scale, sum_of_runs.y * form.scale, sum_of_runs.z * form.scale, sum_of_runs.w * form.scale};
        float most = -infinity();
#pragma unroll
        for (u32 j = 0; j < 4; ++j)
            if (4 * lane + j >= lo && 4 * lane + j < hi) most = larger(most, s[j]);
        most = largest_of_warp(most);
        *(float4*)(p + warp * WEIGHTS_WORDS + lane / 8 * RUN_WORDS + lane % 8 * 4) =
            make_float4(assay::exp(s[0] - most), assay::exp(s[1] - most), assay::exp(s[2] - most), assay::exp(s[3] - most));
        part_barrier(part);
        arrival_wait(arrivals + 1, parity);
        {
            float acc[PART][4] = {}, sum = 0.0f;
            const u8* value = values + c * RUN * DIM * 2 + lane * 8;
            const float *weights = p + part * PART * WEIGHTS_WORDS + c * RUN_WORDS, *of_head = weights + lane % PART * WEIGHTS_WORDS;
            const u32 run_lo = run_length(lo, c * RUN), run_hi = run_length(hi, c * RUN);
            if (run_lo == 0 && run_hi == RUN) {
                // A lane adds up the weights of a head besides.
                chains<DIM * 2, WEIGHTS_WORDS>(value, weights, acc, [&](u32 k) {
                    const float4 f = *(const float4*)(of_head + k);
                    sum = sum + f.x, sum = sum + f.y, sum = sum + f.z, sum = sum + f.w;
                });
            } else {
#pragma unroll 1
                for (u32 k = run_lo; k < run_hi; ++k) {
                    const Four four(value + k * DIM * 2);
                    sum = sum + of_head[k];
#pragma unroll
                    for (int h = 0; h < PART; ++h) step(acc, h, weights[h * WEIGHTS_WORDS + k], four);
                }
            }
            store_run(sums + (part * PART * RUNS + c) * DIM, acc);
            if (lane < PART) run_sums[part * PART + lane][c] = sum;
        }
        part_barrier(part);
        if (asks(1)) next.stage_values(values, arrivals + 1);
        if (warp < count) {
            const u64 at = u64(first_head + warp) * form.splits + index;
            const float* lengths = run_sums[warp];
            *(float4*)(form.partial + at * DIM + 4 * lane) = sum_runs(sums + warp * RUNS * DIM);
            if (lane == 0) form.states[at] = make_float2(most, 0.0f + ((lengths[0] + lengths[1]) + (lengths[2] + lengths[3])));
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * 4, 2) attend_deep_4(const __grid_constant__ Attend form) { attend_deep<4>(form); }
extern "C" __global__ void __launch_bounds__(32 * 8, 2) attend_deep_8(const __grid_constant__ Attend form) { attend_deep<8>(form); }
