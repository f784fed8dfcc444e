// The sampled choice: twin in kernels/src/twin/sample.rs.
//
// All blocks run at once (a cooperative launch), each with a part of the vocabulary, and meet at barriers. Every sum is one of
// integers, so neither the order of atomics nor the number of blocks can change it. Nothing is sorted: the last candidate that a limit
// keeps is found digit by digit of its rank, from histograms of how many there are, or of how much they weigh.
#include "contract.cuh"

using namespace assay;

constexpr u32 THREADS = 512;
constexpr u32 MAX_BLOCKS = 128;

// A rank's digits: bits 21 to 31, 10 to 20, 0 to 9.
constexpr u32 ROUNDS = 3;
constexpr u32 BINS = 1 << 11;
__device__ __forceinline__ u32 digit_shift(u32 round) { return round == 0 ? 21 : round == 1 ? 10 : 0; }
__device__ __forceinline__ u32 digit_mask(u32 round) { return round == 2 ? BINS / 2 - 1 : BINS - 1; }

// kernels/src/forms.rs
struct Choice {
    double scale;
    u64 share, least, word;
    u32 top_k, padding;
};

// contract::sample_weight, equal to the bit.
constexpr double EXP2_ROUND = 6755399441055744.0;
constexpr double LN_2 = 0.693147180559945309417;
constexpr double ONE = 1099511627776.0;         // 2^40
constexpr double INTEGER = 4503599627370496.0;  // 2^52
__device__ __forceinline__ u64 sample_weight(float logit, float largest, double scale) {
    const double y = (double(logit) - double(largest)) * scale;
    const double rounded = y + EXP2_ROUND;
    const double r = (y - (rounded - EXP2_ROUND)) * LN_2;
    double p = 1.0 / 39916800.0;
    p = __fma_rn(p, r, 1.0 / 3628800.0);
    p = __fma_rn(p, r, 1.0 / 362880.0);
    p = __fma_rn(p, r, 1.0 / 40320.0);
    p = __fma_rn(p, r, 1.0 / 5040.0);
    p = __fma_rn(p, r, 1.0 / 720.0);
    p = __fma_rn(p, r, 1.0 / 120.0);
    p = __fma_rn(p, r, 1.0 / 24.0);
    p = __fma_rn(p, r, 1.0 / 6.0);
    p = __fma_rn(p, r, 0.5);
    p = __fma_rn(p, r, 1.0);
    p = __fma_rn(p, r, 1.0);
    const double power = __longlong_as_double(__double_as_longlong(p) + (u64(__double_as_longlong(rounded)) << 52));
    const u64 weight = u64(__double_as_longlong(__fma_rn(power, ONE, INTEGER))) & ((1ull << 52) - 1);
    return y > -41.0 ? weight : 0;
}

// contract::descending, and back.
__device__ __forceinline__ u32 descending(float logit) {
    const u32 bits = __float_as_uint(__fadd_rn(logit, 0.0f));
    return bits >> 31 ? bits : bits ^ 0x7fffffffu;
}
__device__ __forceinline__ float logit_of(u32 rank) { return __uint_as_float(rank >> 31 ? rank : rank ^ 0x7fffffffu); }

// What blocks tell each other. One launch at a time.
__device__ u64 bins[2][ROUNDS][BINS];
__device__ u64 best_of[MAX_BLOCKS], weight_of[MAX_BLOCKS];
__device__ u32 nan_of[MAX_BLOCKS], ties_of[MAX_BLOCKS];
__device__ u32 arrived, phase;

// Until every block is here; what they wrote before is visible past the first-level cache.
__device__ void meet() {
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 before, now;
        asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(before) : "l"(&phase) : "memory");
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
        if (atomicAdd(&arrived, 1u) == gridDim.x - 1) {
            atomicExch(&arrived, 0u);
            asm volatile("fence.acq_rel.gpu;" ::: "memory");
            atomicAdd(&phase, 1u);
        } else {
            do {
                asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(&phase) : "memory");
            } while (now == before);
        }
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
    }
    __syncthreads();
}

// The least of a block's values, for every thread.
__device__ u64 block_least(u64 value) {
    __shared__ u64 least[THREADS / 32];
    for (u32 step = 16; step > 0; step /= 2) value = min(value, __shfl_xor_sync(~0u, value, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0) least[threadIdx.x / 32] = value;
    __syncthreads();
    for (u32 warp = 0; warp < THREADS / 32; ++warp) value = min(value, least[warp]);
    return value;
}

// The sum of the values of earlier threads of the block, and of all.
__device__ u64 sum_before(u64 value, u64& total) {
    __shared__ u64 sums[THREADS / 32];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u64 sum = value;
    for (u32 step = 1; step < 32; step *= 2) {
        const u64 other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
    }
    __syncthreads();
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    sum -= value;
    total = 0;
    for (u32 i = 0; i < THREADS / 32; ++i) {
        if (i < warp) sum += sums[i];
        total += sums[i];
    }
    return sum;
}

// The candidates that stay: those of a smaller rank, and of those with this one the first `ties`, which all weigh the same.
struct Head {
    u32 rank, ties;
};

// A block's part of the vocabulary.
struct Part {
    const float* logits;
    u32 first, end;
};

// The shortest head of `from` that measures what `wanted_of` says of its whole measure, which is no more than that.
template <class Measure, class Wanted>
__device__ Head shortest(const Part& part, Head from, u64* own, u64 (*all)[BINS], Measure measure, Wanted wanted_of) {
    __shared__ u32 found;
    __shared__ u64 found_before;
    u32 prefix = 0;
    u64 before = 0, wanted = 0;
    for (u32 round = 0; round < ROUNDS; ++round) {
        const u32 shift = digit_shift(round), mask = digit_mask(round);
        for (u32 i = threadIdx.x; i < BINS; i += THREADS) own[i] = 0;
        __syncthreads();
        for (u32 i = part.first + threadIdx.x; i < part.end; i += THREADS) {
            const float logit = part.logits[i];
            const u32 rank = descending(logit);
            if (rank < from.rank && (round == 0 || rank >> digit_shift(round - 1) == prefix)) atomicAdd(own + (rank >> shift & mask), measure(logit));
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < BINS; i += THREADS)
            if (own[i] != 0) atomicAdd(all[round] + i, own[i]);
        meet();
        // Each thread has neighbouring bins.
        constexpr u32 EACH = BINS / THREADS;
        u64 mine[EACH], sum = 0, total;
        for (u32 i = 0; i < EACH; ++i) sum += mine[i] = __ldcg(all[round] + threadIdx.x * EACH + i);
        u64 start = before + sum_before(sum, total);
        if (round == 0) {
            const u64 of_tie = from.ties == 0 ? 0 : measure(logit_of(from.rank));
            wanted = wanted_of(total + from.ties * of_tie);
            if (wanted > total) return {from.rank, u32((wanted - total + of_tie - 1) / of_tie)};
        }
        for (u32 i = 0; i < EACH; ++i) {
            if (start < wanted && wanted <= start + mine[i]) {
                found = threadIdx.x * EACH + i;
                found_before = start;
            }
            start += mine[i];
        }
        __syncthreads();
        prefix = round == 0 ? found : prefix << (round == 1 ? 11 : 10) | found;
        before = found_before;
    }
    const u64 of_tie = measure(logit_of(prefix));
    return {prefix, u32((wanted - before + of_tie - 1) / of_tie)};
}

// out[0] = a token drawn from logits[n], n at most 2^23; the first NaN is reported. At most 128 blocks, launched together.
extern "C" __global__ void __launch_bounds__(THREADS) sample(const float* logits, u32 n, Choice choice, u32* out, Status* status) {
    __shared__ u64 own[BINS];
    const u32 length = (n + gridDim.x - 1) / gridDim.x;
    const Part part = {logits, min(blockIdx.x * length, n), min((blockIdx.x + 1) * length, n)};

    // The largest logit, ties to the lowest id; the first NaN.
    u64 best = ~0ull, nan = ~0ull;
    for (u32 i = part.first + threadIdx.x; i < part.end; i += THREADS) {
        const float logit = logits[i];
        if (is_nan(logit))
            nan = min(nan, u64(i));
        else
            best = min(best, u64(descending(logit)) << 32 | i);
    }
    best = block_least(best);
    nan = block_least(nan);
    if (threadIdx.x == 0) {
        best_of[blockIdx.x] = best;
        nan_of[blockIdx.x] = u32(nan);
    }
    for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < 2 * ROUNDS * BINS; i += gridDim.x * THREADS) (&bins[0][0][0])[i] = 0;
    meet();
    const bool block = threadIdx.x < gridDim.x;
    best = block_least(block ? __ldcg(best_of + threadIdx.x) : ~0ull);
    nan = block_least(block ? __ldcg(nan_of + threadIdx.x) : ~0u);
    const float largest = logit_of(u32(best >> 32));
    if (u32(nan) != ~0u || largest == infinity() || largest == -infinity()) {
        if (blockIdx.x != 0 || threadIdx.x != 0) return;
        // All NaN: any id will do, the NaN is reported.
        out[0] = best == ~0ull ? 0 : u32(best);
        if (u32(nan) != ~0u) report(status, STATUS_NAN, u32(nan));
        return;
    }

    // Top-k and top-p.
    const auto weigh = [&](float logit) { return sample_weight(logit, largest, choice.scale); };
    Head head = {~0u, 0};
    if (choice.top_k != 0 && choice.top_k < n)
        head = shortest(part, head, own, bins[0], [](float) { return u64(1); }, [&](u64) { return u64(choice.top_k); });
    if (choice.share != 0)
        head = shortest(part, head, own, bins[1], weigh, [&](u64 total) { return __umul64hi(choice.share, total) + (choice.share * total != 0); });

    // Min-p, and what each block has left. Which ties stay depends on how many there are in the blocks before.
    const auto kept = [&](float logit) {
        const u64 weight = weigh(logit);
        return weight < choice.least ? 0 : weight;
    };
    const u64 of_tie = head.ties == 0 ? 0 : kept(logit_of(head.rank));
    u64 weight = 0, ties = 0, total;
    for (u32 i = part.first + threadIdx.x; i < part.end; i += THREADS) {
        const float logit = logits[i];
        const u32 rank = descending(logit);
        if (rank < head.rank) weight += kept(logit);
        if (rank == head.rank) ++ties;
    }
    sum_before(weight, total);
    if (threadIdx.x == 0) weight_of[blockIdx.x] = total;
    sum_before(ties, total);
    if (threadIdx.x == 0) ties_of[blockIdx.x] = u32(total);
    meet();

    // The draw: a thread a block, then a thread an id in the one block that has it.
    __shared__ u64 start, end, earlier_ties;
    ties = block ? __ldcg(ties_of + threadIdx.x) : 0;
    weight = block ? __ldcg(weight_of + threadIdx.x) : 0;
    u64 before = sum_before(ties, total);
    weight += of_tie * min(ties, before < head.ties ? head.ties - before : 0);
    const u64 first = sum_before(weight, total);
    const u64 target = __umul64hi(choice.word, total);
    if (threadIdx.x == blockIdx.x) {
        start = first;
        end = first + weight;
        earlier_ties = before;
    }
    __syncthreads();
    if (target < start || target >= end) return;
    u64 sum = start;
    before = earlier_ties;
    for (u32 from = part.first; from < part.end; from += THREADS) {
        const u32 i = from + threadIdx.x;
        const bool there = i < part.end;
        const float logit = there ? logits[i] : largest;
        const u32 rank = descending(logit);
        const bool tie = there && rank == head.rank;
        const u64 place = before + sum_before(tie, total);
        before += total;
        weight = there && rank < head.rank ? kept(logit) : tie && place < head.ties ? of_tie : 0;
        const u64 mine = sum + sum_before(weight, total);
        sum += total;
        if (mine <= target && target < mine + weight) out[0] = i;
    }
}
