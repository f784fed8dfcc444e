// What attention in whole splits shares: kernels for heads of 128, whose sizes are constants.
#pragma once
#include "decode_attention.cuh"

namespace assay {

constexpr u32 DIM = MAX_DIM;
constexpr u32 PIECES = DIM / 32;                       // elements of a head that a lane has: lane, 32 + lane, ...
constexpr u32 TILE_PITCH = BF16_COL_BYTES * DIM + 32;  // of 16 keys: eight tiles start in other banks

// A BF16 pair's two numbers.
__device__ __forceinline__ float low_half(u32 two) { return __uint_as_float(two << 16); }
__device__ __forceinline__ float high_half(u32 two) { return __uint_as_float(two & 0xffff0000u); }

__device__ __forceinline__ void load_head(const float* from, float (&own)[PIECES]) {
#pragma unroll
    for (u32 i = 0; i < PIECES; ++i) own[i] = load_fresh(from + i * 32 + threadIdx.x % 32);
}

// To padded runs.
__device__ __forceinline__ void store_head(float* head, const float (&own)[PIECES]) {
#pragma unroll
    for (u32 i = 0; i < PIECES; ++i) head[i * RUN_WORDS + threadIdx.x % 32] = own[i];
}

// The norm of one head by one warp; `scratch` has room for the head in padded runs.
__device__ __forceinline__ void norm(const Attend& form, const Turn<true>& turn, float* scratch, float (&own)[PIECES]) {
    store_head(scratch, own);
    __syncwarp();
    const float sum = 0.0f + sum_of_four(square_run(scratch + threadIdx.x % RUNS * RUN_WORDS, RUN));
    const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(sum * (1.0f / DIM) + form.eps));  // DIM is a power of two
#pragma unroll
    for (u32 i = 0; i < PIECES; ++i) own[i] = (own[i] * inverse) * turn.weight[i];
}

// Rope of one head by one warp, with the same scratch memory.
__device__ __forceinline__ void turn_head(const Attend& form, const Turn<true>& turn, float* scratch, float (&own)[PIECES]) {
    const u32 lane = threadIdx.x % 32, half = form.rotary_dim / 2;
    float other[PIECES];
    if (half == DIM / 2) {
#pragma unroll
        for (u32 i = 0; i < PIECES; ++i) other[i] = own[i ^ (PIECES / 2)];
    } else {
        __syncwarp();
        store_head(scratch, own);
        __syncwarp();
#pragma unroll
        for (u32 i = 0; i < PIECES; ++i) {
            const u32 d = i * 32 + lane;
            other[i] = scratch[in_runs(d < half ? d + half : d < 2 * half ? d - half : d)];
        }
    }
#pragma unroll
    for (u32 i = 0; i < PIECES; ++i) {
        const u32 d = i * 32 + lane;
        const float turned = __fmaf_rn(d < half ? -other[i] : other[i], turn.sine[i], own[i] * turn.cosine[i]);
        own[i] = d < 2 * half ? turned : own[i];
    }
}

// The token's value, columns 4 lane to 4 lane + 3.
__device__ __forceinline__ uint2 four_of_value(const Attend& form, u32 kv_head) {
    const float4 v = __ldcg((const float4*)(form.v + kv_head * DIM) + threadIdx.x % 32);
    return {f32_to_bf16(v.x) | u32(f32_to_bf16(v.y)) << 16, f32_to_bf16(v.z) | u32(f32_to_bf16(v.w)) << 16};
}

}  // namespace assay
