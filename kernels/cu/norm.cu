// RMSNorm: twin in kernels/src/twin/norm.rs.
#include "sum.cuh"

using namespace assay;

// out[t] = (x[t] * inverse_rms(x[t])) * weight; one block a token.
extern "C" __global__ void rms_norm(const float* x, const float* weight, u32 width, float eps, float* out) {
    extern __shared__ float row[];
    float* sums = row + width + width / RUN + 1;
    x += u64(blockIdx.x) * width;
    out += u64(blockIdx.x) * width;
    for (u32 d = threadIdx.x; d < width; d += blockDim.x) row[padded(d)] = x[d];
    __syncthreads();
    const float inverse = block_inverse_rms(row, width, eps, sums);
    for (u32 d = threadIdx.x; d < width; d += blockDim.x) out[d] = (row[padded(d)] * inverse) * weight[d];
}
