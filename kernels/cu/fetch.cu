// Cold experts of one token: multiprocessors look them up, and copy them out of mapped host memory or have the host's processors compute them
// where they lie. No twin: it moves bytes.
#include "decode.cuh"

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

// What the device asks the host's team for, in host memory: `host_team.rs` of the engine has the same.
struct Request {
    u32 sequence;  // of this request; written last
    u32 layer, count;
    u32 ids[MAX_SLOTS];
    u32 unused[29];
    __device__ float* x() { return (float*)(this + 1); }  // [hidden]
};

struct Answer {
    u32 sequence;  // of the request that is answered; written last
    u32 fault;     // not 0 where it could not be
    u32 unused[62];
    __device__ const float* out() const { return (const float*)(this + 1); }  // [count, hidden]
};

struct Team {
    Request* request;
    const Answer* answer;
    u32* sequence;       // of the last request, or SILENT
    const u32* by_host;  // [slots + 1]: of so many cold experts of a layer, how many the host computes
    const float* x;      // [hidden]
    float* out;          // [slots, hidden]: afterwards what the host's experts give
    u32 layer, hidden;
};

constexpr u32 SILENT = ~0u;  // in the place of the last request's number: the host has not answered it, and is not asked again
constexpr u64 PATIENCE_NS = 20ull * 1000 * 1000 * 1000;

__device__ __forceinline__ u32 load_acquire(const u32* from) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

__device__ __forceinline__ void store_release(u32* to, u32 value) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory"); }

__device__ __forceinline__ u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// Asks the host for `count` experts, and waits for them; by one block.
__device__ __forceinline__ void ask_host(const Team& team, const u32* ids, u32 count, Status* status) {
    __shared__ bool answered;
    for (u32 i = 4 * threadIdx.x; i < team.hidden; i += 4 * blockDim.x) *(float4*)(team.request->x() + i) = __ldcg((const float4*)(team.x + i));
    if (threadIdx.x < count) team.request->ids[threadIdx.x] = ids[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
        const u32 last = *team.sequence, sequence = last + 1;
        bool there = false;
        if (last != SILENT) {
            team.request->layer = team.layer;
            team.request->count = count;
            __threadfence_system();
            store_release(&team.request->sequence, sequence);
            const u64 start = nanoseconds();
            while (!there && nanoseconds() - start < PATIENCE_NS) there = load_acquire(&team.answer->sequence) == sequence;
            *team.sequence = there ? sequence : SILENT;
        }
        answered = there && *(const volatile u32*)&team.answer->fault == 0;
        if (!answered) report(status, STATUS_HOST_SILENT, team.layer);
    }
    __syncthreads();
    if (!answered) return;
    for (u32 i = 4 * threadIdx.x; i < count * team.hidden; i += 4 * blockDim.x) *(float4*)(team.out + i) = __ldcv((const float4*)(team.answer->out() + i));
}

// Every block finds the same misses, and copies its share of each in turn. With a team the last of them in the order of the slots are the host's,
// the first block asks for them, and their addresses are those of what they give, plus 1.
template <bool TEAM> __device__ __forceinline__ void fetch(const Fetch& work, const Team& team, Status* status) {
    __shared__ u64 from[MAX_SLOTS], to[MAX_SLOTS];
    __shared__ u32 hosts[MAX_SLOTS], copies, asked;
    wait_for_previous();
    let_next_start();
    if (threadIdx.x < 32) {
        const u32 lane = threadIdx.x;
        const bool used = lane < work.slots;
        const u32 id = used ? __ldcg(work.ids + lane) : 0;
        const bool valid = used && id < work.experts;
        if (used && !valid && blockIdx.x == 0) report(status, STATUS_INDEX, lane);
        u64 address = valid ? work.resident[id] : 0;
        const bool miss = valid && address == ~0ull;
        const u32 votes = __ballot_sync(~0u, miss), misses = __popc(votes);
        const u32 fetched = TEAM ? misses - min(team.by_host[misses], misses) : misses;
        if (miss) {
            const u32 rank = __popc(votes & ((1u << lane) - 1));
            if (rank < fetched) {
                address = work.landing[rank];
                from[rank] = u64(id) * work.expert_bytes;
                to[rank] = address;
            } else {
                address = u64(team.out + u64(rank - fetched) * team.hidden) | 1;
                hosts[rank - fetched] = id;
            }
        }
        if (valid && blockIdx.x == 0) work.table[id] = address;
        if (lane == 0) copies = fetched, asked = misses - fetched;
    }
    __syncthreads();
    u32 block = blockIdx.x, blocks = gridDim.x;
    if (TEAM) {
        if (block == 0) {
            if (asked > 0) ask_host(team, hosts, asked, status);
            return;
        }
        --block, --blocks;
    }
    const u64 words = work.expert_bytes / sizeof(uint4), stride = u64(blocks) * blockDim.x;
    for (u32 copy = 0; copy < copies; ++copy) {
        const uint4* source = (const uint4*)(work.bank + from[copy]);
        uint4* target = (uint4*)to[copy];
        u64 i = u64(block) * blockDim.x + threadIdx.x;
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

extern "C" __global__ void __launch_bounds__(512) fetch(const __grid_constant__ Fetch work, Status* status) { fetch<false>(work, {}, status); }

extern "C" __global__ void __launch_bounds__(512) fetch_with_team(const __grid_constant__ Fetch work, const __grid_constant__ Team team, Status* status) {
    fetch<true>(work, team, status);
}
