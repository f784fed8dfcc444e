// The arithmetic contract's scalar functions (ARCHITECTURE.md); twins of kernels/src/contract.rs, equal to the bit.
//
// Compiled with -fmad=false -ftz=false -prec-div=true -prec-sqrt=true: a fused multiply-add is written `fmaf`, and nothing
// else is contracted. No system header is included, so that NVRTC can compile the same text.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

namespace assay {

constexpr u32 RUN = 32;     // elements of the chain that nothing may reorder
constexpr u32 GROUP = 128;  // four runs
constexpr u32 RUNS = GROUP / RUN;
constexpr u32 SPLIT = 128;  // positions of an attention split

constexpr u32 BF16 = 0, INT4 = 1, INT8 = 2;  // how a matrix is stored

constexpr float EXP_MIN = -87.33f;
constexpr float EXP_MAX = 88.72f;
constexpr float EXP_ROUND = 12582912.0f;
constexpr float LOG2_E = 1.44269504088896340736f;
constexpr float LN2_HI = 0.693147180559945309417f;
constexpr float LN2_LO = -1.9046542e-9f;

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }

__device__ __forceinline__ bool is_nan(float x) { return x != x; }

// Within 2 ulp; exp(0) == 1; NaN stays NaN.
__device__ __forceinline__ float exp(float x) {
    const float rounded = __fmaf_rn(x, LOG2_E, EXP_ROUND);
    const float n = rounded - EXP_ROUND;
    const float r = __fmaf_rn(n, -LN2_LO, __fmaf_rn(n, -LN2_HI, x));
    float q = __fmaf_rn(0.0014035609f, r, 0.008372288f);
    q = __fmaf_rn(q, r, 0.041665554f);
    q = __fmaf_rn(q, r, 0.16666488f);
    q = __fmaf_rn(q, r, 0.5f);
    const float p = __fmaf_rn(q * r, r, r) + 1.0f;
    const float scaled = __uint_as_float(__float_as_uint(p) + (__float_as_uint(rounded) << 23));
    const float low = x < EXP_MIN ? 0.0f : scaled;
    const float high = x > EXP_MAX ? infinity() : low;
    return is_nan(x) ? x : high;
}

__device__ __forceinline__ float sigmoid(float x) { return __fdiv_rn(1.0f, 1.0f + exp(-x)); }

__device__ __forceinline__ float silu(float x) { return __fdiv_rn(x, 1.0f + exp(-x)); }

// How a launcher passes an activation: `clamped` chooses the form.
struct Activation {
    u32 clamped;
    float alpha;
    float limit;
};

__device__ __forceinline__ float activate(Activation form, float gate, float up) {
    if (!form.clamped) return silu(gate) * up;
    gate = gate > form.limit ? form.limit : gate;
    up = up > form.limit ? form.limit : up;
    up = up < -form.limit ? -form.limit : up;
    return (up + 1.0f) * __fdiv_rn(gate, 1.0f + exp(-(form.alpha * gate)));
}

__device__ __forceinline__ float bf16_to_f32(u16 bits) { return __uint_as_float(u32(bits) << 16); }

// Round to nearest, ties to even; NaN as `half` writes it (quiet, sign and high payload kept).
__device__ __forceinline__ u16 f32_to_bf16(float x) {
    const u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return u16((bits >> 16) | 0x40u);
    return u16((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// What a kernel found wrong in its data, in host memory; the first to write wins. Codes are those of cuda/status.rs.
struct Status {
    u32 code;
    u32 index;
};

constexpr u32 STATUS_NAN = 1;            // a NaN where a decision depends on it
constexpr u32 STATUS_EXPERT_ABSENT = 2;  // an expert that is routed to has no address
constexpr u32 STATUS_INDEX = 3;          // an index out of range
constexpr u32 STATUS_HOST_SILENT = 4;    // the host has not computed the experts that it was asked for

__device__ __forceinline__ void report(Status* status, u32 code, u32 index) {
    if (atomicCAS_system(&status->code, 0u, code) == 0u) {
        status->index = index;
        __threadfence_system();
    }
}

}  // namespace assay
