//! The expert cache: a checkpoint's routed experts, packed once into one file in the layout that every device reads.
//!
//! One file holds all experts of one checkpoint in one [`Encoding`]. It is built once ([`build`]), read into memory at startup
//! ([`ExpertCache`]) and never converted again.
//!
//! The file:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | magic, `ASSAYXPT` |
//! | 8 | length of the header, u64 little-endian |
//! | 32 | SHA-256 of the header |
//! | length | the header, JSON ([`Header`]) |
//! | to a multiple of 4096 | zeros |
//! | the payload | each MoE layer at a multiple of 4096, its experts one after another, zeros after the last |
//!
//! An expert is gate, up and down, with their biases behind them where there are some, as [`ExpertLayout`](assay_kernels::layout::ExpertLayout) says. The header names the SHA-256
//! of every source file: a cache of another checkpoint, format or method is refused with both values, and never rebuilt
//! without being asked to.
//!
//! A build holds `FILE.lock`, writes `FILE.tmp`, syncs it, renames it and syncs the folder, so that `FILE` is complete
//! wherever it exists. The lock file stays: to remove it would let two builders hold different ones.
//!
//! - `quantize`: the INT4 methods
//! - `encode`: rows of f32 to a packed matrix, also for matrices that are not experts
//! - `header`: the header's types, its reading and its checks
//! - `identity`: what a cache must be of, and where it lies by default
//! - `source`: where experts come from: a checkpoint, or what makes them up
//! - `build`, `read`, `verify`: the file itself
//! - `error`: what can go wrong

mod build;
mod encode;
mod error;
mod header;
mod identity;
pub mod quantize;
mod read;
mod source;
mod verify;

pub use build::{BuildOptions, BuildReport, LayerReport, build, build_from};
pub use encode::{EncodeError, Encoding, SquaredError, encode_matrix, encode_rows};
pub use error::CacheError;
pub use header::{EncodingRecord, Header, LayerRecord, MethodRecord, SourceRecord};
pub use identity::{CacheIdentity, LayerGeometry, default_path, stale_paths};
pub use quantize::QuantizeMethod;
pub use read::{CacheInfo, ExpertCache, info};
pub(crate) use source::write_bias;
pub use source::{ExpertPlace, ExpertSource};
pub use verify::{VerifyReport, verify};

#[cfg(test)]
mod tests;
