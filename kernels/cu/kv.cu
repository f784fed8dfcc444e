// Storing keys and values in the layout of kernels/src/kv.rs: twin in kernels/src/twin/attention.rs.
#include "contract.cuh"

using namespace assay;

// k and v are [T, kv_heads * head_dim], stored at first_position and on; one block a token and head. `value_width` is head_dim
// rounded up to 16; a split of a head holds K [8 tiles][head_dim][16 positions], then V [128 positions][value_width].
template <typename Element, typename Round>
__device__ __forceinline__ void append(const float* k, const float* v, Element* cache, u32 kv_heads, u32 head_dim,
                                       u32 value_width, u32 first_position, const u32* position_at, Round round) {
    if (position_at) first_position = *position_at;
    const u32 token = blockIdx.x, head = blockIdx.y;
    const u32 position = first_position + token;
    const u32 place = position % SPLIT;
    Element* block = cache + (u64(position / SPLIT) * kv_heads + head) * SPLIT * (head_dim + value_width);
    Element* key = block + u64(place / 16) * 16 * head_dim + place % 16;
    Element* value = block + u64(SPLIT) * head_dim + u64(place) * value_width;
    const u64 row = (u64(token) * kv_heads + head) * head_dim;
    for (u32 d = threadIdx.x; d < head_dim; d += blockDim.x) {
        key[u64(d) * 16] = round(k[row + d]);
        value[d] = round(v[row + d]);
    }
}

extern "C" __global__ void kv_append_f32(const float* k, const float* v, float* cache, u32 kv_heads, u32 head_dim,
                                         u32 value_width, u32 first_position, const u32* position_at) {
    append(k, v, cache, kv_heads, head_dim, value_width, first_position, position_at, [](float x) { return x; });
}

extern "C" __global__ void kv_append_bf16(const float* k, const float* v, u16* cache, u32 kv_heads, u32 head_dim,
                                          u32 value_width, u32 first_position, const u32* position_at) {
    append(k, v, cache, kv_heads, head_dim, value_width, first_position, position_at, [](float x) { return f32_to_bf16(x); });
}
