//! The scalar twins: what every kernel family computes, as plain f32 loops with each rounding written out.
//!
//! They are the definition that vectorised host code and CUDA kernels are tested against, to the bit. They favour
//! being obviously right over everything else.

mod argmax;
mod attention;
mod elementwise;
mod embed;
mod experts;
mod linear;
mod norm;
mod rope;
mod router;
mod sample;

pub use argmax::argmax;
pub use attention::{attention, kv_append};
pub use elementwise::{add_assign, add_gated, scale, swiglu};
pub use embed::embed;
pub use experts::{combine, grouped_down, grouped_gate_up};
pub use linear::linear;
pub use norm::rms_norm;
pub use rope::head_norm_rope;
pub(crate) use router::{keep_best_groups, weigh};
pub use router::{permute, router_topk};
pub use sample::sample;
