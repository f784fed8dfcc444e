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
    u32 stages;  // pairs of tiles that are copied ahead
    Output outputs[OUTPUTS];  // those that are not there begin past the last tile
};

// The tiles of a block, every gridDim.x-th.
template <bool ADD> struct Products {
    const Project& form;
    u32 next_tile;  // of the next pair, the first
    float* to;      // the output that this thread takes first, or null
    const float* bias;
    float before;

    __device__ __forceinline__ u32 tile(u32 i) const { return blockIdx.x + i * gridDim.x; }

    __device__ __forceinline__ const Output& output(u32 i) const {
        return form.outputs[tile(i) >= form.outputs[2].first_tile ? 2 : tile(i) >= form.outputs[1].first_tile ? 1 : 0];
    }

    __device__ __forceinline__ Unit unit(u32 tile) const {
        if (tile >= form.tiles) return {nullptr, nullptr};
        // No table is looked into at a computed place: that would be slower.
        const u32 second = form.outputs[1].first_tile, third = form.outputs[2].first_tile;
        const u8* matrix = tile >= third ? form.outputs[2].matrix : tile >= second ? form.outputs[1].matrix : form.outputs[0].matrix;
        const u32 rows = tile >= third ? form.outputs[2].rows : tile >= second ? form.outputs[1].rows : form.outputs[0].rows;
        return unit_of<INT4>(matrix, rows, form.cols, tile - (tile >= third ? third : tile >= second ? second : 0));
    }

    __device__ __forceinline__ Two two(u32 pair) const { return {unit(tile(2 * pair)), unit(tile(2 * pair + 1))}; }

    __device__ __forceinline__ Two next() {
        const u32 first = next_tile;
        next_tile += 2 * gridDim.x;
        return {unit(first), unit(first + gridDim.x)};
    }

    // Where row r of tile i goes.
    __device__ __forceinline__ void find(u32 i, u32 r) {
        to = nullptr;
        if (tile(i) >= form.tiles) return;
        const Output& of = output(i);
        const u32 row = (tile(i) - of.first_tile) * TILE + r;
        if (row >= of.rows) return;
        to = of.out + row;
        bias = of.bias ? of.bias + row : nullptr;
    }

    // What it is added to, which the kernel before may have written.
    __device__ __forceinline__ void look_up() {
        if (ADD && to) before = load_fresh(to);
    }

    __device__ __forceinline__ void total(u32 i, u32 r, float total) {
        if (i >= 2 * BATCH) {
            find(i, r);
            look_up();
        }
        if (!to) return;
        if (bias) total = total + *bias;
        *to = ADD ? __fmaf_rn(total, form.factor, before) : total;
    }
};

// NORM: y = rms_norm(x), out[i] = w[i] . y (+ bias), and y itself. ADD: out[0] = fma(w[0] . x (+ bias), factor, out[0]). LONG: by blocks that have more
// pairs of tiles than places for them. ALL: columns come in whole groups.
template <bool NORM, bool ADD, bool LONG, bool ALL> __device__ __forceinline__ void project(const Project& form) {
    extern __shared__ __align__(16) u8 shared[];
    const u32 groups = (form.cols + GROUP - 1) / GROUP, count = (form.tiles - blockIdx.x + gridDim.x - 1) / gridDim.x;
    const u32 most = (form.tiles + gridDim.x - 1) / gridDim.x, own = threadIdx.x / 32 * GROUP + 4 * (threadIdx.x % 32);
    const u32 pairs = (most + 1) / 2, batch = min(pairs, BATCH);
    Carve carve{shared};
    float* row = carve.take<float>(groups * RUNS * RUN_WORDS);
    float* factors = carve.take<float>(NORM ? form.cols : 0);
    float* sums = carve.take<float>(groups);
    float2* part = carve.take<float2>((pairs > batch ? 2 : 1) * batch * 2 * groups * TILE);
    u64* arrivals = carve.take<u64>(LONG ? 2 * MAX_DEPTH : 0);
    const Tiles<LONG> tiles = {form.cols, groups, count, form.stages, carve.take<u8>(form.stages * 2 * groups * STAGED_GROUP), part, arrivals};
    Products<ADD> work = {form, blockIdx.x, nullptr, nullptr, 0.0f};
    if (LONG) {
        if (threadIdx.x == 0) tiles.init();
        __syncthreads();
    }
    if (NORM) {
        for (u32 k = own; k < form.cols; k += 4 * blockDim.x) copy_16(factors + k, form.norm + k);
        end_of_copies();
    }
    tiles.begin(work);
    work.find(threadIdx.x / TILE, threadIdx.x % TILE);
    wait_for_previous();
    let_next_start();
    // By registers: it does not wait for the weights.
    for (u32 k = own; k < form.cols; k += 4 * blockDim.x) *(float4*)(row + in_runs(k)) = __ldcg((const float4*)(form.x + k));
    if (threadIdx.x < 2 * BATCH * TILE) work.look_up();
    __syncwarp();
    if (NORM) {
        const float inverse = row_inverse_rms(row, form.cols, form.eps, sums);
        wait_for_copies_but(form.stages);
        apply_norm(row, factors, form.cols, inverse, form.normed);
    }
    tiles.template run<ALL>(work, row);
}

#define PROJECT(name, norm, add, many, all) \
    extern "C" __global__ void __launch_bounds__(512, 2) name(const __grid_constant__ Project form) { project<norm, add, many, all>(form); }

PROJECT(norm_linear, true, false, false, true)
PROJECT(norm_linear_part, true, false, false, false)
PROJECT(norm_linear_long, true, false, true, true)
PROJECT(norm_linear_long_part, true, false, true, false)
PROJECT(linear_add, false, true, false, true)
PROJECT(linear_add_part, false, true, false, false)
