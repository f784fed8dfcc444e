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
    u32 tiles;   // of all outputs
    u32 stages;  // tiles that are copied ahead
    Output outputs[OUTPUTS];  // those that are not there begin past the last tile
};

// The tiles of a block, every gridDim.x-th.
template <bool ADD> struct Products {
    const Project& form;
    float before;

    __device__ __forceinline__ u32 tile(u32 i) const { return blockIdx.x + i * gridDim.x; }

    __device__ __forceinline__ const Output& output(u32 i) const {
        return form.outputs[tile(i) >= form.outputs[2].first_tile ? 2 : tile(i) >= form.outputs[1].first_tile ? 1 : 0];
    }

    __device__ __forceinline__ Unit unit(u32 i) const {
        if (tile(i) >= form.tiles) return {nullptr, nullptr};
        const Output& to = output(i);
        return unit_of<true>(to.matrix, to.rows, form.cols, tile(i) - to.first_tile);
    }

    __device__ __forceinline__ void ahead(u32 i, u32 r) {
        if (!ADD) return;
        const Output& to = output(i);
        const u32 row = (tile(i) - to.first_tile) * TILE + r;
        if (row < to.rows) before = load_fresh(to.out + row);
    }

    __device__ __forceinline__ void total(u32 i, u32 r, float total) const {
        if (tile(i) >= form.tiles) return;
        const Output& to = output(i);
        const u32 row = (tile(i) - to.first_tile) * TILE + r;
        if (row >= to.rows) return;
        if (to.bias) total = total + to.bias[row];
        to.out[row] = ADD ? __fmaf_rn(total, form.factor, before) : total;
    }
};

// NORM: y = rms_norm(x), out[i] = w[i] . y (+ bias), and y itself. ADD: out[0] = fma(w[0] . x (+ bias), factor, out[0]). ALL: columns come in
// whole groups.
template <bool NORM, bool ADD, bool ALL> __device__ __forceinline__ void project(const Project& form) {
    extern __shared__ __align__(16) u8 shared[];
    const u32 groups = (form.cols + GROUP - 1) / GROUP, count = (form.tiles - blockIdx.x + gridDim.x - 1) / gridDim.x;
    const u32 most = (form.tiles + gridDim.x - 1) / gridDim.x, own = threadIdx.x / 32 * GROUP + 4 * (threadIdx.x % 32);
    Carve carve{shared};
    float* row = carve.take<float>(groups * RUNS * RUN_WORDS);
    float* factors = carve.take<float>(NORM ? form.cols : 0);
    float* sums = carve.take<float>(groups);
    float2* part = carve.take<float2>(min(most, MAX_STAGES) * groups * TILE);
    u64* arrivals = carve.take<u64>(MAX_STAGES);
    const Tiles tiles = {form.cols, groups, count, form.stages, carve.take<u8>(form.stages * groups * STAGED_GROUP), part, arrivals};
    Products<ADD> work = {form, 0.0f};
    tiles.init();
    tiles.stage(work, 0, form.stages);
    if (NORM)
        for (u32 k = own; k < form.cols; k += 4 * blockDim.x) copy_16(factors + k, form.norm + k);
    __syncthreads();
    wait_for_previous();
    let_next_start();
    copy_own_groups(row, form.x, form.cols);
    wait_for_own_copies();
    if (NORM) {
        const float inverse = row_inverse_rms(row, form.cols, form.eps, sums);
        for (u32 k = own; k < form.cols; k += 4 * blockDim.x) {
            float4* at = (float4*)(row + in_runs(k));
            const float4 x = *at, factor = *(const float4*)(factors + k);
            *at = make_float4((x.x * inverse) * factor.x, (x.y * inverse) * factor.y, (x.z * inverse) * factor.z, (x.w * inverse) * factor.w);
            if (blockIdx.x == gridDim.x - 1) *(float4*)(form.normed + k) = *at;
        }
        __syncwarp();
    }
    tiles.template run<ALL>(work, row);
}

#define PROJECT(name, norm, add, all) \
    extern "C" __global__ void __launch_bounds__(512, 2) name(const __grid_constant__ Project form) { project<norm, add, all>(form); }

PROJECT(norm_linear, true, false, true)
PROJECT(norm_linear_part, true, false, false)
PROJECT(linear_add, false, true, true)
PROJECT(linear_add_part, false, true, false)
