// One token's attention over a BF16 cache: norm and rope of its queries and key, the append, and the splits, in one. A composition of the twins
// `head_norm_rope`, `kv_append` and `attention`, for heads of up to 128 in whole runs of 32.
//
// A block takes every gridDim.x-th split for the query heads that share a key-value head, up to HEADS of them. It asks for the first one's
// keys and values while the kernel before it runs, and for the next one's as soon as it is done with this one's. It norms its
// queries, and the key where the token's own position is in its split, itself.
#include "decode_attention.cuh"

using namespace assay;

constexpr u32 WARPS = 8;
constexpr u32 THREADS = 32 * WARPS;
constexpr u32 SPLIT_WORDS = SPLIT / RUN * RUN_WORDS;
constexpr u32 MAX_TICKETS = 256;
constexpr u32 MERGE_DIMS = 32;
constexpr u32 MERGE_SPLITS = 256;

__device__ u32 tickets[MAX_TICKETS];

// Four columns of BF16.
__device__ __forceinline__ float4 four_columns(const u8* at) {
    const uint2 w = *(const uint2*)at;
    return make_float4(__uint_as_float(w.x << 16), __uint_as_float(w.x & 0xffff0000u), __uint_as_float(w.y << 16), __uint_as_float(w.y & 0xffff0000u));
}

// Chains of four neighbouring columns for H heads over elements lo..hi of a run: element k at `at + k * stride`, its factor for head h at
// `factors[h * pitch + k]`.
template <int H> __device__ __forceinline__ void run_chains(const u8* at, u32 stride, const float* factors, u32 pitch, u32 lo, u32 hi, float4 (&acc)[H]) {
    const auto step = [&](const float4& w, int h, float f) {
        acc[h].x = __fmaf_rn(f, w.x, acc[h].x);
        acc[h].y = __fmaf_rn(f, w.y, acc[h].y);
        acc[h].z = __fmaf_rn(f, w.z, acc[h].z);
        acc[h].w = __fmaf_rn(f, w.w, acc[h].w);
    };
#pragma unroll
    for (int h = 0; h < H; ++h) acc[h] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (lo == 0 && hi == RUN) {
#pragma unroll 2
        for (u32 k = 0; k < RUN; k += 4) {
            float4 w[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) w[i] = four_columns(at + (k + i) * stride);
#pragma unroll
            for (int h = 0; h < H; ++h) {
                const float4 f = *(const float4*)(factors + h * pitch + k);
                step(w[0], h, f.x);
                step(w[1], h, f.y);
                step(w[2], h, f.z);
                step(w[3], h, f.w);
            }
        }
        return;
    }
    for (u32 k = lo; k < hi; ++k) {
        const float4 w = four_columns(at + k * stride);
#pragma unroll
        for (int h = 0; h < H; ++h) step(w, h, factors[h * pitch + k]);
    }
}

// Norm, where there is one, and rope of one head, by one warp; the result lies in `head`, in padded runs. No branch stands between the loads, which
// would then come one after the other.
__device__ __forceinline__ void norm_and_rope(const Attend& form, const float* from, const float* weights, const Turn<false>& turn, float* head) {
    const u32 lane = threadIdx.x % 32, dim = form.head_dim, half = form.rotary_dim / 2;
    float own[MAX_DIM / RUN];
#pragma unroll
    for (u32 i = 0; i < MAX_DIM / RUN; ++i) own[i] = load_fresh(from + min(i * RUN, dim - RUN) + lane);
#pragma unroll
    for (u32 i = 0; i < MAX_DIM / RUN; ++i) head[i * RUN_WORDS + lane] = own[i];
    __syncwarp();
    if (weights) {
        const u32 run = lane % RUNS;
        const float square = square_run(head + run * RUN_WORDS, RUN);
        const float sum = 0.0f + sum_of_four(run * RUN < dim ? square : 0.0f);
        const float inverse = inverse_rms(sum, dim, form.eps);
        __syncwarp();
#pragma unroll
        for (u32 i = 0; i < MAX_DIM / RUN; ++i) {
            own[i] = (own[i] * inverse) * turn.weight[i];
            head[i * RUN_WORDS + lane] = own[i];
        }
        __syncwarp();
    }
    float other[MAX_DIM / RUN];
#pragma unroll
    for (u32 i = 0; i < MAX_DIM / RUN; ++i) {
        const u32 d = i * RUN + lane;
        other[i] = head[in_runs(d < half ? d + half : d < 2 * half ? d - half : d)];
    }
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < MAX_DIM / RUN; ++i) {
        const u32 d = i * RUN + lane;
        const float turned = __fmaf_rn(d < half ? -other[i] : other[i], turn.sine[i], own[i] * turn.cosine[i]);
        head[i * RUN_WORDS + lane] = d < 2 * half ? turned : own[i];
    }
}

// What merging starts from, and one step of it.
struct Merged {
    float max, sum, total;
    __device__ __forceinline__ Merged(const float* sinks, u32 head) : max(sinks ? sinks[head] : -infinity()), sum(sinks ? 1.0f : 0.0f), total(0.0f) {}
    __device__ __forceinline__ void add(float m, float l, float o) {
        const float next = larger(max, m);
        const float a = assay::exp(max - next), b = assay::exp(m - next);
        sum = __fmaf_rn(l, b, sum * a);
        total = __fmaf_rn(o, b, total * a);
        max = next;
    }
    __device__ __forceinline__ float answer() const { return __fdiv_rn(total, sum); }
};

// One split's keys and values of one key-value head.
struct Place {
    u8* cached;
    u32 start, lo, hi;
    bool newest;  // the token's own position is here

    __device__ __forceinline__ Place(const Attend& form, u32 kv_head, u32 split, u32 from, u32 end) {
        cached = form.cache + (u64(split) * form.kv_heads + kv_head) * SPLIT * form.head_dim * 4;
        start = split * SPLIT;
        lo = from > start ? from - start : 0;
        hi = min(SPLIT, end - start);
        newest = end - start <= SPLIT;
    }

    // The token's own row is not there yet; what is copied in its place is overwritten. By all threads; with bulk copies a warp takes a tile.
    __device__ __forceinline__ void stage_keys(u8* keys, u32 dim, u32 tile_pitch, u64* arrival) const {
        const u32 tiles = (hi + 15) / 16, bytes = 32 * dim;
        if constexpr (BULK) {
            if (threadIdx.x % 32 != 0) return;
            if (threadIdx.x == 0) arrival_expect(arrival, tiles * bytes);
            for (u32 tile = threadIdx.x / 32; tile < tiles; tile += WARPS) copy_bulk(keys + tile * tile_pitch, cached + tile * bytes, bytes, arrival);
        } else {
            for (u32 tile = 0; tile < tiles; ++tile) copy_together(keys + tile * tile_pitch, cached + tile * bytes, bytes);
        }
    }

    __device__ __forceinline__ void stage_values(u8* values, u32 dim, u64* arrival) const {
        const u32 bytes = hi * dim * 2;
        const u8* from = cached + SPLIT * dim * 2;
        if constexpr (BULK) {
            if (threadIdx.x != 0) return;
            arrival_expect(arrival, bytes);
            copy_bulk(values, from, bytes, arrival);
        } else {
            copy_together(values, from, bytes);
        }
    }
};

// A barrier of a part of the block: of the four warps that have a part of its heads.
__device__ __forceinline__ void part_barrier() {
    if (threadIdx.x < THREADS / 2)
        asm volatile("bar.sync 1, 128;" ::: "memory");
    else
        asm volatile("bar.sync 2, 128;" ::: "memory");
}

// Grid (blocks that share the splits, blocks of heads). Four warps have a part of the heads, each a run; parts wait for each other only where a
// split's keys and values make room for the next one's.
template <int HEADS> __device__ __forceinline__ void attend(const Attend& form) {
    constexpr int PARTS = HEADS < 2 ? 1 : 2;
    constexpr int H = HEADS / PARTS;  // heads of a part
    extern __shared__ __align__(16) u8 shared[];
    __shared__ float m[HEADS], l[HEADS];
    __shared__ u64 arrivals[3];  // of keys, of values, and of what the cluster's other blocks have found
    __shared__ u64 consumed[2];  // keys and values, by every warp
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, dim = form.head_dim;
    const auto [kv_head, first, first_head, count] = Heads<HEADS>(form);
    const auto [position, end, from, first_split, splits] = Seen(form);
    if (blockIdx.x >= splits) {
        if (form.clustered) cluster_arrive();
        wait_for_previous();
        return;
    }
    const u32 tile_pitch = 32 * dim + 32;  // of 16 keys: eight tiles start in other banks
    Carve carve{shared};
    u8* keys = carve.take<u8>(SPLIT / 16 * tile_pitch);
    u8* values = carve.take<u8>(SPLIT * dim * 2);
    float* runs = carve.take<float>(RUNS * HEADS * SPLIT);  // [4][HEADS][128]
    float* q = carve.take<float>(HEADS * HEAD_WORDS);
    float* p = carve.take<float>(HEADS * SPLIT_WORDS);
    float* own_key = carve.take<float>(HEAD_WORDS);
    float* found = carve.take<float>(form.clustered ? MOST_SPLITS * HEADS * FOUND_WORDS : 0);  // in a cluster's first block, [splits][HEADS]: o, m, l
    Place here(form, kv_head, first_split + blockIdx.x, from, end);
    if (warp == 0) {
        if (lane == 0) {
            arrival_init(arrivals);
            arrival_init(arrivals + 1);
            arrival_init(arrivals + 2);
            arrival_init(consumed, WARPS);
            arrival_init(consumed + 1, WARPS);
            arrivals_ready();
            if (form.clustered && blockIdx.x == 0) arrival_expect(arrivals + 2, (splits - 1) * count * (dim + 2) * sizeof(float));
        }
        __syncwarp();
    }
    if (form.clustered) cluster_arrive();
    __syncthreads();
    here.stage_keys(keys, dim, tile_pitch, arrivals);
    here.stage_values(values, dim, arrivals + 1);
    const bool has_newest = (splits - 1) % gridDim.x == blockIdx.x;
    float own_value = 0.0f;
    {
        Turn<false> turn(form, form.q_norm, position);
        // A warp that has the key has nothing after it.
        float key_weight[MAX_DIM / RUN];
#pragma unroll
        for (u32 i = 0; i < MAX_DIM / RUN; ++i) key_weight[i] = has_newest && form.k_norm && i * RUN < dim ? form.k_norm[i * RUN + lane] : 0.0f;
        wait_for_previous();
        let_next_start();
        if (has_newest && threadIdx.x < dim) own_value = load_fresh(form.v + kv_head * dim + threadIdx.x);
        for (u32 vector = warp; vector < HEADS + has_newest; vector += WARPS) {
            const bool key = vector == HEADS;
            if (!key && vector >= count) {  // a head that is not there; its results are not stored
                for (u32 i = lane; i < HEAD_WORDS; i += 32) q[vector * HEAD_WORDS + i] = 0.0f;
                continue;
            }
#pragma unroll
            for (u32 i = 0; i < MAX_DIM / RUN; ++i) turn.weight[i] = key ? key_weight[i] : turn.weight[i];
            norm_and_rope(form, key ? form.k + kv_head * dim : form.q + (first_head + vector) * dim, key ? form.k_norm : form.q_norm, turn,
                          key ? own_key : q + vector * HEAD_WORDS);
        }
    }
    // That this warp is done with keys or values, and its part of the heads too; without bulk copies the whole block.
    const auto consume = [&](u64* what) {
        if constexpr (BULK) {
            __syncwarp();
            if (lane == 0) arrival_signal(what);
            part_barrier();
        } else {
            __syncthreads();
        }
    };
    const u32 c = warp % RUNS, first_of_part = warp / RUNS * H;
    const bool works = warp < RUNS * PARTS;
    // All blocks have begun before one writes into another.
    if (form.clustered) cluster_wait();
    __syncthreads();
    for (u32 index = blockIdx.x, parity = 0; index < splits; index += gridDim.x, parity ^= 1) {
        here = Place(form, kv_head, first_split + index, from, end);
        const u32 lo = here.lo, hi = here.hi, place = position - here.start;
        const bool another = index + gridDim.x < splits;
        const Place next(form, kv_head, first_split + (another ? index + gridDim.x : index), from, end);
        arrival_wait(arrivals, parity);
        if (here.newest) {
            if (threadIdx.x < dim) {
                const u32 d = threadIdx.x;
                const u16 key = f32_to_bf16(own_key[in_runs(d)]);
                *(u16*)(keys + place / 16 * tile_pitch + d * 32 + place % 16 * 2) = key;
                if (first == 0) *(u16*)(here.cached + (place / 16 * dim + d) * 32 + place % 16 * 2) = key;
            }
            __syncthreads();
        }
        // Scores: a warp takes a run of the dimensions, a lane four positions.
        float4 acc[H];
        if (works && c * RUN < dim)
            run_chains<H>(keys + lane / 4 * tile_pitch + c * RUN * 32 + lane % 4 * 8, 32, q + first_of_part * HEAD_WORDS + c * RUN_WORDS, HEAD_WORDS, 0, RUN, acc);
        else
#pragma unroll
            for (int h = 0; h < H; ++h) acc[h] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (works)
#pragma unroll
            for (int h = 0; h < H; ++h) *(float4*)(runs + (c * HEADS + first_of_part + h) * SPLIT + 4 * lane) = acc[h];
        consume(consumed);
        if (works && c < H) {
            const u32 head = first_of_part + c;
            float s[SPLIT / RUN], max = -infinity();
#pragma unroll
            for (u32 i = 0; i < SPLIT / RUN; ++i) {
                const u32 at = i * RUN + lane;
                const auto run = [&](u32 of) { return runs[(of * HEADS + head) * SPLIT + at]; };
                s[i] = (0.0f + ((run(0) + run(1)) + (run(2) + run(3)))) * form.scale;
                if (at >= lo && at < hi) max = larger(max, s[i]);
            }
            for (u32 step = 16; step > 0; step /= 2) max = larger(max, __shfl_xor_sync(~0u, max, step));
#pragma unroll
            for (u32 i = 0; i < SPLIT / RUN; ++i) p[head * SPLIT_WORDS + i * RUN_WORDS + lane] = assay::exp(s[i] - max);
            if (lane == 0) m[head] = max;
        }
        if (another) {
            if (BULK) arrival_wait(consumed, parity);
            next.stage_keys(keys, dim, tile_pitch, arrivals);
        }
        part_barrier();
        arrival_wait(arrivals + 1, parity);
        if (here.newest) {
            if (threadIdx.x < dim) {
                const u32 d = threadIdx.x;
                const u16 value = f32_to_bf16(own_value);
                *(u16*)(values + (place * dim + d) * 2) = value;
                if (first == 0) *(u16*)(here.cached + (SPLIT + place) * dim * 2 + d * 2) = value;
            }
            __syncthreads();
        }
        // Values: a warp takes a run of the positions, a lane four dimensions. A part's last warp adds up the softmax's weights besides.
        if (works && 4 * lane < dim) {
            const u32 run_lo = run_length(lo, c * RUN), run_hi = run_length(hi, c * RUN);
            run_chains<H>(values + c * RUN * dim * 2 + lane * 8, dim * 2, p + first_of_part * SPLIT_WORDS + c * RUN_WORDS, SPLIT_WORDS, run_lo, run_hi, acc);
#pragma unroll
            for (int h = 0; h < H; ++h) *(float4*)(runs + (c * HEADS + first_of_part + h) * MAX_DIM + 4 * lane) = acc[h];
        }
        if (works && c == RUNS - 1) {
            const u32 run = lane % RUNS, h = first_of_part + min(lane / RUNS, u32(H - 1));
            const u32 run_lo = run_length(lo, run * RUN), run_hi = run_length(hi, run * RUN);
            const float* weights = p + h * SPLIT_WORDS + run * RUN_WORDS;
            float sum = 0.0f;
#pragma unroll 8
            for (u32 k = run_lo; k < run_hi; ++k) sum = sum + weights[k];
            sum = 0.0f + sum_of_four(sum);
            if (run == 0) l[h] = sum;
        }
        consume(consumed + 1);
        if (another) {
            if (BULK && threadIdx.x == 0) arrival_wait(consumed + 1, parity);
            next.stage_values(values, dim, arrivals + 1);
        }
        const u32 d = threadIdx.x % MAX_DIM;
        float o[H];
#pragma unroll
        for (int i = 0; i < H; ++i) {
            const auto run = [&](u32 of) { return works ? runs[(of * HEADS + first_of_part + i) * MAX_DIM + d] : 0.0f; };
            o[i] = 0.0f + ((run(0) + run(1)) + (run(2) + run(3)));
        }
#pragma unroll
        for (int i = 0; i < H; ++i) {
            const u32 h = first_of_part + i, head = first_head + h;
            if (!works || h >= count || d >= dim) continue;
            if (form.clustered && splits > 1) {
                float* to = found + (index * HEADS + h) * FOUND_WORDS;
                const auto put = [&](u32 at, float value) {
                    if (index == 0)
                        to[at] = value;
                    else
                        send(to + at, arrivals + 2, 0, value);
                };
                put(d, o[i]);
                if (d == 0) {
                    put(MAX_DIM, m[h]);
                    put(MAX_DIM + 1, l[h]);
                }
            } else if (splits == 1 && !form.merged_after) {
                Merged merged(form.sinks, head);
                merged.add(m[h], l[h], o[i]);
                form.out[head * dim + d] = merged.answer();
            } else {
                const u64 at = u64(head) * form.splits + index;
                form.partial[at * dim + d] = o[i];
                if (d == 0) form.states[at] = make_float2(m[h], l[h]);
            }
        }
        if (another) part_barrier();  // before `runs` is written again
    }
    if (form.clustered) {
        if (splits == 1 || blockIdx.x != 0) return;
        __syncthreads();
        arrival_wait(arrivals + 2, 0);
        const u32 d = threadIdx.x % MAX_DIM;
        for (u32 h = threadIdx.x / MAX_DIM; h < count && d < dim; h += THREADS / MAX_DIM) {
            Merged merged(form.sinks, first_head + h);
#pragma unroll
            for (u32 j = 0; j < MOST_SPLITS; ++j) {
                const float* of = found + (j * HEADS + h) * FOUND_WORDS;
                if (j < splits) merged.add(of[MAX_DIM], of[MAX_DIM + 1], of[d]);
            }
            form.out[(first_head + h) * dim + d] = merged.answer();
        }
        return;
    }
    if (splits == 1 || form.merged_after || !last_block(tickets + blockIdx.y, min(splits, gridDim.x))) return;
    const u32 d = threadIdx.x % MAX_DIM;
    for (u32 h = threadIdx.x / MAX_DIM; h < count && d < dim; h += THREADS / MAX_DIM) {
        const u32 head = first_head + h;
        const u64 at = u64(head) * form.splits;
        Merged merged(form.sinks, head);
        float2 states[MOST_SPLITS];
        float o[MOST_SPLITS];
#pragma unroll
        for (u32 j = 0; j < MOST_SPLITS; ++j)
            if (j < splits) {
                states[j] = __ldcg(form.states + at + j);
                o[j] = load_fresh(form.partial + (at + j) * dim + d);
            }
#pragma unroll
        for (u32 j = 0; j < MOST_SPLITS; ++j)
            if (j < splits) merged.add(states[j].x, states[j].y, o[j]);
        form.out[head * dim + d] = merged.answer();
    }
}

// Eight steps of a merge. What they need is loaded by few instructions: a warp's loads of shared memory take as long as its sums.
struct Steps {
    float4 old_factors[2], new_factors[2];
    float found[8];

    __device__ __forceinline__ Steps(const float* old_factor, const float* new_factor, const float* found_at, u32 stride) {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) old_factors[i] = ((const float4*)old_factor)[i], new_factors[i] = ((const float4*)new_factor)[i];
#pragma unroll
        for (u32 i = 0; i < 8; ++i) found[i] = found_at[i * stride];
    }

    // Of the first `count`.
    __device__ __forceinline__ float take(float sum, u32 count) const {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const float a[4] = {old_factors[i].x, old_factors[i].y, old_factors[i].z, old_factors[i].w};
            const float b[4] = {new_factors[i].x, new_factors[i].y, new_factors[i].z, new_factors[i].w};
#pragma unroll
            for (u32 j = 0; j < 4; ++j)
                if (4 * i + j < count) sum = __fmaf_rn(found[4 * i + j], b[j], sum * a[j]);
        }
        return sum;
    }
};

// Merges many splits: grid (head_dim / 32, heads), a block of 256 threads takes 32 dimensions of a head. The largest m up to a split does not
// depend on the order in which it is found; the sums are chains: of a dimension's o by a lane of the first warp, of l by the second warp.
extern "C" __global__ void __launch_bounds__(MERGE_SPLITS) attend_merge(const __grid_constant__ Attend form) {
    // Eight more than there are: the steps behind the last are loaded too.
    __shared__ __align__(16) float partial[MERGE_SPLITS + 8][MERGE_DIMS];
    __shared__ __align__(16) float old_factor[MERGE_SPLITS + 8], new_factor[MERGE_SPLITS + 8], lengths[MERGE_SPLITS + 8];
    __shared__ float last[MERGE_SPLITS / 32], length;
    const u32 head = blockIdx.y, d = blockIdx.x * MERGE_DIMS, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 splits = Seen(form).splits;
    const u64 at = u64(head) * form.splits;
    wait_for_previous();
    let_next_start();
    float max = form.sinks ? form.sinks[head] : -infinity();
    float sum = form.sinks && warp == 1 ? 1.0f : 0.0f;
    for (u32 first = 0; first < splits; first += MERGE_SPLITS) {
        const u32 here = min(splits - first, MERGE_SPLITS);
        const float2 state = threadIdx.x < here ? __ldcg(form.states + at + first + threadIdx.x) : make_float2(-infinity(), 0.0f);
        for (u32 i = threadIdx.x; i < here * (MERGE_DIMS / 4); i += MERGE_SPLITS)
            copy_16(&partial[i / 8][i % 8 * 4], form.partial + (at + first + i / 8) * form.head_dim + d + i % 8 * 4);
        // The largest m up to and with this split's, and up to the one before.
        float upto = state.x;
#pragma unroll
        for (u32 step = 1; step < 32; step *= 2) {
            const float other = __shfl_up_sync(~0u, upto, step);
            if (lane >= step) upto = larger(upto, other);
        }
        if (lane == 31) last[warp] = upto;
        float before = __shfl_up_sync(~0u, upto, 1);
        if (lane == 0) before = -infinity();
        __syncthreads();
        const float of_warp = last[lane % (MERGE_SPLITS / 32)];
        const float before_warp = largest_of_warp(lane < warp ? of_warp : -infinity());
        // A sink that is NaN stays the maximum.
        const float old_max = larger(max, larger(before_warp, before)), new_max = larger(max, larger(before_warp, upto));
        old_factor[threadIdx.x] = assay::exp(old_max - new_max);
        new_factor[threadIdx.x] = assay::exp(state.x - new_max);
        lengths[threadIdx.x] = state.y;
        max = larger(max, largest_of_warp(of_warp));
        wait_for_copies();
        __syncthreads();
        if (warp < 2) {
            const float* found = warp == 0 ? &partial[0][lane] : lengths;
            const u32 stride = warp == 0 ? MERGE_DIMS : 1;
            Steps steps(old_factor, new_factor, found, stride);
            u32 i = 0;
#pragma unroll 1
            for (; i + 8 <= here; i += 8) {
                const Steps next(old_factor + i + 8, new_factor + i + 8, found + (i + 8) * stride, stride);
                sum = steps.take(sum, 8);
                steps = next;
            }
            sum = steps.take(sum, here - i);
        }
        __syncthreads();
    }
    if (threadIdx.x == 32) length = sum;
    __syncthreads();
    if (warp == 0) form.out[head * form.head_dim + d + lane] = __fdiv_rn(sum, length);
}

#define ATTEND(heads) \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) attend_##heads(const __grid_constant__ Attend form) { attend<heads>(form); }

ATTEND(1)
ATTEND(2)
ATTEND(4)
ATTEND(8)
