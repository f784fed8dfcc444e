//! The kernel families, fast: the twins' functions, equal to them bit for bit on every processor.

mod experts;
mod group;
mod lanes;
mod linear;
mod parallel;
mod product;

pub use crate::twin::{
    add_assign, argmax, attention, embed, head_norm_rope, kv_append, permute, rms_norm, router_topk, swiglu,
};
pub use experts::{combine, grouped_down, grouped_gate_up};
pub use lanes::Level;
pub use linear::linear;
