// Products of 16-row tiles with one row of activations, in the contract's order: what decode spends its time in.
//
// A block takes one or two tiles (*units*). Its warps take groups of 128 columns; a lane takes the chains of one run, so that
// the four runs of a group meet by two shuffles. Group sums go to shared memory, where one thread a row adds them up in
// ascending order. Activations lie in shared memory too, and with the scales are asked for before any weight: behind 100 kB
// of weights a multiprocessor, the barrier would wait for them.
#pragma once
#include "contract.cuh"

namespace assay {

constexpr u32 TILE = 16;       // rows of a tile
constexpr u32 CHUNK = 64;      // groups whose activations and sums are in shared memory at a time
constexpr u32 RUN_WORDS = 36;  // a run of activations, padded: four runs are read from 16 banks

constexpr u32 INT4_GROUP_BYTES = TILE * GROUP / 2;
constexpr u32 INT8_GROUP_BYTES = TILE * GROUP;
constexpr u32 BF16_COL_BYTES = TILE * 2;

// One tile: its first byte, and the first of its scales [group][16] where it holds integers.
struct Unit {
    const u8* weights;
    const u8* scales;
};

// Of an expert that the host has computed, a table holds where what it gives, f32 [hidden], lies, plus 1: weights lie at even addresses.
__device__ __forceinline__ bool is_answer(u64 address) { return address & 1; }
__device__ __forceinline__ const float* answer_at(u64 address) { return (const float*)(address - 1); }

// Tile `tile` of a matrix in the layout of kernels/src/layout.rs.
template <u32 FORMAT> __device__ __forceinline__ Unit unit_of(const u8* matrix, u32 rows, u32 cols, u32 tile) {
    if (FORMAT == BF16) return {matrix + u64(tile) * cols * BF16_COL_BYTES, nullptr};
    constexpr u32 GROUP_BYTES = FORMAT == INT4 ? INT4_GROUP_BYTES : INT8_GROUP_BYTES;
    const u64 groups = (cols + GROUP - 1) / GROUP, tiles = (rows + TILE - 1) / TILE;
    return {matrix + tile * groups * GROUP_BYTES, matrix + tiles * groups * GROUP_BYTES + tile * groups * TILE * 2};
}

__device__ __forceinline__ uint4 load_weights(const u8* from) {
    uint4 w;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                 : "l"(from));
    return w;
}

__device__ __forceinline__ u32 shared_address(const void* at) { return u32(__cvta_generic_to_shared(at)); }

__device__ __forceinline__ void copy_16(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

__device__ __forceinline__ void copy_4(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Starts the copy of x[n] to padded runs.
__device__ __forceinline__ void copy_row(float* row, const float* x, u32 n) {
    if (u64(x) % 16 == 0 && n % 4 == 0) {
        for (u32 k = 4 * threadIdx.x; k < n; k += 4 * blockDim.x) copy_16(row + k / RUN * RUN_WORDS + k % RUN, x + k);
    } else {
        for (u32 k = threadIdx.x; k < n; k += blockDim.x) copy_4(row + k / RUN * RUN_WORDS + k % RUN, x + k);
    }
}

// Nibble `P` of a word as q. In its place in the mantissa of a float whose last place is worth 1, it is that float plus q + 8; only
// up to nibble 4, since 5 would reach the exponent.
template <u32 P> __device__ __forceinline__ float nibble(u32 word) {
    if (P > 4) return nibble<P == 5 ? 0 : P == 6 ? 1 : P == 7 ? 2 : P>(word >> 20);
    constexpr u32 PLACE = P > 4 ? 0 : P;
    constexpr u32 ONE = (150 - 4 * PLACE) << 23;  // 2^(23 - 4 P)
    u32 bits;
    // One instruction; the compiler makes two of `(word & mask) | ONE`.
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(bits) : "r"(word), "r"(15u << (4 * PLACE)), "r"(ONE));
    return __uint_as_float(bits) - float((1u << (23 - 4 * PLACE)) + 8);
}

// The eight columns of a word: nibbles hold columns 0 2 4 6 1 3 5 7.
__device__ __forceinline__ void columns(u32 word, float (&q)[8]) {
    q[0] = nibble<0>(word);
    q[1] = nibble<4>(word);
    q[2] = nibble<1>(word);
    q[3] = nibble<5>(word);
    q[4] = nibble<2>(word);
    q[5] = nibble<6>(word);
    q[6] = nibble<3>(word);
    q[7] = nibble<7>(word);
}

// The four columns of a word of INT8. A byte plus 128, as the lowest of a float whose last place is worth 1, is that float plus q + 128.
__device__ __forceinline__ void columns(u32 word, float (&q)[4]) {
    const u32 biased = word ^ 0x80808080u;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        u32 bits;
        asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bits) : "r"(biased), "r"(0x4B000000u), "r"(0x7540u + i));
        q[i] = __uint_as_float(bits) - 8388736.0f;
    }
}

// A row's weights in a run.
template <u32 FORMAT> struct RunWeights {
    static constexpr int PIECES = FORMAT == INT8 ? 2 : 1;
    static constexpr u32 BYTES = 16 * PIECES;
    uint4 piece[PIECES];

    __device__ __forceinline__ void load(const u8* from) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) piece[i] = load_weights(from + 16 * i);
    }
    // Columns 8 t to 8 t + 7.
    __device__ __forceinline__ void eight(int t, float (&q)[8]) const {
        const auto word = [](const uint4& w, int at) { return at == 0 ? w.x : at == 1 ? w.y : at == 2 ? w.z : w.w; };
        if constexpr (FORMAT == INT4) {
            columns(word(piece[0], t), q);
        } else {
            float low[4], high[4];
            columns(word(piece[t / 2], t % 2 * 2), low);
            columns(word(piece[t / 2], t % 2 * 2 + 1), high);
#pragma unroll
            for (int i = 0; i < 4; ++i) q[i] = low[i], q[4 + i] = high[i];
        }
    }
};

// Chains of N rows over one run of `x`; elements from `n` on do not exist unless ALL do.
template <u32 FORMAT, int N, bool ALL>
__device__ __forceinline__ void integer_run(const RunWeights<FORMAT> (&w)[N], const float* x, int n, float (&acc)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) acc[i] = 0.0f;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
        const float4 a = *(const float4*)(x + 8 * t), b = *(const float4*)(x + 8 * t + 4);
        const float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        float q[N][8];
#pragma unroll
        for (int i = 0; i < N; ++i) w[i].eight(t, q[i]);
#pragma unroll
        for (int k = 0; k < 8; ++k)
#pragma unroll
            for (int i = 0; i < N; ++i)
                if (ALL || 8 * t + k < n) acc[i] = __fmaf_rn(q[i][k], v[k], acc[i]);
    }
}

// Group sums of groups first .. first + here to part[group][unit][16 rows]. Lane 4 r + c has run c of rows r and r + 8.
template <u32 FORMAT, int UNITS>
__device__ __forceinline__ void integer_groups(const Unit (&units)[UNITS], u32 first, u32 here, u32 cols, const float* row, float* part) {
    constexpr int N = 2 * UNITS;
    constexpr u32 RUN_BYTES = RunWeights<FORMAT>::BYTES, ROW_BYTES = RUNS * RUN_BYTES;
    const u32 warp = threadIdx.x / 32, warps = blockDim.x / 32, r = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    const auto load = [&](u32 g, RunWeights<FORMAT> (&w)[N]) {
        if (g >= here) return;
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
            const u8* from = units[u].weights + u64(first + g) * (TILE * ROW_BYTES) + ROW_BYTES * r + RUN_BYTES * c;
            w[2 * u].load(from);
            w[2 * u + 1].load(from + 8 * ROW_BYTES);
        }
    };
    const auto sum = [&](u32 g, const RunWeights<FORMAT> (&w)[N]) {
        if (g >= here) return;
        const float* x = row + (g * RUNS + c) * RUN_WORDS;
        const int n = int(cols - (first + g) * GROUP) - int(c * RUN);
        float acc[N];
        if ((first + g + 1) * GROUP <= cols)
            integer_run<FORMAT, N, true>(w, x, n, acc);
        else
            integer_run<FORMAT, N, false>(w, x, n, acc);
        float mine = 0.0f;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            float runs = acc[i] + __shfl_xor_sync(~0u, acc[i], 1);
            runs = runs + __shfl_xor_sync(~0u, runs, 2);
            if (c == i) mine = runs;
        }
        if (c < N) part[(g * UNITS + c / 2) * TILE + c % 2 * 8 + r] = mine;
    };
    RunWeights<FORMAT> w[2][N] = {};
    load(warp, w[0]);
    load(warp + warps, w[1]);
    wait_for_copies();
    __syncthreads();
    for (u32 g = warp; g < here; g += 2 * warps) {
        sum(g, w[0]);
        load(g + 2 * warps, w[0]);
        sum(g + warps, w[1]);
        load(g + 3 * warps, w[1]);
    }
}

// Eight steps of the chains of eight rows, from element `k` of a run of `x`; elements from `n` on do not exist unless ALL do.
template <bool ALL> __device__ __forceinline__ void bf16_chains(const uint4 (&w)[8], const float* x, int k, int n, float (&acc)[8]) {
    const float4 a = *(const float4*)(x + k), b = *(const float4*)(x + k + 4);
    const float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const u32 words[4] = {w[i].x, w[i].y, w[i].z, w[i].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float low = __fmaf_rn(__uint_as_float(words[j] << 16), v[i], acc[2 * j]);
            const float high = __fmaf_rn(__uint_as_float(words[j] & 0xffff0000u), v[i], acc[2 * j + 1]);
            acc[2 * j] = ALL || k + i < n ? low : acc[2 * j];
            acc[2 * j + 1] = ALL || k + i < n ? high : acc[2 * j + 1];
        }
    }
}

// As `integer_groups`. A warp takes four groups of a unit; lane 8 s + 2 c + h has run c of group s, rows 8 h to 8 h + 7.
template <int UNITS>
__device__ __forceinline__ void bf16_groups(const Unit (&units)[UNITS], u32 first, u32 here, u32 cols, const float* row, float* part) {
    constexpr int DEPTH = 8;  // columns asked for at a time, twice
    const u32 warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const u32 s = threadIdx.x % 32 / 8, c = threadIdx.x / 2 % 4, h = threadIdx.x % 2;
    const u32 items = (here + 3) / 4 * UNITS;
    const u8* from;
    int n;
    const auto begin = [&](u32 item) {
        const u32 col = (first + item / UNITS * 4 + s) * GROUP + c * RUN;
        n = item < items ? int(cols) - int(col) : 0;
        from = (UNITS == 2 && item % UNITS ? units[UNITS - 1] : units[0]).weights + u64(col) * BF16_COL_BYTES + 16 * h;
    };
    const auto load = [&](int k, uint4 (&w)[DEPTH]) {
#pragma unroll
        for (int i = 0; i < DEPTH; ++i)
            if (k + i < n) w[i] = load_weights(from + (k + i) * BF16_COL_BYTES);
    };
    uint4 even[DEPTH] = {}, odd[DEPTH] = {};
    begin(warp);
    load(0, even);
    wait_for_copies();
    __syncthreads();
    for (u32 item = warp; item < items; item += warps) {
        const u32 g = item / UNITS * 4 + s;
        const float* x = row + (min(g, here - 1) * RUNS + c) * RUN_WORDS;
        float acc[8] = {};
        if ((first + item / UNITS * 4 + 4) * GROUP <= cols) {
            load(8, odd);
            bf16_chains<true>(even, x, 0, n, acc);
            load(16, even);
            bf16_chains<true>(odd, x, 8, n, acc);
            load(24, odd);
            bf16_chains<true>(even, x, 16, n, acc);
            begin(item + warps);
            load(0, even);
            bf16_chains<true>(odd, x, 24, n, acc);
        } else {
            const int own = n;
            load(8, odd);
            bf16_chains<false>(even, x, 0, own, acc);
            load(16, even);
            bf16_chains<false>(odd, x, 8, own, acc);
            load(24, odd);
            bf16_chains<false>(even, x, 16, own, acc);
            begin(item + warps);
            load(0, even);
            bf16_chains<false>(odd, x, 24, own, acc);
        }
        float mine[2] = {};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float runs = acc[i] + __shfl_xor_sync(~0u, acc[i], 2);
            runs = runs + __shfl_xor_sync(~0u, runs, 4);
            if (c == i / 2) mine[i % 2] = runs;
        }
        if (g < here) *(float2*)(part + (g * UNITS + item % UNITS) * TILE + 8 * h + 2 * c) = make_float2(mine[0], mine[1]);
    }
}

// Products of x[cols] with the rows of the units, in the shared memory that `dot_grid` of cuda/linear.rs asks for: thread 16 u + r gets that of row r of unit u, others get 0.
template <u32 FORMAT, int UNITS>
__device__ __forceinline__ float block_dots(const Unit (&units)[UNITS], const float* x, u32 cols, u8* shared) {
    const u32 groups = (cols + GROUP - 1) / GROUP, held = min(groups, CHUNK);
    float* row = (float*)shared;
    float* part = row + held * RUNS * RUN_WORDS;
    u16* scales = (u16*)(part + held * UNITS * TILE);
    float total = 0.0f;
    for (u32 first = 0; first < groups; first += CHUNK) {
        const u32 here = min(groups - first, CHUNK);
        if (first > 0) __syncthreads();  // what was added up is not overwritten before that
        copy_row(row, x + first * GROUP, min(cols - first * GROUP, here * GROUP));
        if constexpr (FORMAT != BF16) {
            // 32 bytes a group.
#pragma unroll
            for (int u = 0; u < UNITS; ++u)
                for (u32 i = threadIdx.x; i < 2 * here; i += blockDim.x)
                    copy_16(scales + u * held * TILE + 8 * i, units[u].scales + first * TILE * 2 + 16 * i);
            integer_groups<FORMAT, UNITS>(units, first, here, cols, row, part);
        } else {
            bf16_groups<UNITS>(units, first, here, cols, row, part);
        }
        __syncthreads();
        if (threadIdx.x < UNITS * TILE) {
            const u32 u = threadIdx.x / TILE, r = threadIdx.x % TILE;
#pragma unroll 8
            for (u32 g = 0; g < here; ++g) {
                const float sum = part[(g * UNITS + u) * TILE + r];
                total = FORMAT != BF16 ? __fmaf_rn(bf16_to_f32(scales[(u * held + g) * TILE + r]), sum, total) : total + sum;
            }
        }
    }
    return total;
}

}  // namespace assay
