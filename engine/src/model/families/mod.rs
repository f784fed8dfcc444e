//! One file per model family, and what families share.

mod common;
mod limits;
pub(super) mod qwen3_moe;
