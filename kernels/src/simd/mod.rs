//! The kernel families, fast: the twins' functions, equal to them bit for bit on every processor.

pub use crate::twin::{
    add_assign, argmax, attention, combine, embed, grouped_down, grouped_gate_up, head_norm_rope,
    kv_append, linear, permute, rms_norm, router_topk, swiglu,
};
