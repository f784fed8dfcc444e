// What the attention kernels for prefill share. A thread block takes neighbouring ROWS of one key-value head: row r is head r % group of
// token r / group, so heads that share keys and values share their tiles.
#pragma once

#include "tensor.cuh"

struct AttentionArgs {
    const float* q;      // [tokens, heads, head_dim]
    const u8* cache;     // kernels/src/kv.rs
    const float* sinks;  // [heads] or null
    float* out;          // as q
    float scale;
    u32 tokens, first_position, heads, kv_heads;
    u32 window;          // the largest u32: none
};

// The first position that a query may see.
__device__ __forceinline__ u32 first_seen(u32 position, u32 window) { return position >= window ? position + 1 - window : 0; }

__device__ __forceinline__ void store16(u32 to, const uint4& v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" :: "r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// Eight f32 as eight BF16.
__device__ __forceinline__ uint4 eight_bf16(const float* from) {
    const float4 a = *(const float4*)from, b = *(const float4*)(from + 4);
    return make_uint4(bf16_pair(a.x, a.y), bf16_pair(a.z, a.w), bf16_pair(b.x, b.y), bf16_pair(b.z, b.w));
}
