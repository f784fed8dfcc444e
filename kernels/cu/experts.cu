// Routed products in the contract's order: twins in kernels/src/twin/experts.rs.
#include "dot.cuh"

using namespace assay;

// An expert's parts, in bytes from its first; an offset of 0 is no bias.
struct Expert {
    u64 first, second;            // matrices: gate and up, or down twice
    u64 first_bias, second_bias;  // f32
};

// Where the experts' weights are, and which one each slot has.
struct Route {
    const u64* table;  // [experts]; 0 or all ones where an expert is not on the device, or what the host has computed of it (`is_answer`)
    const u32* ids;    // [slots]
    u32 experts;
    u32 slots;
};

// The first byte of a slot's expert; null after a report.
__device__ __forceinline__ const u8* expert_of(const Route& route, u32 slot, Status* status) {
    const u32 id = route.ids[slot];
    const u64 address = id < route.experts ? route.table[id] : 0;
    if (address != 0 && address != ~0ull) return (const u8*)address;
    if (threadIdx.x == 0) {
        const bool absent = id < route.experts;
        report(status, absent ? STATUS_EXPERT_ABSENT : STATUS_INDEX, absent ? id : slot);
    }
    return nullptr;
}

__device__ __forceinline__ float with_bias(float total, const u8* expert, u64 offset, u32 row) {
    return offset ? total + ((const float*)(expert + offset))[row] : total;
}

// out[s] = activation(gate . x[s / top_k], up . x[s / top_k]); a block takes a tile of both for one slot.
template <u32 FORMAT>
__device__ __forceinline__ void gate_up(Route route, Expert parts, u32 rows, u32 cols, const float* x, u32 top_k, Activation form,
                                        float* out, Status* status) {
    extern __shared__ __align__(16) u8 shared[];
    const u32 slot = blockIdx.x % route.slots, tile = blockIdx.x / route.slots;
    const u8* expert = expert_of(route, slot, status);
    if (!expert || is_answer(u64(expert))) return;
    const Unit units[2] = {unit_of<FORMAT>(expert + parts.first, rows, cols, tile), unit_of<FORMAT>(expert + parts.second, rows, cols, tile)};
    float total = block_dots<FORMAT, 2>(units, x + u64(slot / top_k) * cols, cols, shared);
    if (threadIdx.x >= 2 * TILE) return;
    const u32 row = tile * TILE + threadIdx.x % TILE;
    if (row < rows) total = with_bias(total, expert, threadIdx.x < TILE ? parts.first_bias : parts.second_bias, row);
    const float up = __shfl_down_sync(~0u, total, TILE);
    if (threadIdx.x < TILE && row < rows) out[u64(slot) * rows + row] = activate(form, total, up);
}

// out[s] = down . act[s]; a block takes UNITS tiles for one slot.
template <u32 FORMAT, int UNITS>
__device__ __forceinline__ void down(Route route, Expert parts, u32 rows, u32 cols, const float* act, float* out, Status* status) {
    extern __shared__ __align__(16) u8 shared[];
    const u32 slot = blockIdx.x % route.slots, tile = blockIdx.x / route.slots * UNITS;
    const u8* expert = expert_of(route, slot, status);
    if (!expert) return;
    const u32 own = tile * TILE + threadIdx.x;
    if (is_answer(u64(expert))) {
        if (threadIdx.x < UNITS * TILE && own < rows) out[u64(slot) * rows + own] = answer_at(u64(expert))[own];
        return;
    }
    Unit units[UNITS];
#pragma unroll
    for (int u = 0; u < UNITS; ++u) units[u] = unit_of<FORMAT>(expert + parts.first, rows, cols, min(tile + u, (rows - 1) / TILE));
    const float total = block_dots<FORMAT, UNITS>(units, act + u64(slot) * cols, cols, shared);
    if (threadIdx.x < UNITS * TILE && own < rows) out[u64(slot) * rows + own] = with_bias(total, expert, parts.first_bias, own);
}

#define GATE_UP(name, format, blocks)                                                                                            \
    extern "C" __global__ void __launch_bounds__(256, blocks) name(Route route, Expert parts, u32 rows, u32 cols, const float* x, \
                                                                   u32 top_k, Activation form, float* out, Status* status) {   \
        gate_up<format>(route, parts, rows, cols, x, top_k, form, out, status);                                                  \
    }

#define DOWN(name, format, units, blocks)                                                                                          \
    extern "C" __global__ void __launch_bounds__(256, blocks) name(Route route, Expert parts, u32 rows, u32 cols, const float* act, \
                                                                   float* out, Status* status) {                                 \
        down<format, units>(route, parts, rows, cols, act, out, status);                                                           \
    }

GATE_UP(gate_up_int4, INT4, 3)
GATE_UP(gate_up_int8, INT8, 2)
GATE_UP(gate_up_bf16, BF16, 2)
DOWN(down_int4_1, INT4, 1, 3)
DOWN(down_int4_2, INT4, 2, 3)
DOWN(down_int8_1, INT8, 1, 2)
DOWN(down_int8_2, INT8, 2, 2)
DOWN(down_bf16_1, BF16, 1, 2)
DOWN(down_bf16_2, BF16, 2, 2)
