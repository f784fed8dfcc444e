// One token's routed INT4 experts: `grouped_gate_up`, and `grouped_down`, `combine`, `add_assign` in one.
#include "decode.cuh"

using namespace assay;

struct Experts {
    const u64* table;  // [experts]; 0 or all ones where an expert is not on the device
    const u32* ids;    // [slots]
    u32 experts, slots;
    u64 first, second;            // matrices in an expert, in bytes: gate and up, or down
    u64 first_bias, second_bias;  // f32; 0 for none
    u32 rows, cols;
    const float* x;        // [cols], or [slots, cols]
    const float* weights;  // [slots]
    float factor;
    float* out;  // [slots, rows], or [rows]
    Activation form;
};

__device__ __forceinline__ const u8* expert_of(const Experts& work, u32 slot, Status* status) {
    const u32 id = load_fresh(work.ids + slot);
    const u64 address = id < work.experts ? load_fresh(work.table + id) : 0;
    if (address != 0 && address != ~0ull) return (const u8*)address;
    if (threadIdx.x == 0) {
        const bool absent = id < work.experts;
        report(status, absent ? STATUS_EXPERT_ABSENT : STATUS_INDEX, absent ? id : slot);
    }
    return nullptr;
}

__device__ __forceinline__ float with_bias(float total, const u8* expert, u64 offset, u32 row) {
    return offset ? total + ((const float*)(expert + offset))[row] : total;
}

// out[slot] = activation(gate . x, up . x); a block takes a tile of both for one slot.
extern "C" __global__ void __launch_bounds__(256, 5) token_gate_up(const __grid_constant__ Experts work, Status* status) {
    extern __shared__ __align__(16) u8 shared[];
    const u32 groups = (work.cols + GROUP - 1) / GROUP, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const u32 slot = blockIdx.x % work.slots, tile = blockIdx.x / work.slots;
    Carve carve{shared};
    float* row = carve.take<float>(groups * RUNS * RUN_WORDS);
    float* part = carve.take<float>(2 * groups * TILE);
    u16* scales = carve.take<u16>(2 * groups * TILE);
    u8* weights = carve.take<u8>(2 * groups * GROUP_BYTES);
    wait_for_previous();
    copy_row(row, work.x, work.cols);
    const u8* expert = expert_of(work, slot, status);
    if (!expert) return;
    const Unit units[2] = {unit_of<true>(expert + work.first, work.rows, work.cols, tile), unit_of<true>(expert + work.second, work.rows, work.cols, tile)};
    if (warp < 2) stage_scales(scales + warp * groups * TILE, warp == 0 ? units[0].scales : units[1].scales, groups);
    commit_copies();
#pragma unroll
    for (int u = 0; u < 2; ++u) stage_groups(weights + u * groups * GROUP_BYTES, units[u].weights, warp, groups, warps);
    commit_copies();
    let_next_start();
    wait_for_copies_but<1>();
    __syncthreads();
    wait_for_copies();
    for (u32 g = warp; g < groups; g += warps)
        group_sums<4>(weights + g * GROUP_BYTES, groups * GROUP_BYTES, row, g, work.cols - g * GROUP, part + g * TILE, groups * TILE);
    __syncthreads();
    if (threadIdx.x >= 2 * TILE) return;
    const u32 u = threadIdx.x / TILE, r = threadIdx.x % TILE, own = tile * TILE + r;
    float total = scaled_total(part + u * groups * TILE + r, scales + u * groups * TILE + r, groups);
    if (own < work.rows) total = with_bias(total, expert, u == 0 ? work.first_bias : work.second_bias, own);
    const float up = __shfl_down_sync(~0u, total, TILE);
    if (u == 0 && own < work.rows) work.out[u64(slot) * work.rows + own] = activate(work.form, total, up);
}

// out = fma(sum over slots in order of fma(weight, down . x[slot], sum), factor, out); a block takes a tile of all slots. Ids and table are
// older than the kernel before.
extern "C" __global__ void __launch_bounds__(512, 2) token_down(const __grid_constant__ Experts work, Status* status) {
    extern __shared__ __align__(16) u8 shared[];
    __shared__ const u8* at[32];
    const u32 groups = (work.cols + GROUP - 1) / GROUP, warp = threadIdx.x / 32, warps = blockDim.x / 32, tile = blockIdx.x;
    const u32 items = work.slots * groups;
    Carve carve{shared};
    float* rows = carve.take<float>(items * RUNS * RUN_WORDS);
    float* part = carve.take<float>(items * TILE);
    float* answers = carve.take<float>(work.slots * TILE);
    u16* scales = carve.take<u16>(items * TILE);
    u8* weights = carve.take<u8>(items * GROUP_BYTES);
    if (threadIdx.x < work.slots) at[threadIdx.x] = nullptr;
    // A warp finds the experts of its items by itself.
    bool absent = false;
    for (u32 item = warp; item < items; item += warps) {
        const u32 slot = item / groups, g = item % groups;
        const u32 id = load_fresh(work.ids + slot);
        const u64 address = id < work.experts ? load_fresh(work.table + id) : 0;
        if (address == 0 || address == ~0ull) {
            absent = true;
            if (threadIdx.x % 32 == 0 && g == 0) report(status, id < work.experts ? STATUS_EXPERT_ABSENT : STATUS_INDEX, id < work.experts ? id : slot);
            continue;
        }
        const Unit unit = unit_of<true>((const u8*)address + work.first, work.rows, work.cols, tile);
        const u32 lane = threadIdx.x % 32;
        copy_16(weights + item * GROUP_BYTES + 16 * lane, unit.weights + g * GROUP_BYTES + 16 * lane);
        copy_16(weights + item * GROUP_BYTES + 16 * lane + 512, unit.weights + g * GROUP_BYTES + 16 * lane + 512);
        if (lane < 2) copy_16(scales + item * TILE + 8 * lane, unit.scales + g * TILE * 2 + 16 * lane);
        if (lane == 0 && g == 0) at[slot] = (const u8*)address;
    }
    wait_for_previous();
    let_next_start();
    for (u32 slot = 0; slot < work.slots; ++slot) copy_row(rows + slot * groups * RUNS * RUN_WORDS, work.x + u64(slot) * work.cols, work.cols);
    const u32 own = tile * TILE + threadIdx.x % TILE;
    float before = 0.0f;
    if (threadIdx.x < TILE && own < work.rows) before = load_fresh(work.out + own);
    wait_for_copies();
    // Nothing is written where an expert is missing.
    if (__syncthreads_or(absent)) return;
    for (u32 item = warp; item < items; item += warps) {
        const u32 slot = item / groups, g = item % groups;
        group_sums<2>(weights + item * GROUP_BYTES, 0, rows + slot * groups * RUNS * RUN_WORDS, g, work.cols - g * GROUP, part + item * TILE, 0);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < work.slots * TILE; i += blockDim.x) {
        const u32 slot = i / TILE, r = i % TILE;
        const float total = scaled_total(part + slot * groups * TILE + r, scales + slot * groups * TILE + r, groups);
        answers[i] = tile * TILE + r < work.rows ? with_bias(total, at[slot], work.first_bias, tile * TILE + r) : 0.0f;
    }
    __syncthreads();
    if (threadIdx.x >= TILE || own >= work.rows) return;
    float sum = 0.0f;
#pragma unroll 8
    for (u32 slot = 0; slot < work.slots; ++slot) sum = __fmaf_rn(load_fresh(work.weights + slot), answers[slot * TILE + threadIdx.x], sum);
    work.out[own] = __fmaf_rn(sum, work.factor, before);
}
