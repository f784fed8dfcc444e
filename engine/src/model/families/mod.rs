//! One file per model family, and what families share.

mod common;
pub(super) mod glm4_moe;
pub(super) mod gpt_oss;
pub(super) mod granitemoe;
mod limits;
pub(super) mod minimax_m2;
pub(super) mod mixtral;
pub(super) mod olmoe;
pub(super) mod qwen2_moe;
pub(super) mod qwen3_moe;
