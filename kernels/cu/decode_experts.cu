// One token's routed INT4 experts: `grouped_gate_up`, and `grouped_down`, `combine`, `add_assign` in one.
#include "decode.cuh"

using namespace assay;

constexpr u32 MAX_SLOTS = 32;

struct Experts {
    const u64* table;  // [experts]; 0 or all ones where an expert is not on the device, or what the host has computed of it (`is_answer`)
    const u32* ids;    // [slots]
    u32 experts, slots;
    u64 first, second;            // matrices in an expert, in bytes: gate and up, or down
    u64 first_bias, second_bias;  // f32; 0 for none
    u32 rows, cols;
    u32 stages;            // pairs of tiles, gate and up, that are copied ahead
    u32 slots_on, tiles_on;  // gridDim.x % slots, gridDim.x / slots: from a block's pair to its next
    const float* x;        // [cols], or [slots, cols]
    const float* weights;  // [slots]
    float factor;
    float* out;  // [slots, rows], or [rows]
    Activation form;
};

__device__ __forceinline__ float with_bias(float total, const u8* expert, u64 offset, u32 row) {
    return offset ? total + ((const float*)(expert + offset))[row] : total;
}

// Gate and up tiles of a block in turn, of every gridDim.x-th (tile, slot).
struct GatesAndUps {
    const Experts& work;
    const u8* const* at;       // of each slot's expert; null where it is not there
    u32 next_slot, next_tile;  // of the next pair
    u32 slot, row;             // that this thread takes first

    __device__ __forceinline__ Two next() {
        const u32 groups = (work.cols + GROUP - 1) / GROUP, tiles = (work.rows + TILE - 1) / TILE;
        const u8* from = at[next_slot];
        const u8* gate = from + work.first + u64(next_tile) * (groups * GROUP_BYTES);
        const u8* scales = from + work.first + u64(tiles) * (groups * GROUP_BYTES) + u64(next_tile) * (groups * TILE * 2);
        next_slot += work.slots_on, next_tile += work.tiles_on;
        if (next_slot >= work.slots) next_slot -= work.slots, ++next_tile;
        if (!from) return {{nullptr, nullptr}, {nullptr, nullptr}};
        const u64 further = work.second - work.first;
        return {{gate, scales}, {gate + further, scales + further}};
    }

    // Where row r of tile i is.
    __device__ __forceinline__ void find(u32 i, u32 r) {
        const u32 item = blockIdx.x + i / 2 * gridDim.x, tile = item / work.slots;
        slot = item - tile * work.slots;
        row = tile * TILE + r;
    }

    // A warp has both tiles.
    __device__ __forceinline__ void total(u32 i, u32 r, float total) {
        if (i >= 2 * BATCH) find(i, r);
        const u8* from = at[slot];
        const bool there = from && row < work.rows;
        if (there) total = with_bias(total, from, i % 2 ? work.second_bias : work.first_bias, row);
        const float up = __shfl_down_sync(~0u, total, TILE);
        if (there && i % 2 == 0) work.out[u64(slot) * work.rows + row] = activate(work.form, total, up);
    }
};

// The address of the expert of this lane's slot, by one warp; 0 and a report where there is none.
__device__ __forceinline__ u64 address_of_slot(const Experts& work, Status* status) {
    const u32 slot = threadIdx.x % 32;
    if (slot >= work.slots) return 0;
    const u32 id = load_fresh(work.ids + slot);
    u64 address = id < work.experts ? load_fresh(work.table + id) : 0;
    if (address == ~0ull) address = 0;
    if (address == 0 && blockIdx.x == 0) report(status, id < work.experts ? STATUS_EXPERT_ABSENT : STATUS_INDEX, id < work.experts ? id : slot);
    return address;
}

// out[slot] = activation(gate . x, up . x). At most 32 slots.
template <bool ALL> __device__ __forceinline__ void gate_up(const Experts& work, Status* status) {
    extern __shared__ __align__(16) u8 shared[];
    const u32 groups = (work.cols + GROUP - 1) / GROUP;
    const u32 pairs = (work.rows + TILE - 1) / TILE * work.slots, count = (pairs - blockIdx.x + gridDim.x - 1) / gridDim.x * 2;
    const u32 most = (pairs + gridDim.x - 1) / gridDim.x, batch = min(most, BATCH);
    Carve carve{shared};
    float* row = carve.take<float>(groups * RUNS * RUN_WORDS);
    float2* part = carve.take<float2>((most > batch ? 2 : 1) * batch * 2 * groups * TILE);
    const u8** at = carve.take<const u8*>(MAX_SLOTS);
    const Tiles<false> tiles = {work.cols, groups, count, work.stages, carve.take<u8>(work.stages * 2 * groups * STAGED_GROUP), part, nullptr};
    GatesAndUps gates_and_ups = {work, at, blockIdx.x % work.slots, blockIdx.x / work.slots, 0, 0};
    gates_and_ups.find(threadIdx.x / TILE, threadIdx.x % TILE);
    // The kernel before may write the table: this only brings its lines nearer.
    if (16 * threadIdx.x < work.experts && blockIdx.x == 0) asm volatile("prefetch.global.L2 [%0];" ::"l"(work.table + 16 * threadIdx.x));
    wait_for_previous();
    let_next_start();
    // One warp alone asks for what all blocks read: a line that all of them want is served once after the other.
    if (threadIdx.x < 32) {
        const u64 address = address_of_slot(work, status);
        at[threadIdx.x] = is_answer(address) ? nullptr : (const u8*)address;
    }
    copy_own_groups(row, work.x, work.cols);
    __syncthreads();
    tiles.begin(gates_and_ups);  // the row is in the first set
    tiles.template run<ALL>(gates_and_ups, row);
}

// out = fma(sum over slots in order of fma(weight, down . x[slot], sum), factor, out); a block takes a tile of all slots. Ids, table and
// weights are older than the kernel before.
template <bool ALL> __device__ __forceinline__ void down(const Experts& work, Status* status) {
    extern __shared__ __align__(16) u8 shared[];
    __shared__ const u8* at[MAX_SLOTS];
    __shared__ float shares[MAX_SLOTS];
    const u32 groups = (work.cols + GROUP - 1) / GROUP, warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32, c = lane % RUNS;
    const u32 tile = blockIdx.x, items = work.slots * groups, end_row = lane % 2 * 8 + lane / RUNS;
    Carve carve{shared};
    float* rows = carve.take<float>(items * RUNS * RUN_WORDS);
    float2* part = carve.take<float2>(items * TILE);
    float* answers = carve.take<float>(work.slots * TILE);
    u8* staged = carve.take<u8>(items * STAGED_GROUP);  // [items][weights, then scales]
    if (warp == 0) {
        const u64 address = address_of_slot(work, status);
        at[lane] = (const u8*)address;
        if (lane < work.slots) shares[lane] = load_fresh(work.weights + lane);
    }
    __syncthreads();
    for (u32 item = warp; item < items; item += warps) {
        const u32 slot = item / groups, g = item % groups;
        if (!at[slot] || is_answer(u64(at[slot]))) continue;
        const Unit unit = unit_of<INT4>(at[slot] + work.first, work.rows, work.cols, tile);
        u8* to = staged + item * STAGED_GROUP + 16 * lane;
        const u8* from = unit.weights + g * GROUP_BYTES + 16 * lane;
        copy_16(to, from);
        copy_16(to + GROUP_BYTES / 2, from + GROUP_BYTES / 2);
        if (lane < 2) copy_16(to + GROUP_BYTES, unit.scales + g * TILE * 2 + 16 * lane);
    }
    // Nothing is written where an expert is missing.
    bool absent = false;
    for (u32 slot = 0; slot < work.slots; ++slot) absent = absent || !at[slot];
    wait_for_previous();
    let_next_start();
    // A warp's own items, (slot, group) in turn: 16 bytes a lane.
    for (u32 item = warp; item < items; item += warps) {
        const u32 slot = item / groups, k = item % groups * GROUP + 4 * lane;
        if (ALL || k < work.cols) copy_16(rows + item * RUNS * RUN_WORDS + in_runs(4 * lane), work.x + u64(slot) * work.cols + k);
    }
    const u32 own = tile * TILE + threadIdx.x % TILE;
    float before = 0.0f;
    if (threadIdx.x < TILE && own < work.rows) before = load_fresh(work.out + own);
    wait_for_own_copies();
    if (absent) return;
    for (u32 item = warp; item < items; item += warps) {
        const u32 g = item % groups;
        if (is_answer(u64(at[item / groups]))) continue;
        const u8* from = staged + item * STAGED_GROUP;
        const float* x = rows + (item * RUNS + c) * RUN_WORDS;
        float acc[2];
        group_chains<ALL, 1>(from + 16 * lane, 0, x, int(work.cols - g * GROUP) - int(c * RUN), acc);
        end_group(acc, from + GROUP_BYTES + 2 * end_row, part + item * TILE + end_row);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < work.slots * TILE; i += blockDim.x) {
        const u32 slot = i / TILE, r = i % TILE, row = tile * TILE + r;
        if (is_answer(u64(at[slot]))) {
            answers[i] = row < work.rows ? load_fresh(answer_at(u64(at[slot])) + row) : 0.0f;
            continue;
        }
        const float total = scaled_total(part + slot * groups * TILE + r, groups);
        answers[i] = row < work.rows ? with_bias(total, at[slot], work.first_bias, row) : 0.0f;
    }
    __syncthreads();
    if (threadIdx.x >= TILE || own >= work.rows) return;
    float sum = 0.0f;
#pragma unroll 8
    for (u32 slot = 0; slot < work.slots; ++slot) sum = __fmaf_rn(shares[slot], answers[slot * TILE + threadIdx.x], sum);
    work.out[own] = __fmaf_rn(sum, work.factor, before);
}

#define EXPERTS(name, body, all) \
    extern "C" __global__ void __launch_bounds__(512, 2) name(const __grid_constant__ Experts work, Status* status) { body<all>(work, status); }

EXPERTS(token_gate_up, gate_up, true)
EXPERTS(token_gate_up_part, gate_up, false)
EXPERTS(token_down, down, true)
EXPERTS(token_down_part, down, false)
