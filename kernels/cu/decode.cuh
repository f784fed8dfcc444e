// What the fused kernels of decode share: overlapping with the kernel before, tiles staged in shared memory, one row's norm.
//
// A fused kernel does for one token what several kernels do, to the bit. It asks for its weights while the kernel before it still
// runs, waits, and lets the kernel after it start. Order: whoever calls `let_next_start` has called `wait_for_previous`. So where a
// kernel runs ahead of its wait, everything older than the kernel before it is complete; it may read that, and weights.
// Letting it start before the own wait was measured to be slower.
//
// Blocks have at most 512 threads of 64 registers, and there is one for each multiprocessor: so each multiprocessor holds one of the
// kernel that computes and one of the next, and neither can crowd onto some of them. Where a kernel has fewer blocks, the next one asks for
// more than half of a multiprocessor's shared memory.
#pragma once
#include "dot.cuh"

namespace assay {

constexpr u32 GROUP_BYTES = INT4_GROUP_BYTES;

// Until every kernel before this one is complete and what it wrote is visible. Every thread calls it.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may take what this one leaves free of each multiprocessor.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Past the first-level cache: what another multiprocessor wrote.
__device__ __forceinline__ float load_fresh(const float* from) { return __ldcg(from); }
__device__ __forceinline__ u32 load_fresh(const u32* from) { return __ldcg(from); }
__device__ __forceinline__ u64 load_fresh(const u64* from) { return __ldcg(from); }

// True in the block that is the last of `blocks` to come, which then sees what the others wrote before. `ticket` is 0 before and after.
__device__ __forceinline__ bool last_block(u32* ticket, u32 blocks) {
    __shared__ u32 last;
    __syncthreads();
    if (threadIdx.x == 0) {
        // For the whole block, whose writes the barrier has put before the fence. __threadfence() would order more, and take longer.
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
        last = atomicAdd(ticket, 1u) == blocks - 1;
        if (last) *ticket = 0;
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
    }
    __syncthreads();
    return last;
}

// Chains of one group of staged INT4 tiles, by one warp: lane 4 r + c has run c, at `x`, of rows r and r + 8 of every tile, from `weights` on and, of a
// second tile, `further` bytes behind. Elements of the run from `n` on do not exist unless ALL do. Two tiles share the loads of the row and hide each
// other's latencies.
template <bool ALL, int TILES> __device__ __forceinline__ void group_chains(const u8* weights, u32 further, const float* x, int n, float (&acc)[2 * TILES]) {
    constexpr int N = 2 * TILES;
    uint4 w[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
        w[i] = *(const uint4*)(weights + (i / 2 ? further : 0) + i % 2 * 512);
        acc[i] = 0.0f;
    }
#pragma unroll
    for (int t = 0; t < 4; ++t) {
        const float4 a = *(const float4*)(x + 8 * t), b = *(const float4*)(x + 8 * t + 4);
        const float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        float q[N][8];
#pragma unroll
        for (int i = 0; i < N; ++i) columns(t == 0 ? w[i].x : t == 1 ? w[i].y : t == 2 ? w[i].z : w[i].w, q[i]);
#pragma unroll
        for (int k = 0; k < 8; ++k)
#pragma unroll
            for (int i = 0; i < N; ++i)
                if (ALL || 8 * t + k < n) acc[i] = __fmaf_rn(q[i][k], v[k], acc[i]);
    }
}

// Of a group's chains the sums (run0 + run1) + (run2 + run3), each beside its scale: lanes exchange what the other one goes on with, and end with one row
// each, of which they know where its scale and its sum lie. Of two tiles lane 4 r + c ends with row r + 8 (c / 2) of tile c % 2, of one
// with row r + 8 (c % 2).
__device__ __forceinline__ void end_group(const float (&acc)[4], const u8* scale, float2* sum) {
    const bool odd = threadIdx.x % 2, high = threadIdx.x / 2 % 2;
    const float first = (odd ? acc[2] : acc[0]) + __shfl_xor_sync(~0u, odd ? acc[0] : acc[2], 1);
    const float second = (odd ? acc[3] : acc[1]) + __shfl_xor_sync(~0u, odd ? acc[1] : acc[3], 1);
    const float mine = (high ? second : first) + __shfl_xor_sync(~0u, high ? first : second, 2);
    *sum = make_float2(bf16_to_f32(*(const u16*)scale), mine);
}

__device__ __forceinline__ void end_group(const float (&acc)[2], const u8* scale, float2* sum) {
    const bool odd = threadIdx.x % 2, high = threadIdx.x / 2 % 2;
    float mine = (odd ? acc[1] : acc[0]) + __shfl_xor_sync(~0u, odd ? acc[0] : acc[1], 1);
    mine = mine + __shfl_xor_sync(~0u, mine, 2);
    if (!high) *sum = make_float2(bf16_to_f32(*(const u16*)scale), mine);
}

// Adds up a row's group sums, `part` [groups][16] at the row.
__device__ __forceinline__ float scaled_total(const float2* part, u32 groups) {
    float total = 0.0f;
#pragma unroll 8
    for (u32 g = 0; g < groups; ++g) total = __fmaf_rn(part[g * TILE].x, part[g * TILE].y, total);
    return total;
}

// Copies by the copy engine of a multiprocessor, which takes one thread's instruction for any number of bytes, and a barrier in shared memory
// that counts them. Before compute capability 9.0 the threads copy, and every copy is waited for.
#if __CUDA_ARCH__ >= 900
constexpr bool BULK = true;
#else
constexpr bool BULK = false;
#endif

__device__ __forceinline__ void arrival_init(u64* arrival, u32 count = 1) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(arrival)), "r"(count) : "memory");
#endif
}

// After the last `arrival_init`, by the thread that calls them, before others see them.
__device__ __forceinline__ void arrivals_ready() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// That `bytes` come before the next phase ends, by one thread.
__device__ __forceinline__ void arrival_expect(u64* arrival, u32 bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(arrival)), "r"(bytes) : "memory");
#endif
}

// By one thread, that what it waited for or wrote is there.
__device__ __forceinline__ void arrival_signal(u64* arrival) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(arrival)) : "memory");
#endif
}

// Starts a copy, by one thread; addresses and size are multiples of 16.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, u32 bytes, u64* arrival) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)), "l"(from), "r"(bytes),
                 "r"(shared_address(arrival))
                 : "memory");
#endif
}

// The same by all threads.
__device__ __forceinline__ void copy_together(u8* to, const u8* from, u32 bytes) {
    for (u32 i = 16 * threadIdx.x; i < bytes; i += 16 * blockDim.x) copy_16(to + i, from + i);
}

// Until the phase of that parity has ended. Without bulk copies: until all copies are there, for every thread.
__device__ __forceinline__ void arrival_wait(u64* arrival, u32 parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n"
        ".reg .pred there;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1;\n"
        "@there bra done;\n"
        "bra again;\n"
        "done:\n"
        "}" ::"r"(shared_address(arrival)),
        "r"(parity)
        : "memory");
#else
    wait_for_copies();
    __syncthreads();
#endif
}

// Behind it others see barriers that were initialised before (`arrivals_ready`).
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Writes to the shared memory of a block of the cluster, and counts the bytes at its barrier.
__device__ __forceinline__ void send(float* to, u64* arrival, u32 block, float value) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n"
        ".reg .b32 at, barrier;\n"
        "mapa.shared::cluster.u32 at, %0, %2;\n"
        "mapa.shared::cluster.u32 barrier, %1, %2;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [at], %3, [barrier];\n"
        "}" ::"r"(shared_address(to)),
        "r"(shared_address(arrival)), "r"(block), "r"(__float_as_uint(value))
        : "memory");
#endif
}

// A number that orders as the float, which is no NaN, does; never 0. Zeros are in order of their signs.
__device__ __forceinline__ u32 ordered(float x) {
    const u32 bits = __float_as_uint(x);
    return bits ^ (u32(int(bits) >> 31) | 0x80000000u);
}

__device__ __forceinline__ float unordered(u32 number) { return __uint_as_float(number ^ (~u32(int(number) >> 31) | 0x80000000u)); }

// The largest of all lanes' numbers; NaN is none.
__device__ __forceinline__ float largest_of_warp(float x) { return unordered(__reduce_max_sync(~0u, is_nan(x) ? ordered(-infinity()) : ordered(x))); }

// A run of a row in padded runs.
__device__ __forceinline__ void load_run(float (&x)[RUN], const float* run) {
#pragma unroll
    for (u32 k = 0; k < RUN; k += 4) {
        const float4 four = *(const float4*)(run + k);
        x[k] = four.x;
        x[k + 1] = four.y;
        x[k + 2] = four.z;
        x[k + 3] = four.w;
    }
}

// Groups of a row belong to warps, every blockDim.x / 32-th: a warp copies its own, and needs no other's.
// Starts the copy of x[n] to padded runs, n a multiple of 4, past the first-level cache.
__device__ __forceinline__ void copy_own_groups(float* row, const float* x, u32 n) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (u32 k = warp * GROUP + 4 * lane; k < n; k += 4 * blockDim.x) copy_16(row + k / RUN * RUN_WORDS + k % RUN, x + k);
}

// Until the copies of this warp are there.
__device__ __forceinline__ void wait_for_own_copies() {
    wait_for_copies();
    __syncwarp();
}

template <int PENDING> __device__ __forceinline__ void wait_but() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// Until all but the last `pending` sets of this thread's copies are there.
__device__ __forceinline__ void wait_for_copies_but(u32 pending) {
    switch (pending) {
        case 1: wait_but<1>(); break;
        case 2: wait_but<2>(); break;
        case 3: wait_but<3>(); break;
        case 4: wait_but<4>(); break;
        case 5: wait_but<5>(); break;
        default: wait_but<0>();
    }
}

__device__ __forceinline__ void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

constexpr u32 STAGED_GROUP = GROUP_BYTES + TILE * 2;
constexpr u32 BATCH = 4;      // pairs of tiles whose group sums meet at a barrier; times 2 TILE is the least number of threads
constexpr u32 MAX_DEPTH = 5;  // of copies that `wait_for_copies_but` leaves

// Two tiles.
struct Two {
    Unit first, second;
};

// A block's products of one row with INT4 tiles, `count` of them, two at a time. A warp copies and sums its own groups of every tile, so that it
// waits for no other until their sums are added up. LONG: more pairs than places; those behind the first are copied by the copy engine, which takes fewer
// instructions, where there is one, and then all of them are there.
//
// `Work` says where the tiles of the next pair are (`next`; `two` of any pair where LONG), no weights for one that is not there, and takes the total of
// row r of tile i (`total`, by all threads of a warp). What every pair is asked of is kept as addresses that go on from pair to pair: a product takes
// three instructions a weight, and finding places anew took one more.
template <bool LONG> struct Tiles {
    static constexpr bool REFILLED = LONG && BULK;

    u32 cols, groups, count;
    u32 depth;      // places for pairs, which are copied ahead; at most MAX_DEPTH
    u8* staged;     // [depth][2][weights, then scales of all groups]
    float2* part;   // [2 where there are several batches][BATCH pairs, or all][2][groups][16]
    u64* arrivals;  // LONG: [2][MAX_DEPTH]: of a place's copies, and of the warps that are done with it

    __device__ __forceinline__ u32 tile_bytes() const { return groups * STAGED_GROUP; }

    // By one thread.
    __device__ __forceinline__ void init() const {
        if (!REFILLED) return;
        for (u32 i = 0; i < depth; ++i) {
            arrival_init(arrivals + i);
            arrival_init(arrivals + MAX_DEPTH + i, blockDim.x / 32);
        }
        arrivals_ready();
    }

    // Starts the copies of this warp's groups of a tile to `to`.
    __device__ __forceinline__ void copy(const Unit& unit, u8* to) const {
        const u32 warps = blockDim.x / 32, lane = threadIdx.x % 32;
        u32 g = threadIdx.x / 32;
        const u8 *weights = unit.weights + g * GROUP_BYTES + 16 * lane, *scales = unit.scales + g * TILE * 2 + 16 * lane;
        u8 *to_weights = to + g * GROUP_BYTES + 16 * lane, *to_scales = to + groups * GROUP_BYTES + g * TILE * 2 + 16 * lane;
        while (true) {
            if (g < groups) {
                copy_16(to_weights, weights);
                copy_16(to_weights + GROUP_BYTES / 2, weights + GROUP_BYTES / 2);
                if (lane < 2) copy_16(to_scales, scales);
            }
            g += warps;
            if (g >= groups) return;
            weights += warps * GROUP_BYTES, to_weights += warps * GROUP_BYTES, scales += warps * TILE * 2, to_scales += warps * TILE * 2;
        }
    }

    // Starts this warp's copies of the next pair to the place at `to`.
    template <class Work> __device__ __forceinline__ void ask(Work& work, u8* to) const {
        const Two two = work.next();
        if (two.first.weights) copy(two.first, to);
        if (two.second.weights) copy(two.second, to + tile_bytes());
    }

    template <class Work> __device__ __forceinline__ void begin(Work& work) const {
        u8* to = staged;
        for (u32 i = 0; i < depth; ++i, to += 2 * tile_bytes()) {
            if (2 * i < count) ask(work, to);
            end_of_copies();
        }
    }

    // Copies pair `pair` into a place when all warps are done with it for the `round`-th time; by one thread.
    template <class Work> __device__ __forceinline__ void refill(const Work& work, u32 pair, u32 place, u32 round) const {
        const Two two = work.two(pair);
        const bool both = 2 * pair + 1 < count;
        const u32 weights = groups * GROUP_BYTES, scales = groups * TILE * 2;
        u8* to = staged + 2 * place * tile_bytes();
        arrival_wait(arrivals + MAX_DEPTH + place, round & 1);
        arrival_expect(arrivals + place, (weights + scales) * (both ? 2 : 1));
        copy_bulk(to, two.first.weights, weights, arrivals + place);
        copy_bulk(to + weights, two.first.scales, scales, arrivals + place);
        if (!both) return;
        copy_bulk(to + weights + scales, two.second.weights, weights, arrivals + place);
        copy_bulk(to + 2 * weights + scales, two.second.scales, scales, arrivals + place);
    }

    // `row` is in padded runs, a warp's own groups of it are there.
    template <bool ALL, class Work> __device__ __forceinline__ void run(Work& work, const float* row) const {
        const u32 warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32, c = lane % RUNS, batch = min((count + 1) / 2, BATCH);
        const u32 further = groups * STAGED_GROUP, end = depth * 2 * further;
        // In a place, and in a pair's sums, of this warp's first group: this lane's weights, the scale and the sum that it ends with.
        const u32 end_row = lane / 2 % 2 * 8 + lane / RUNS, own_weights = warp * GROUP_BYTES + 16 * lane;
        const u32 own_scale = lane % 2 * further + groups * GROUP_BYTES + warp * TILE * 2 + 2 * end_row, own_sum = (lane % 2 * groups + warp) * TILE + end_row;
        const u32 own_x = (warp * RUNS + c) * RUN_WORDS;
        u32 at = 0, place = 0, round = 0, place_before = 0, round_before = 0, duty = 0, pair = 0;
        for (u32 half = 0; 2 * pair < count; half ^= 1) {
            const u32 first = 2 * pair, here = min(count - first, 2 * batch);
            float2* sums = part + half * batch * 2 * groups * TILE;
            for (u32 i = 0; i < here; i += 2, ++pair) {
                if (REFILLED && round > 0) {
                    arrival_wait(arrivals + place, (round - 1) & 1);
                } else {
                    wait_for_copies_but(depth - 1);
                    __syncwarp();
                }
                if (i + 1 < here) {
                    for (u32 on = 0; warp + on < groups; on += warps) {
                        float acc[4];
                        group_chains<ALL, 2>(staged + at + own_weights + on * GROUP_BYTES, further, row + own_x + on * RUNS * RUN_WORDS,
                                             int(cols - (warp + on) * GROUP) - int(c * RUN), acc);
                        end_group(acc, staged + at + own_scale + on * TILE * 2, sums + i * groups * TILE + own_sum + on * TILE);
                    }
                } else {
                    const u32 row_of_one = lane % 2 * 8 + lane / RUNS;
                    for (u32 g = warp; g < groups; g += warps) {
                        float acc[2];
                        group_chains<ALL, 1>(staged + at + g * GROUP_BYTES + 16 * lane, 0, row + (g * RUNS + c) * RUN_WORDS, int(cols - g * GROUP) - int(c * RUN), acc);
                        end_group(acc, staged + at + groups * GROUP_BYTES + g * TILE * 2 + 2 * row_of_one, sums + (i * groups + g) * TILE + row_of_one);
                    }
                }
                if constexpr (REFILLED) {
                    __syncwarp();
                    if (round == 0) end_of_copies();
                    if (lane == 0) {
                        arrival_signal(arrivals + MAX_DEPTH + place);
                        // One warp after the other fills the place of the pair before, with which the others are done or soon will be.
                        if (warp == duty && pair > 0 && 2 * (pair - 1 + depth) < count) refill(work, pair - 1 + depth, place_before, round_before);
                    }
                    __syncwarp();
                    if (++duty == warps) duty = 0;
                    place_before = place, round_before = round;
                } else {
                    if (2 * (pair + depth) < count) {
                        __syncwarp();
                        ask(work, staged + at);
                    }
                    end_of_copies();
                }
                at += 2 * further, ++place;
                if (at == end) at = place = 0, ++round;
            }
            __syncthreads();
            const u32 own = threadIdx.x / TILE, r = threadIdx.x % TILE;
            if (own < 2 * batch) work.total(first + own, r, own < here ? scaled_total(sums + own * groups * TILE + r, groups) : 0.0f);
        }
    }
};

// Elements of the run from `base` on that lie below `n`.
__device__ __forceinline__ u32 run_length(u32 n, u32 base) { return n <= base ? 0 : n - base < RUN ? n - base : RUN; }

// A run of dot(x, x).
__device__ __forceinline__ float square_run(const float* run, u32 count) {
    float sum = 0.0f;
    if (count == RUN) {
#pragma unroll
        for (u32 k = 0; k < RUN; k += 4) {
            const float4 v = *(const float4*)(run + k);
            sum = __fmaf_rn(v.x, v.x, sum);
            sum = __fmaf_rn(v.y, v.y, sum);
            sum = __fmaf_rn(v.z, v.z, sum);
            sum = __fmaf_rn(v.w, v.w, sum);
        }
        return sum;
    }
    for (u32 k = 0; k < count; ++k) sum = __fmaf_rn(run[k], run[k], sum);
    return sum;
}

// (run0 + run1) + (run2 + run3), the runs in neighbouring lanes.
__device__ __forceinline__ float sum_of_four(float run) {
    run = run + __shfl_xor_sync(~0u, run, 1);
    return run + __shfl_xor_sync(~0u, run, 2);
}

__device__ __forceinline__ float inverse_rms(float square_sum, u32 n, float eps) {
    return __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(square_sum, float(n)) + eps));
}

// 1 / rms of a row in padded runs, n its length, by warps that have their own groups; every thread gets it, after one barrier. `sums` has a
// word for each group.
__device__ __forceinline__ float row_inverse_rms(const float* row, u32 n, float eps, float* sums) {
    const u32 groups = (n + GROUP - 1) / GROUP, c = threadIdx.x % RUNS;
    for (u32 g = threadIdx.x / 32; g < groups; g += blockDim.x / 32) {
        const float sum = sum_of_four(square_run(row + (g * RUNS + c) * RUN_WORDS, run_length(n, g * GROUP + c * RUN)));
        if (threadIdx.x % 32 == 0) sums[g] = sum;
    }
    __syncthreads();
    float total = 0.0f;
#pragma unroll 8
    for (u32 g = 0; g < groups; ++g) total = total + sums[g];
    return inverse_rms(total, n, eps);
}

// Where element k of a row in padded runs lies.
__device__ __forceinline__ u32 in_runs(u32 k) { return k / RUN * RUN_WORDS + k % RUN; }

// y = (x * inverse) * factor of a row in padded runs, in place, by warps that have their own groups. The last block writes y to `normed` too.
__device__ __forceinline__ void apply_norm(float* row, const float* factors, u32 n, float inverse, float* normed) {
    for (u32 k = threadIdx.x / 32 * GROUP + 4 * (threadIdx.x % 32); k < n; k += 4 * blockDim.x) {
        float4* at = (float4*)(row + in_runs(k));
        const float4 x = *at, factor = *(const float4*)(factors + k);
        *at = make_float4((x.x * inverse) * factor.x, (x.y * inverse) * factor.y, (x.z * inverse) * factor.z, (x.w * inverse) * factor.w);
        if (blockIdx.x == gridDim.x - 1) *(float4*)(normed + k) = *at;
    }
    __syncwarp();
}

// Carves a block's dynamic shared memory, 16 bytes aligned.
struct Carve {
    u8* at;
    template <class T> __device__ __forceinline__ T* take(u32 count) {
        T* taken = (T*)at;
        at += (count * sizeof(T) + 15) / 16 * 16;
        return taken;
    }
};

}  // namespace assay
