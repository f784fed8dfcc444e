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

// Integer formats, as kernels/src/kv/quantized.rs lays them out: UNIT neighbouring codes of a row share UNIT_BYTES bytes.
constexpr u32 KV_GROUP = 32;  // dimensions that share a scale: the lanes of a warp

template <int BITS> struct Codes {
    static constexpr int MOST = (1 << (BITS - 1)) - 1, ZERO = 1 << (BITS - 1);
    static constexpr u32 UNIT = BITS == 4 ? 2 : BITS == 6 ? 4 : 1, UNIT_BYTES = BITS == 6 ? 3 : 1;

    u32 row, groups;  // bytes of a row of codes, scales of a row
    __device__ __forceinline__ Codes(u32 head_dim, u32 value_width)
        : row(value_width / UNIT * UNIT_BYTES), groups((head_dim + KV_GROUP - 1) / KV_GROUP) {}
    __device__ __forceinline__ u64 block_bytes() const { return u64(2 * SPLIT) * (row + 2 * groups); }
    __device__ __forceinline__ u32 code_at(bool value, u32 place, u32 byte) const {
        return value ? (SPLIT + place) * row + byte : (place / 16 * row + byte) * 16 + place % 16;
    }
    __device__ __forceinline__ u32 scale_at(bool value, u32 place, u32 group) const {
        return 2 * SPLIT * row + 2 * (((value ? SPLIT : 0) + place) * groups + group);
    }
    __device__ __forceinline__ float read(const u8* block, bool value, u32 place, u32 dim) const {
        u32 word = 0;
#pragma unroll
        for (u32 byte = 0; byte < UNIT_BYTES; ++byte)
            word |= u32(block[code_at(value, place, dim / UNIT * UNIT_BYTES + byte)]) << (8 * byte);
        const int q = BITS == 8 ? int((signed char)word) : int((word >> (dim % UNIT * BITS)) & ((1u << BITS) - 1)) - ZERO;
        return float(q) * bf16_to_f32(*(const u16*)(block + scale_at(value, place, dim / KV_GROUP)));
    }
};

// As `append`; a warp takes a group of a token's key or value, a lane one dimension.
template <int BITS>
__device__ __forceinline__ void append_codes(const float* k, const float* v, u8* cache, u32 kv_heads, u32 head_dim, u32 value_width,
                                             u32 first_position, const u32* position_at) {
    using Form = Codes<BITS>;
    if (position_at) first_position = *position_at;
    const Form form(head_dim, value_width);
    const u32 token = blockIdx.x, head = blockIdx.y, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const u32 position = first_position + token, place = position % SPLIT;
    u8* block = cache + (u64(position / SPLIT) * kv_heads + head) * form.block_bytes();
    const u64 from = (u64(token) * kv_heads + head) * head_dim;
    for (u32 part = threadIdx.x / 32; part < 2 * form.groups; part += warps) {
        const bool value = part >= form.groups;
        const u32 group = value ? part - form.groups : part, dim = group * KV_GROUP + lane;
        const float x = dim < head_dim ? (value ? v : k)[from + dim] : 0.0f;
        float amax = fabsf(x);
        const bool spoiled = __any_sync(~0u, !(amax < infinity()));
        for (u32 step = 16; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(~0u, amax, step);
            amax = other > amax ? other : amax;
        }
        const u16 stored = spoiled ? u16(0x7fc0) : f32_to_bf16(__fdiv_rn(amax, float(Form::MOST)));
        const float scale = bf16_to_f32(stored), most = float(Form::MOST);
        float q = rintf(__fdiv_rn(x, scale));
        q = q > most ? most : q < -most ? -most : q;
        const int code = is_nan(q) || scale == 0.0f ? 0 : int(q);
        const u32 field = BITS == 8 ? u32(code) & 255u : u32(code + Form::ZERO);
        u32 word = field;
#pragma unroll
        for (u32 next = 1; next < Form::UNIT; ++next) word |= __shfl_down_sync(~0u, field, next) << (next * BITS);
        if (lane % Form::UNIT == 0 && dim < head_dim)
#pragma unroll
            for (u32 byte = 0; byte < Form::UNIT_BYTES; ++byte)
                block[form.code_at(value, place, dim / Form::UNIT * Form::UNIT_BYTES + byte)] = u8(word >> (8 * byte));
        if (lane == 0) *(u16*)(block + form.scale_at(value, place, group)) = stored;
    }
}

// The numbers that codes stand for, exactly, in the arrangement of an F32 cache: grid (splits, key-value heads).
template <int BITS>
__device__ __forceinline__ void unpack_codes(const u8* cache, float* out, u32 kv_heads, u32 head_dim, u32 value_width) {
    const Codes<BITS> form(head_dim, value_width);
    const u64 index = u64(blockIdx.x) * kv_heads + blockIdx.y;
    const u8* block = cache + index * form.block_bytes();
    float* keys = out + index * SPLIT * (head_dim + value_width);
    float* values = keys + SPLIT * head_dim;
    for (u32 i = threadIdx.x; i < SPLIT * head_dim; i += blockDim.x) {
        const u32 tile = i / (16 * head_dim), dim = i / 16 % head_dim;
        keys[i] = form.read(block, false, tile * 16 + i % 16, dim);
    }
    for (u32 i = threadIdx.x; i < SPLIT * value_width; i += blockDim.x) {
        const u32 dim = i % value_width;
        values[i] = dim < head_dim ? form.read(block, true, i / value_width, dim) : 0.0f;
    }
}

#define KV_CODES(bits)                                                                                                          \
    extern "C" __global__ void kv_append_int##bits(const float* k, const float* v, u8* cache, u32 kv_heads, u32 head_dim,       \
                                                   u32 value_width, u32 first_position, const u32* position_at) {               \
        append_codes<bits>(k, v, cache, kv_heads, head_dim, value_width, first_position, position_at);                          \
    }                                                                                                                           \
    extern "C" __global__ void kv_unpack_int##bits(const u8* cache, float* out, u32 kv_heads, u32 head_dim, u32 value_width) {  \
        unpack_codes<bits>(cache, out, kv_heads, head_dim, value_width);                                                        \
    }

KV_CODES(8)
KV_CODES(6)
KV_CODES(4)
