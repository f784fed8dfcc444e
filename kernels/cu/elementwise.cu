// Elementwise families: twins in kernels/src/twin/elementwise.rs.
#include "contract.cuh"

using namespace assay;

// out[n] = activation(gate[n], up[n])
extern "C" __global__ void swiglu(const float* gate, const float* up, Activation form, float* out, u64 n) {
    const u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) out[i] = activate(form, gate[i], up[i]);
}

// x[n] = fma(y[n], factor, x[n])
extern "C" __global__ void add_assign(float* x, const float* y, float factor, u64 n) {
    const u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) x[i] = __fmaf_rn(y[i], factor, x[i]);
}

// x[t, d] = fma(y[t, d], sigmoid(gates[t]), x[t, d])
extern "C" __global__ void add_gated(float* x, const float* y, const float* gates, u32 width, u64 n) {
    const u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) x[i] = __fmaf_rn(y[i], sigmoid(gates[i / width]), x[i]);
}

// x[n] = x[n] * factor
extern "C" __global__ void scale(float* x, float factor, u64 n) {
    const u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * factor;
}
