// Cold experts out of mapped host memory, without the host: multiprocessors look them up and copy them. No twin: it moves bytes.
#include "contract.cuh"

using namespace assay;

constexpr u32 MAX_SLOTS = 32;

struct Fetch {
    const u32* ids;       // [slots], the experts of one token
    const u64* resident;  // [experts] addresses; all ones where an expert is not on the device
    const u8* bank;       // the layer's experts in host memory, one after another
    const u64* landing;   // [slots] addresses where cold experts go, in the order of their slots
    u64* table;           // [experts]: afterwards the addresses of this token's experts
    u64 expert_bytes;     // a multiple of 64
    u32 slots, experts;
};

// Every block finds the same misses, and copies its share of each in turn.
extern "C" __global__ void __launch_bounds__(512) fetch(Fetch work, Status* status) {
    __shared__ u64 from[MAX_SLOTS], to[MAX_SLOTS];
    __shared__ u32 misses;
    if (threadIdx.x < 32) {
        const u32 lane = threadIdx.x;
        const bool used = lane < work.slots;
        const u32 id = used ? work.ids[lane] : 0;
        const bool valid = used && id < work.experts;
        if (used && !valid && blockIdx.x == 0) report(status, STATUS_INDEX, lane);
        u64 address = valid ? work.resident[id] : 0;
        const bool miss = valid && address == ~0ull;
        const u32 votes = __ballot_sync(~0u, miss);
        if (miss) {
            const u32 rank = __popc(votes & ((1u << lane) - 1));
            address = work.landing[rank];
            from[rank] = u64(id) * work.expert_bytes;
            to[rank] = address;
        }
        if (valid && blockIdx.x == 0) work.table[id] = address;
        if (lane == 0) misses = __popc(votes);
    }
    __syncthreads();
    const u64 words = work.expert_bytes / sizeof(uint4), stride = u64(gridDim.x) * blockDim.x;
    for (u32 miss = 0; miss < misses; ++miss) {
        const uint4* source = (const uint4*)(work.bank + from[miss]);
        uint4* target = (uint4*)to[miss];
        u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x;
        for (; i + 3 * stride < words; i += 4 * stride) {
            const uint4 a = __ldcs(source + i), b = __ldcs(source + i + stride);
            const uint4 c = __ldcs(source + i + 2 * stride), d = __ldcs(source + i + 3 * stride);
            target[i] = a;
            target[i + stride] = b;
            target[i + 2 * stride] = c;
            target[i + 3 * stride] = d;
        }
        for (; i < words; i += stride) target[i] = __ldcs(source + i);
    }
}
