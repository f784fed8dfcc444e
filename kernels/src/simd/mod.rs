//! The kernel families, fast: the twins' functions, equal to them bit for bit on every processor.

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
