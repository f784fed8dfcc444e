// The plan of a grouped GEMM: u32 words, [0] tiles, [1..4] unused, then the tiles.
#pragma once

#include "contract.cuh"

using namespace assay;

// Up to 128 neighbouring slots of one expert.
struct PlanTile {
    u32 expert;
    u32 first_block; // of the image, in blocks of 8 rows
    u32 first;       // index into order
    u32 count;       // slots, 1 to 128
};

__device__ __forceinline__ PlanTile* plan_tiles(u32* plan) { return (PlanTile*)(plan + 4); }
__device__ __forceinline__ const PlanTile* plan_tiles(const u32* plan) { return (const PlanTile*)(plan + 4); }
