// Norm of queries and keys, then rotary position embedding: twin in kernels/src/twin/rope.rs.
#include "sum.cuh"

using namespace assay;

// In place on x[T, heads * head_dim]. A block takes one part of one token: the whole row where the norm is over all heads
// together, else one head. `weight` is null without a norm. Tables are [positions, rotary_dim / 2].
extern "C" __global__ void head_norm_rope(float* x, u32 row_width, u32 part_width, u32 head_dim, u32 rotary_dim,
                                          const float* weight, float eps, const float* cosines, const float* sines,
                                          u32 first_position, const u32* position_at) {
    extern __shared__ float row[];
    if (position_at) first_position = *position_at;
    float* sums = row + part_width + part_width / RUN + 1;
    x += u64(blockIdx.x) * row_width + u64(blockIdx.y) * part_width;
    for (u32 d = threadIdx.x; d < part_width; d += blockDim.x) row[padded(d)] = x[d];
    __syncthreads();
    if (weight) {
        const float inverse = block_inverse_rms(row, part_width, eps, sums);
        // No thread may write before all have read what the sum is made of: `block_inverse_rms` ends after its barrier.
        for (u32 d = threadIdx.x; d < part_width; d += blockDim.x) row[padded(d)] = (row[padded(d)] * inverse) * weight[d];
        __syncthreads();
    }
    const u32 half = rotary_dim / 2;
    const u64 angle = u64(first_position + blockIdx.x) * half;
    for (u32 d = threadIdx.x; d < part_width; d += blockDim.x) {
        const u32 head = d / head_dim * head_dim, i = d % head_dim;
        const float own = row[padded(d)];
        if (i >= rotary_dim) {
            x[d] = own;
        } else if (i < half) {
            const float other = row[padded(head + i + half)];
            x[d] = __fmaf_rn(-other, sines[angle + i], own * cosines[angle + i]);
        } else {
            const float other = row[padded(head + i - half)];
            x[d] = __fmaf_rn(other, sines[angle + i - half], own * cosines[angle + i - half]);
        }
    }
}
