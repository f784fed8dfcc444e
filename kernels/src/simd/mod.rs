//! The kernel families, fast: the twins' functions, equal to them bit for bit on every processor.
//!
//! A file is a family. Beneath them: `lanes` (sixteen f32 on AVX-512, AVX2 or the baseline, chosen when the program runs),
//! `group` (the inner loops, in the contract's order), `product` (one driver for every matrix product) and `parallel`
//! (rayon, where the work is worth a hand-over). Threads only ever divide outputs: no sum is split over them, so their
//! number changes no bit. A caller that runs many small kernels in a row should do so on a rayon thread
//! (`ThreadPool::install`), where a hand-over is cheapest.

#![allow(clippy::needless_range_loop, reason = "t and r index registers of several arrays at once")]

mod argmax;
mod attention;
mod elementwise;
mod embed;
mod experts;
mod group;
mod kv_append;
mod lanes;
mod linear;
mod norm;
mod parallel;
mod product;
mod rope;
mod router;
mod sample;
mod team;

pub use crate::twin::permute;
pub use argmax::argmax;
pub use attention::attention;
pub use elementwise::{add_assign, add_gated, scale, swiglu};
pub use embed::embed;
pub use experts::{combine, grouped_down, grouped_gate_up};
pub use kv_append::kv_append;
pub use lanes::Level;
pub use linear::linear;
pub use norm::rms_norm;
pub use rope::head_norm_rope;
pub use router::router_topk;
pub use sample::sample;
pub use team::{Member, TeamExpert};
