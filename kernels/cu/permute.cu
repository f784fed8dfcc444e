// Slots sorted by expert, those of one expert in their own order: twin `permute` in kernels/src/twin/router.rs.
#include "contract.cuh"

using namespace assay;

constexpr u32 THREADS = 256;
constexpr u32 WARPS = THREADS / 32;

// A block an expert: it counts the slots of experts before its own, then places its own in order. offsets[experts + 1].
extern "C" __global__ void permute(const u32* ids, u32 slots, u32* order, u32* offsets, Status* status) {
    __shared__ u32 shared[WARPS];
    const u32 expert = blockIdx.x, experts = gridDim.x;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 before = 0;
    for (u32 slot = threadIdx.x; slot < slots; slot += THREADS) {
        const u32 id = ids[slot];
        before += id < expert;
        if (expert == 0 && id >= experts) report(status, STATUS_INDEX, slot);
    }
    for (u32 step = 16; step > 0; step /= 2) before += __shfl_xor_sync(~0u, before, step);
    if (lane == 0) shared[warp] = before;
    __syncthreads();
    u32 next = 0;
    for (u32 i = 0; i < WARPS; ++i) next += shared[i];
    if (threadIdx.x == 0) {
        offsets[expert] = next;
        if (expert == experts - 1) offsets[experts] = slots;
    }
    for (u32 first = 0; first < slots; first += THREADS) {
        const u32 slot = first + threadIdx.x;
        const bool mine = slot < slots && ids[slot] == expert;
        const u32 votes = __ballot_sync(~0u, mine);
        __syncthreads();
        if (lane == 0) shared[warp] = __popc(votes);
        __syncthreads();
        u32 place = next + __popc(votes & ((1u << lane) - 1));
        for (u32 i = 0; i < WARPS; ++i) {
            place += i < warp ? shared[i] : 0;
            next += shared[i];
        }
        if (mine) order[place] = slot;
    }
}
