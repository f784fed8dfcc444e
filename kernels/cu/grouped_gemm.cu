// The routed experts' products for prefill, tile by tile of a plan (pack.cu). Twins: twin::grouped_gate_up, twin::grouped_down,
// within the bounds of tests/cuda/grouped_gemm.rs. Arithmetic as in gemm.cu.
//
// The grid's second dimension is the largest number of tiles that the slots can need; blocks past the plan's end leave at once.
#include "gemm_block.cuh"
#include "plan.cuh"

// Gate and up of the same 64 outputs; out is the image that the down projection reads: activation(gate, up) as BF16, of one half of
// a group's positions. Tiles 0 to 3 of the block are gate's, 4 to 7 up's: every other tile of the group, which together
// hold whole chunks of the image.
template <u32 FORMAT> struct GateUpWork {
    MatrixTiles<FORMAT> gate, up;
    const u8* image;
    u32 pitch;
    int count, groups;
    u32 cols;
    u32 out_group, half;
    const float *gate_bias, *up_bias;
    Activation form;
    u8* out;         // the tile's panel

    __device__ __forceinline__ u32 index(int i) const { return 8 * out_group + half + 2 * (i & 3); }
    __device__ __forceinline__ const u8* tile(int i) const { return i < 4 ? gate.tile(index(i)) : up.tile(index(i)); }
    __device__ __forceinline__ const u16* scales(int i) const { return i < 4 ? gate.scales(index(i)) : up.scales(index(i)); }

    __device__ __forceinline__ float activated(float g, float u) const {
        if (!form.clamped) return g * reciprocal_fast(1.0f + exp2_fast(-g * LOG2_E)) * u;
        g = g > form.limit ? form.limit : g;
        u = u > form.limit ? form.limit : u;
        u = u < -form.limit ? -form.limit : u;
        return (u + 1.0f) * (g * reciprocal_fast(1.0f + exp2_fast(-(form.alpha * g) * LOG2_E)));
    }

    template <int N, int ROWS, int COLS>
    __device__ __forceinline__ void finish(const float (&acc)[ROWS][COLS][4], int warp_tile, int warp_block, u8* shared) const {
        // [gate, up][64 outputs][N tokens]; a pitch of 8 modulo 32 keeps both sides free of bank conflicts.
        constexpr int PITCH = N + 8;
        float* sums = (float*)shared;
        const int lane = threadIdx.x & 31;
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float* row = sums + (16 * (warp_tile + i) + (lane >> 2) + 8 * h) * PITCH + 8 * warp_block + 2 * (lane & 3);
#pragma unroll
                for (int j = 0; j < COLS; j++) *(float2*)(row + 8 * j) = make_float2(acc[i][j][2 * h], acc[i][j][2 * h + 1]);
            }
        __syncthreads();
        const int token = threadIdx.x % N;
        const int blocks = blocks_of(count);
        if (token >= 8 * blocks) return;
        for (int chunk = threadIdx.x / N; chunk < 8; chunk += GEMM_THREADS / N) {
            u32 pairs[4];
#pragma unroll
            for (int run = 0; run < 4; run++) {
                float value[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int row = 16 * run + 2 * chunk + e;
                    const u32 output = out_group * GROUP + 32 * run + 16 * half + 2 * chunk + e;
                    float g = sums[row * PITCH + token], u = sums[(64 + row) * PITCH + token];
                    const bool present = output < gate.rows && token < count;
                    if (gate_bias && present) {
                        g += gate_bias[output];
                        u += up_bias[output];
                    }
                    value[e] = present ? activated(g, u) : 0.0f;
                }
                pairs[run] = bf16_pair(value[0], value[1]);
            }
            u8* to = out + (u64)(out_group * blocks + token / 8) * BLOCK_BYTES + half * 1024 + chunk * 128 + token % 8 * 16;
            *(uint4*)to = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
    }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The same by wgmma from integers, without shared memory: rows g and g + 8 of a warp are gate and up of one output, 32 (g / 2) + x + g % 2 of
// the group, with x = 16 half + 2 warp. The eight outputs of a warp are a chunk of the image.
template <u32 FORMAT> struct PairedGateUpWork : GateUpWork<FORMAT> {
    using Base = GateUpWork<FORMAT>;
    using Base::gate, Base::up, Base::count, Base::out_group, Base::half, Base::gate_bias, Base::up_bias, Base::out, Base::index, Base::activated;

    __device__ __forceinline__ WeightRows weight_rows() const {
        const u32 warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, at = index(g / 2), row = 2 * warp + g % 2;
        const u64 to_up = up.matrix - gate.matrix;
        return WeightRows{gate.tile(at) + row * RunWords<FORMAT>::ROW_BYTES, gate.scales(at) + row, to_up, to_up};
    }

    template <int N, int ROWS, int COLS>
    __device__ __forceinline__ void finish(const float (&acc)[ROWS][COLS][4], int warp, int, u8*) const {
        const u32 lane = threadIdx.x % 32, g = lane / 4;
        const u32 output = out_group * GROUP + 32 * (g / 2) + 16 * half + 2 * warp + g % 2;
        const bool present = output < gate.rows, biased = gate_bias && present;
        const float gate_add = biased ? gate_bias[output] : 0.0f, up_add = biased ? up_bias[output] : 0.0f;
        const int blocks = blocks_of(count);
        u8* to = out + (u64)(out_group * blocks) * BLOCK_BYTES + half * 1024 + warp * 128 + lane * 4;
#pragma unroll
        for (int j = 0; j < COLS; j++) {
            if (j >= blocks) break;
            float value[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float g = acc[0][j][e], u = acc[0][j][2 + e];
                if (biased) {
                    g += gate_add;
                    u += up_add;
                }
                value[e] = present && 8 * j + 2 * (int)(lane % 4) + e < count ? activated(g, u) : 0.0f;
            }
            // [output][token] to [token][output].
            u32 pair;
            asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(pair) : "r"(bf16_pair(value[0], value[1])));
            *(u32*)(to + j * BLOCK_BYTES) = pair;
        }
    }
};

template <bool FIRST, class A, class B> struct Chosen { using Type = A; };
template <class A, class B> struct Chosen<false, A, B> { using Type = B; };

#endif

// An expert's first byte; reports one that is absent.
__device__ __forceinline__ const u8* expert_bytes(const u64* table, u32 expert, Status* status) {
    const u64 address = table[expert];
    if (address == 0 && threadIdx.x == 0) report(status, STATUS_EXPERT_ABSENT, expert);
    return (const u8*)address;
}

__device__ __forceinline__ const float* bias_of(const u8* expert, u64 offset) {
    return offset ? (const float*)(expert + offset) : nullptr;
}

// How a block multiplies: by mma.sync, by wgmma, or by wgmma where no tile of the plan has more than 32 slots.
enum class How { Mma, Wgmma, Short };

// Grid: (2 ceil(rows / 128), tile bound). `rows` are the intermediate size, `cols` the hidden size. Offsets of biases are 0 where there are none.
template <How HOW, u32 FORMAT>
__device__ __forceinline__ void gate_up(const u64* table, u64 up_offset, u64 gate_bias, u64 up_bias, u32 rows, u32 cols,
                                        const u32* plan, const u8* image, Activation form, u8* out, Status* status) {
    if (blockIdx.y >= plan[0]) return;
    const PlanTile planned = plan_tiles(plan)[blockIdx.y];
    const u8* expert = expert_bytes(table, planned.expert, status);
    if (!expert) return;
    const int groups = (cols + GROUP - 1) / GROUP, out_groups = (rows + GROUP - 1) / GROUP;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    typename Chosen<HOW != How::Mma && FORMAT != BF16, PairedGateUpWork<FORMAT>, GateUpWork<FORMAT>>::Type work;
#else
    GateUpWork<FORMAT> work;
#endif
    work.gate = MatrixTiles<FORMAT>{expert, rows, cols, groups};
    work.up = MatrixTiles<FORMAT>{expert + up_offset, rows, cols, groups};
    work.image = image + (u64)planned.first_block * groups * BLOCK_BYTES;
    work.pitch = blocks_of(planned.count) * BLOCK_BYTES;
    work.count = planned.count;
    work.groups = groups;
    work.cols = cols;
    work.out_group = blockIdx.x >> 1;
    work.half = blockIdx.x & 1;
    work.gate_bias = bias_of(expert, gate_bias);
    work.up_bias = bias_of(expert, up_bias);
    work.form = form;
    work.out = out + (u64)planned.first_block * out_groups * BLOCK_BYTES;
    run_block<HOW != How::Mma, FORMAT, HOW == How::Short ? 32 : 128>(work);
}

// Grid: (ceil(rows / 128), tile bound). `rows` are the hidden size, `cols` the intermediate size; out [slots, rows].
template <How HOW, u32 FORMAT>
__device__ __forceinline__ void down(const u64* table, u64 offset, u64 bias, u32 rows, u32 cols, const u32* plan, const u32* order,
                                     const u8* image, float* out, Status* status) {
    if (blockIdx.y >= plan[0]) return;
    const PlanTile planned = plan_tiles(plan)[blockIdx.y];
    const u8* expert = expert_bytes(table, planned.expert, status);
    if (!expert) return;
    const int groups = (cols + GROUP - 1) / GROUP;
    RowsWork<FORMAT> work;
    work.weights = MatrixTiles<FORMAT>{expert + offset, rows, cols, groups};
    work.image = image + (u64)planned.first_block * groups * BLOCK_BYTES;
    work.pitch = blocks_of(planned.count) * BLOCK_BYTES;
    work.count = planned.count;
    work.groups = groups;
    work.cols = cols;
    work.first_tile = blockIdx.x * 8;
    work.order = order;
    work.first = planned.first;
    work.bias = bias_of(expert, bias);
    work.out = out;
    run_block<HOW != How::Mma, FORMAT, HOW == How::Short ? 32 : 128>(work);
}

#define GATE_UP(name, how, format)                                                                                            \
    extern "C" __global__ void __launch_bounds__(GEMM_THREADS, how == How::Short ? 2 : 1)                                   \
    name(const u64* table, u64 up_offset, u64 gate_bias, u64 up_bias, u32 rows, u32 cols, const u32* plan, const u8* image, \
         Activation form, u8* out, Status* status) {                                                                       \
        gate_up<how, format>(table, up_offset, gate_bias, up_bias, rows, cols, plan, image, form, out, status);            \
    }

#define DOWN(name, how, format)                                                                                               \
    extern "C" __global__ void __launch_bounds__(GEMM_THREADS, how == How::Short ? 2 : 1)                                   \
    name(const u64* table, u64 offset, u64 bias, u32 rows, u32 cols, const u32* plan, const u32* order, const u8* image,   \
         float* out, Status* status) {                                                                                     \
        down<how, format>(table, offset, bias, rows, cols, plan, order, image, out, status);                               \
    }

GATE_UP(gate_up_int4_mma, How::Mma, INT4)
GATE_UP(gate_up_int8_mma, How::Mma, INT8)
GATE_UP(gate_up_bf16_mma, How::Mma, BF16)
GATE_UP(gate_up_int4_wgmma, How::Wgmma, INT4)
GATE_UP(gate_up_int8_wgmma, How::Wgmma, INT8)
GATE_UP(gate_up_bf16_wgmma, How::Wgmma, BF16)
GATE_UP(gate_up_int4_short, How::Short, INT4)
DOWN(down_int4_mma, How::Mma, INT4)
DOWN(down_int8_mma, How::Mma, INT8)
DOWN(down_bf16_mma, How::Mma, BF16)
DOWN(down_int4_wgmma, How::Wgmma, INT4)
DOWN(down_int8_wgmma, How::Wgmma, INT8)
DOWN(down_bf16_wgmma, How::Wgmma, BF16)
DOWN(down_int4_short, How::Short, INT4)
