// What a router's kernels are told, and what they hold: for one launch a step and for a token's fused one alike.
#pragma once
#include "contract.cuh"

namespace assay {

constexpr u32 MAX_EXPERTS = 1024;
constexpr u32 SOFTMAX = 0, SOFTMAX_OF_CHOSEN = 1;  // 2: the sigmoid of each
constexpr float SUM_FLOOR = 1e-20f;

struct Routing {
    u32 scoring;
    u32 norm_topk_prob;
    u32 n_group;
    u32 topk_group;
    float scaling_factor;
};

}  // namespace assay
