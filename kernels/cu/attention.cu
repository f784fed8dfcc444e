// Attention over the cache in the contract's order, by splits of 128 positions: twin in kernels/src/twin/attention.rs.
//
// A block takes the query heads that share a key-value head, up to HEADS of them, so that keys and values are read once for all.
// With few queries a block takes one split and leaves m, l and o for `attention_merge`; with many it takes every split of its
// query in turn. Both do the same to each split, and merge in the same order.
#include "dot.cuh"

using namespace assay;

constexpr u32 WARPS = 8;
constexpr u32 SPLIT_RUNS = SPLIT / RUN;
constexpr u32 MAX_HEAD_DIM = 256;
constexpr u32 MAX_DIM_RUNS = MAX_HEAD_DIM / RUN;
constexpr u32 DIM_TILES = MAX_HEAD_DIM / 16 / WARPS;  // that a warp takes

struct Attention {
    const float* q;  // [T, heads * head_dim]
    const u8* cache;
    const float* sinks;  // [heads], or null
    float* out;          // [T, heads * head_dim]
    float2* states;      // [T * heads, splits]: m and l
    float* partial;      // [T * heads, splits, head_dim]: o
    const u32* position_at;
    u32 heads, kv_heads, head_dim;
    u32 first_position;  // unless it is at position_at
    u32 window;  // 0 for none
    u32 splits;  // room for a query's in `states` and `partial`
    float scale;
};

// What a query sees.
struct Seen {
    u32 first, end;  // positions
    __device__ __forceinline__ u32 first_split() const { return first / SPLIT; }
    __device__ __forceinline__ u32 splits() const { return (end + SPLIT - 1) / SPLIT - first_split(); }
};

__device__ __forceinline__ Seen seen_by(const Attention& form, u32 token) {
    const u32 first_position = form.position_at ? *form.position_at : form.first_position;
    const u32 end = first_position + token + 1;
    return {form.window && end > form.window ? end - form.window : 0, end};
}

__device__ __forceinline__ float larger(float a, float b) { return b > a ? b : a; }

// The query heads of a block.
template <int HEADS> struct Heads {
    u32 kv_head, first, count;
};

// `index` counts key-value heads, and within each its blocks of HEADS query heads.
template <int HEADS> __device__ __forceinline__ Heads<HEADS> heads_of(const Attention& form, u32 index) {
    const u32 each = form.heads / form.kv_heads, blocks = (each + HEADS - 1) / HEADS;
    const u32 kv_head = index / blocks, first = index % blocks * HEADS;
    return {kv_head, kv_head * each + first, min(each - first, u32(HEADS))};
}

__device__ __forceinline__ float2 load_pair(const float* at) { return *(const float2*)at; }
__device__ __forceinline__ float2 load_pair(const u16* at) {
    const u32 word = *(const u32*)at;
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

// Part of a run of 32 elements from `base` on that lies below `bound`. Not max(0, min(bound - base, 32)): compared with 32, as
// `Part` does, ptxas 13.0 makes of that one VIMNMX.RELU with two predicates, which Hopper answers with wrong bits or an illegal
// instruction.
__device__ __forceinline__ int within_run(u32 bound, u32 base) { return bound <= base ? 0 : int(min(bound - base, RUN)); }

// Elements lo..hi of the run from `base` on that lie within begin..end, and whether that is all of them.
struct Part {
    int lo, hi;
    bool whole;
    __device__ __forceinline__ Part(u32 begin, u32 end, u32 base)
        : lo(within_run(begin, base)), hi(within_run(end, base)), whole(begin <= base && end >= base + RUN) {}
};

// Chains of two neighbouring columns for all heads over elements lo..hi of a run; element k is at `at + k * stride`, and its factor
// for head h at `factors[h * pitch + k]`.
template <int HEADS, class Element>
__device__ __forceinline__ void run_chains(const Element* at, u32 stride, const float* factors, u32 pitch, Part part, float2 (&acc)[HEADS]) {
    constexpr int DEPTH = sizeof(Element) == 4 ? 8 : 16;  // as many as registers hold
#pragma unroll
    for (int h = 0; h < HEADS; ++h) acc[h] = make_float2(0.0f, 0.0f);
    if (part.whole) {
#pragma unroll
        for (int first = 0; first < int(RUN); first += DEPTH) {
            float2 pairs[DEPTH];
#pragma unroll
            for (int i = 0; i < DEPTH; ++i) pairs[i] = load_pair(at + u64(first + i) * stride);
#pragma unroll
            for (int i = 0; i < DEPTH; i += 4)
#pragma unroll
                for (int h = 0; h < HEADS; ++h) {
                    const float4 f = *(const float4*)(factors + h * pitch + first + i);
                    const float four[4] = {f.x, f.y, f.z, f.w};
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        acc[h].x = __fmaf_rn(four[j], pairs[i + j].x, acc[h].x);
                        acc[h].y = __fmaf_rn(four[j], pairs[i + j].y, acc[h].y);
                    }
                }
        }
        return;
    }
    for (int k = part.lo; k < part.hi; ++k) {
        const float2 pair = load_pair(at + u64(k) * stride);
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            const float factor = factors[h * pitch + k];
            acc[h].x = __fmaf_rn(factor, pair.x, acc[h].x);
            acc[h].y = __fmaf_rn(factor, pair.y, acc[h].y);
        }
    }
}

// (run0 + run1) + (run2 + run3), the runs in lanes 8 apart.
__device__ __forceinline__ float sum_of_runs(float run) {
    run = run + __shfl_xor_sync(~0u, run, 8);
    return run + __shfl_xor_sync(~0u, run, 16);
}

// What a block holds in shared memory.
template <int HEADS> struct __align__(16) Shared {
    float q[HEADS][MAX_DIM_RUNS * RUN_WORDS];  // runs padded
    float p[HEADS][SPLIT_RUNS * RUN_WORDS];    // scores, then exp(s - m); runs padded
    float m[HEADS], l[HEADS];                  // of the split
    float max[HEADS], sum[HEADS];              // merged so far
    float old_factor[HEADS], new_factor[HEADS];
};

template <int HEADS> __device__ __forceinline__ void load_queries(const Attention& form, u32 token, const Heads<HEADS>& heads, Shared<HEADS>& shared) {
    const float* q = form.q + (u64(token) * form.heads + heads.first) * form.head_dim;
    for (u32 i = threadIdx.x; i < HEADS * form.head_dim; i += blockDim.x) {
        const u32 h = i / form.head_dim, d = i % form.head_dim;
        // A head that is not there is given zeros; its results are not stored.
        shared.q[h][d / RUN * RUN_WORDS + d % RUN] = h < heads.count ? q[u64(h) * form.head_dim + d] : 0.0f;
    }
}

// The keys of a split of a head; its values follow.
template <class Element> __device__ __forceinline__ const Element* keys_of(const Attention& form, u32 split, u32 kv_head) {
    const u32 value_width = (form.head_dim + 15) / 16 * 16;
    return (const Element*)form.cache + (u64(split) * form.kv_heads + kv_head) * SPLIT * (form.head_dim + value_width);
}

// shared.p = (q . k[j]) * scale for all 128 positions; those that are not seen are given anything. A warp takes 16 positions,
// lane 8 c + i run c of the dimensions for positions 2 i and 2 i + 1.
template <int HEADS, class Element>
__device__ __forceinline__ void scores(const Attention& form, const Element* keys, Shared<HEADS>& shared) {
    const u32 warp = threadIdx.x / 32, c = threadIdx.x % 32 / 8, pair = threadIdx.x % 8 * 2;
    const Element* at = keys + u64(warp) * 16 * form.head_dim + c * RUN * 16 + pair;
    float2 total[HEADS] = {};
    for (u32 first = 0; first < form.head_dim; first += GROUP) {
        const Part part(0, form.head_dim, first + c * RUN);
        float2 acc[HEADS];
        run_chains<HEADS>(at + first * 16, 16, &shared.q[0][(first / RUN + c) * RUN_WORDS], MAX_DIM_RUNS * RUN_WORDS, part, acc);
        __syncwarp();
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            total[h].x = total[h].x + sum_of_runs(acc[h].x);
            total[h].y = total[h].y + sum_of_runs(acc[h].y);
        }
    }
    const u32 position = warp * 16 + pair;
#pragma unroll
    for (int h = 0; h < HEADS; ++h)
        if (h % 4 == c) {
            float* p = shared.p[h] + position / RUN * RUN_WORDS + position % RUN;
            p[0] = total[h].x * form.scale;
            p[1] = total[h].y * form.scale;
        }
}

// m, l and p of a split of which places lo..hi are seen; a warp takes a head.
template <int HEADS> __device__ __forceinline__ void softmax(Shared<HEADS>& shared, u32 lo, u32 hi) {
    const u32 lane = threadIdx.x % 32;
    for (u32 h = threadIdx.x / 32; h < HEADS; h += WARPS) {
        float* p = shared.p[h];
        float m = -infinity();
#pragma unroll
        for (u32 run = 0; run < SPLIT_RUNS; ++run) {
            const u32 place = run * RUN + lane;
            if (place >= lo && place < hi) m = larger(m, p[run * RUN_WORDS + lane]);
        }
        for (u32 step = 16; step > 0; step /= 2) m = larger(m, __shfl_xor_sync(~0u, m, step));
#pragma unroll
        for (u32 run = 0; run < SPLIT_RUNS; ++run) p[run * RUN_WORDS + lane] = assay::exp(p[run * RUN_WORDS + lane] - m);
        __syncwarp();
        float sum = 0.0f;
        if (lane < SPLIT_RUNS) {
            const Part part(lo, hi, lane * RUN);
            for (int k = part.lo; k < part.hi; ++k) sum = sum + p[lane * RUN_WORDS + k];
        }
        sum = sum + __shfl_xor_sync(~0u, sum, 1);
        sum = sum + __shfl_xor_sync(~0u, sum, 2);
        if (lane == 0) {
            shared.m[h] = m;
            shared.l[h] = 0.0f + sum;
        }
    }
}

// o of tile `tile` of 16 dimensions, places lo..hi seen; lane 8 c + i has run c of the positions for dimensions 2 i and 2 i + 1, and
// afterwards all lanes of a pair have its sums.
template <int HEADS, class Element>
__device__ __forceinline__ void values(const Attention& form, const Element* keys, u32 tile, u32 lo, u32 hi, const Shared<HEADS>& shared, float2 (&o)[HEADS]) {
    const u32 c = threadIdx.x % 32 / 8, pair = threadIdx.x % 8 * 2;
    const u32 value_width = (form.head_dim + 15) / 16 * 16;
    const Element* at = keys + SPLIT * form.head_dim + c * RUN * value_width + tile * 16 + pair;
    const Part part(lo, hi, c * RUN);
    run_chains<HEADS>(at, value_width, &shared.p[0][c * RUN_WORDS], SPLIT_RUNS * RUN_WORDS, part, o);
    __syncwarp();
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        o[h].x = 0.0f + sum_of_runs(o[h].x);
        o[h].y = 0.0f + sum_of_runs(o[h].y);
    }
}

// One split of one query: grid (splits, blocks of heads, tokens).
template <int HEADS, class Element> __device__ __forceinline__ void attention_split(const Attention& form) {
    __shared__ Shared<HEADS> shared;
    const u32 token = blockIdx.z;
    const Seen seen = seen_by(form, token);
    if (blockIdx.x >= seen.splits()) return;
    const Heads<HEADS> heads = heads_of<HEADS>(form, blockIdx.y);
    const u32 split = seen.first_split() + blockIdx.x, start = split * SPLIT;
    const u32 lo = seen.first > start ? seen.first - start : 0, hi = min(SPLIT, seen.end - start);
    const Element* keys = keys_of<Element>(form, split, heads.kv_head);
    load_queries(form, token, heads, shared);
    __syncthreads();
    scores<HEADS>(form, keys, shared);
    __syncthreads();
    softmax(shared, lo, hi);
    __syncthreads();
    const u64 row = (u64(token) * form.heads + heads.first) * form.splits + blockIdx.x;  // of head 0; heads are `splits` apart
    if (threadIdx.x < heads.count) form.states[row + u64(threadIdx.x) * form.splits] = make_float2(shared.m[threadIdx.x], shared.l[threadIdx.x]);
    const u32 c = threadIdx.x % 32 / 8;
    for (u32 tile = threadIdx.x / 32; tile * 16 < form.head_dim; tile += WARPS) {
        const u32 d = tile * 16 + threadIdx.x % 8 * 2;
        float2 o[HEADS];
        values<HEADS>(form, keys, tile, lo, hi, shared, o);
#pragma unroll
        for (int h = 0; h < HEADS; ++h)
            if (h % 4 == c && h < heads.count && d < form.head_dim)
                *(float2*)(form.partial + (row + u64(h) * form.splits) * form.head_dim + d) = o[h];
    }
}

// All splits of one query in turn: grid (tokens, blocks of heads).
template <int HEADS, class Element> __device__ __forceinline__ void attention_all(const Attention& form) {
    constexpr int OWN = (HEADS + 3) / 4;  // heads whose sums a lane keeps
    __shared__ Shared<HEADS> shared;
    const u32 token = blockIdx.x, c = threadIdx.x % 32 / 8;
    const Seen seen = seen_by(form, token);
    const Heads<HEADS> heads = heads_of<HEADS>(form, blockIdx.y);
    load_queries(form, token, heads, shared);
    if (threadIdx.x < HEADS) {
        const bool sink = form.sinks && threadIdx.x < heads.count;
        shared.max[threadIdx.x] = sink ? form.sinks[heads.first + threadIdx.x] : -infinity();
        shared.sum[threadIdx.x] = sink ? 1.0f : 0.0f;
    }
    float2 total[DIM_TILES][OWN] = {};
    for (u32 split = seen.first_split(); split * SPLIT < seen.end; ++split) {
        const u32 start = split * SPLIT;
        const u32 lo = seen.first > start ? seen.first - start : 0, hi = min(SPLIT, seen.end - start);
        const Element* keys = keys_of<Element>(form, split, heads.kv_head);
        __syncthreads();
        scores<HEADS>(form, keys, shared);
        __syncthreads();
        softmax(shared, lo, hi);
        __syncthreads();
        if (threadIdx.x < HEADS) {
            const u32 h = threadIdx.x;
            const float max = larger(shared.max[h], shared.m[h]);
            const float a = assay::exp(shared.max[h] - max), b = assay::exp(shared.m[h] - max);
            shared.sum[h] = __fmaf_rn(shared.l[h], b, shared.sum[h] * a);
            shared.max[h] = max;
            shared.old_factor[h] = a;
            shared.new_factor[h] = b;
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < DIM_TILES; ++i) {
            const u32 tile = threadIdx.x / 32 + i * WARPS;
            if (tile * 16 >= form.head_dim) continue;
            float2 o[HEADS];
            values<HEADS>(form, keys, tile, lo, hi, shared, o);
#pragma unroll
            for (int h = 0; h < HEADS; ++h)
                if (h % 4 == c) {
                    float2& sum = total[i][h / 4];
                    const float a = shared.old_factor[h], b = shared.new_factor[h];
                    sum.x = __fmaf_rn(o[h].x, b, sum.x * a);
                    sum.y = __fmaf_rn(o[h].y, b, sum.y * a);
                }
        }
    }
#pragma unroll
    for (u32 i = 0; i < DIM_TILES; ++i) {
        const u32 d = (threadIdx.x / 32 + i * WARPS) * 16 + threadIdx.x % 8 * 2;
        if (d >= form.head_dim) continue;
#pragma unroll
        for (int h = 0; h < HEADS; ++h)
            if (h % 4 == c && h < heads.count) {
                const float sum = shared.sum[h];
                float* out = form.out + (u64(token) * form.heads + heads.first + h) * form.head_dim + d;
                *(float2*)out = make_float2(__fdiv_rn(total[i][h / 4].x, sum), __fdiv_rn(total[i][h / 4].y, sum));
            }
    }
}

// Merges what `attention_split` left, in ascending order: grid (tokens * heads), 256 threads. The running maximum of any split is
// found by a scan, since a maximum does not depend on order; its factors follow, and only the two sums are chains.
extern "C" __global__ void __launch_bounds__(256) attention_merge(Attention form) {
    constexpr u32 THREADS = 256;
    __shared__ float last[THREADS / 32], old_factor[THREADS], new_factor[THREADS], lengths[THREADS];
    __shared__ float reached;
    const u32 token = blockIdx.x / form.heads, head = blockIdx.x % form.heads, d = threadIdx.x, lane = threadIdx.x % 32;
    const u32 splits = seen_by(form, token).splits();
    const float2* states = form.states + u64(blockIdx.x) * form.splits;
    const float* partial = form.partial + u64(blockIdx.x) * form.splits * form.head_dim + d;
    float max = form.sinks ? form.sinks[head] : -infinity();
    float sum = form.sinks ? 1.0f : 0.0f, total = 0.0f;
    for (u32 first = 0; first < splits; first += THREADS) {
        const u32 here = min(splits - first, THREADS);
        const float2 state = threadIdx.x < here ? states[first + threadIdx.x] : make_float2(-infinity(), 0.0f);
        // The largest m up to and with this split's, and up to the one before.
        float upto = state.x;
        for (u32 step = 1; step < 32; step *= 2) {
            const float other = __shfl_up_sync(~0u, upto, step);
            if (lane >= step) upto = larger(upto, other);
        }
        if (lane == 31) last[threadIdx.x / 32] = upto;
        float before = __shfl_up_sync(~0u, upto, 1);
        if (lane == 0) before = -infinity();
        __syncthreads();
        for (u32 warp = 0; warp < threadIdx.x / 32; ++warp) {
            before = larger(before, last[warp]);
            upto = larger(upto, last[warp]);
        }
        // A sink that is NaN stays the maximum.
        const float old_max = larger(max, before), new_max = larger(max, upto);
        old_factor[threadIdx.x] = assay::exp(old_max - new_max);
        new_factor[threadIdx.x] = assay::exp(state.x - new_max);
        lengths[threadIdx.x] = state.y;
        if (threadIdx.x == here - 1) reached = new_max;
        __syncthreads();
        max = reached;
#pragma unroll 4
        for (u32 i = 0; i < here; ++i) sum = __fmaf_rn(lengths[i], new_factor[i], sum * old_factor[i]);
        if (d < form.head_dim) {
#pragma unroll 8
            for (u32 i = 0; i < here; ++i)
                total = __fmaf_rn(partial[u64(first + i) * form.head_dim], new_factor[i], total * old_factor[i]);
        }
        __syncthreads();
    }
    if (d < form.head_dim) form.out[u64(blockIdx.x) * form.head_dim + d] = __fdiv_rn(total, sum);
}

#define ATTENTION(heads, format, element)                                                                                          \
    extern "C" __global__ void __launch_bounds__(256, 2) attention_split_##format##_##heads(Attention form) {                      \
        attention_split<heads, element>(form);                                                                                     \
    }                                                                                                                              \
    extern "C" __global__ void __launch_bounds__(256, 2) attention_all_##format##_##heads(Attention form) {                        \
        attention_all<heads, element>(form);                                                                                       \
    }

ATTENTION(1, f32, float)
ATTENTION(2, f32, float)
ATTENTION(4, f32, float)
ATTENTION(8, f32, float)
ATTENTION(1, bf16, u16)
ATTENTION(2, bf16, u16)
ATTENTION(4, bf16, u16)
ATTENTION(8, bf16, u16)
