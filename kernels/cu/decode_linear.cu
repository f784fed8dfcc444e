// One token's products with INT4 matrices, with what stands before and after them: compositions of the twins `rms_norm`, `linear`, `add_assign`.
#include "decode.cuh"

using namespace assay;

constexpr u32 OUTPUTS = 3;

struct Output {
    const u8* matrix;
    const float* bias;  // or null
    float* out;
    u32 rows;
    u32 first_tile;  // of the launch
};

struct Project {
    const float* x;     // [cols]
    const float* norm;  // [cols]
    float* normed;      // [cols]
    float eps;
    float factor;
    u32 cols;
    u32 tiles;  // of all outputs
    Output outputs[OUTPUTS];  // those that are not there begin past the last tile
};

struct Target {
    Unit unit;
    Output output;
    u32 first_row;
};

__device__ __forceinline__ Target target_of(const Project& form, u32 tile) {
    const Output output = tile >= form.outputs[2].first_tile ? form.outputs[2] : tile >= form.outputs[1].first_tile ? form.outputs[1] : form.outputs[0];
    const u32 own = tile - output.first_tile;
    return {unit_of<true>(output.matrix, output.rows, form.cols, own), output, own * TILE};
}

// NORM: y = rms_norm(x), out[i] = w[i] . y (+ bias), and y itself. ADD: out[0] = fma(w[0] . x (+ bias), factor, out[0]). A block takes every
// gridDim.x-th tile and asks for the next one's weights before it computes.
template <bool NORM, bool ADD> __device__ __forceinline__ void project(const Project& form) {
    extern __shared__ __align__(16) u8 shared[];
    const u32 groups = (form.cols + GROUP - 1) / GROUP, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const u32 stages = gridDim.x < form.tiles ? 2 : 1;
    Carve carve{shared};
    float* row = carve.take<float>(groups * RUNS * RUN_WORDS);
    float* factors = carve.take<float>(NORM ? form.cols : 0);
    float* sums = carve.take<float>(groups);
    float* part = carve.take<float>(stages * groups * TILE);
    u16* scales = carve.take<u16>(stages * groups * TILE);
    u8* weights = carve.take<u8>(stages * groups * GROUP_BYTES);
    const auto stage = [&](u32 tile, u32 slot) {
        if (tile < form.tiles) {
            const Target target = target_of(form, tile);
            // One warp copies the scales and adds up: it does not overwrite what it has yet to read.
            if (warp == 0) stage_scales(scales + slot * groups * TILE, target.unit.scales, groups);
            stage_groups(weights + slot * groups * GROUP_BYTES, target.unit.weights, warp, groups, warps);
        }
        commit_copies();
    };
    if (NORM)
        for (u32 k = 4 * threadIdx.x; k < form.cols; k += 4 * blockDim.x) copy_16(factors + k, form.norm + k);
    stage(blockIdx.x, 0);
    wait_for_previous();
    let_next_start();
    copy_row(row, form.x, form.cols);
    wait_for_copies();
    __syncthreads();
    if (NORM) {
        const float inverse = row_inverse_rms(row, form.cols, form.eps, sums);
        for (u32 k = threadIdx.x; k < form.cols; k += blockDim.x) {
            const float y = (row[in_runs(k)] * inverse) * factors[k];
            row[in_runs(k)] = y;
            if (blockIdx.x == 0) form.normed[k] = y;
        }
        __syncthreads();
    }
    for (u32 tile = blockIdx.x, slot = 0; tile < form.tiles; tile += gridDim.x, slot ^= stages - 1) {
        const Target target = target_of(form, tile);
        const u32 own = target.first_row + threadIdx.x;
        const bool adds = threadIdx.x < TILE && own < target.output.rows;
        float before = 0.0f;
        if (ADD && adds) before = load_fresh(target.output.out + own);
        if (stages == 2) stage(tile + gridDim.x, slot ^ 1);
        if (stages == 2) wait_for_copies_but<1>();
        float* sum = part + slot * groups * TILE;
        for (u32 g = warp; g < groups; g += warps)
            group_sums<2>(weights + (slot * groups + g) * GROUP_BYTES, 0, row, g, form.cols - g * GROUP, sum + g * TILE, 0);
        __syncthreads();
        if (adds) {
            float total = scaled_total(sum + threadIdx.x, scales + slot * groups * TILE + threadIdx.x, groups);
            if (target.output.bias) total = total + target.output.bias[own];
            target.output.out[own] = ADD ? __fmaf_rn(total, form.factor, before) : total;
        }
        // Lanes without a row would copy the next scales over those that the others still read.
        __syncwarp();
    }
}

extern "C" __global__ void __launch_bounds__(512, 2) norm_linear(const __grid_constant__ Project form) { project<true, false>(form); }
extern "C" __global__ void __launch_bounds__(512, 2) linear_add(const __grid_constant__ Project form) { project<false, true>(form); }
