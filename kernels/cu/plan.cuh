// The plan of a grouped GEMM: u32 words, [0] tiles, [1..4] unused, then the tiles.
#pragma once

// Up to 128 neighbouring slots of one expert.
struct PlanTile {
    unsigned expert;
    unsigned first_block; // of the image, in blocks of 8 rows
    unsigned first;       // index into order
    unsigned count;       // slots, 1 to 128
};

__device__ __forceinline__ PlanTile* plan_tiles(unsigned* plan) { return (PlanTile*)(plan + 4); }
__device__ __forceinline__ const PlanTile* plan_tiles(const unsigned* plan) { return (const PlanTile*)(plan + 4); }
