// What the kernels of one token's attention share.
#pragma once
#include "decode.cuh"

namespace assay {

constexpr u32 MAX_DIM = 128;
constexpr u32 HEAD_WORDS = MAX_DIM / RUN * RUN_WORDS;
constexpr u32 MOST_SPLITS = 8;  // that a cluster's first block, or the last block, merges by itself
constexpr u32 FOUND_WORDS = MAX_DIM + 4;

struct Attend {
    const float *q, *k, *v;        // [heads * head_dim], [kv_heads * head_dim] twice
    const float *q_norm, *k_norm;  // [head_dim], or null
    const float *cosines, *sines;  // [positions, rotary_dim / 2]
    u8* cache;
    const float* sinks;  // [heads], or null
    float* out;          // [heads * head_dim]
    float2* states;      // [heads, splits]: m and l
    float* partial;      // [heads, splits, head_dim]: o
    const u32* position_at;
    u32 heads, kv_heads, head_dim, rotary_dim;
    u32 first_position;  // unless it is at position_at
    u32 window;          // 0 for none
    u32 splits;          // room for in `states` and `partial`
    float scale, eps;
    u32 merged_after;  // whether `attend_merge` comes next
    u32 clustered;     // whether the blocks that share the splits, at most MOST_SPLITS, are a cluster, a split each
};

// What a lane needs to norm and turn a head: of the tables and the norm's weights elements lane, 32 + lane, ... WIDEST: of a head of MAX_DIM.
template <bool WIDEST> struct Turn {
    float weight[MAX_DIM / RUN], cosine[MAX_DIM / RUN], sine[MAX_DIM / RUN];

    __device__ __forceinline__ Turn(const Attend& form, const float* weights, u32 position) {
        const u32 half = form.rotary_dim / 2;
        const float *cosines = form.cosines + u64(position) * half, *sines = form.sines + u64(position) * half;
#pragma unroll
        for (u32 i = 0; i < MAX_DIM / RUN; ++i) {
            const u32 d = i * RUN + threadIdx.x % 32, pair = d < half ? d : d - half;
            weight[i] = weights && (WIDEST || d < form.head_dim) ? weights[d] : float(WIDEST);  // unused where there is none
            cosine[i] = pair < half ? cosines[pair] : 0.0f;
            sine[i] = pair < half ? sines[pair] : 0.0f;
        }
    }
};

// A block's query heads: up to HEADS of those that share a key-value head. The grid's second axis has a block for each.
template <int HEADS> struct Heads {
    u32 kv_head, first, first_head, count;  // `first` among those that share the key-value head, `first_head` among all

    __device__ __forceinline__ explicit Heads(const Attend& form) {
        const u32 each = form.heads / form.kv_heads, blocks = (each + HEADS - 1) / HEADS;
        kv_head = blockIdx.y / blocks;
        first = blockIdx.y % blocks * HEADS;
        first_head = kv_head * each + first;
        count = min(each - first, u32(HEADS));
    }
};

// Which positions the token's query sees, and in which splits they lie.
struct Seen {
    u32 position, end, from, first_split, splits;

    __device__ __forceinline__ explicit Seen(const Attend& form) {
        position = form.position_at ? *form.position_at : form.first_position;
        end = position + 1;
        from = form.window && end > form.window ? end - form.window : 0;
        first_split = from / SPLIT;
        splits = (end + SPLIT - 1) / SPLIT - first_split;
    }
};

__device__ __forceinline__ float larger(float a, float b) { return b > a ? b : a; }

}  // namespace assay
