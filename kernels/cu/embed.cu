// Rows of the embedding table: twin in kernels/src/twin/embed.rs.
#include "contract.cuh"

using namespace assay;

// out[t, d] = table[ids[t], d]; the table is BF16, `[tile][col][16 rows]`, and has `rows` rows of `cols`.
extern "C" __global__ void embed(const u32* ids, const u16* table, u32 rows, u32 cols, float* out, Status* status) {
    const u32 token = blockIdx.x;
    const u32 id = ids[token];
    if (id >= rows) {
        if (threadIdx.x == 0) report(status, STATUS_INDEX, token);
        return;
    }
    const u16* column = table + u64(id / 16) * cols * 16 + id % 16;
    for (u32 d = threadIdx.x; d < cols; d += blockDim.x) out[u64(token) * cols + d] = bf16_to_f32(column[u64(d) * 16]);
}
