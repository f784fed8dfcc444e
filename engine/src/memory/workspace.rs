//! Activations of one chunk of tokens. Attention, routed experts and dense networks overlay each other: a shared expert runs
//! after the routed ones have been combined.

use super::Sizes;
use crate::device::{Carver, DeviceError, Span};

/// Spans for `tokens` tokens (`T`); `S = T * top_k`.
#[derive(Debug, Clone, Copy)]
pub struct Workspace {
    /// Tokens it was laid out for.
    pub tokens: usize,
    /// `[T]` token ids.
    pub ids: Span<u32>,
    /// `[T, hidden_size]`, the normed residual stream.
    pub normed: Span<f32>,
    /// `[T, hidden_size]`, what a part adds to the residual stream.
    pub branch: Span<f32>,
    /// `[T, q_width]`
    pub q: Span<f32>,
    /// `[T, kv_width]`
    pub k: Span<f32>,
    /// `[T, kv_width]`
    pub v: Span<f32>,
    /// `[T, q_width]`, attention's output.
    pub attended: Span<f32>,
    /// `[T, num_experts]`
    pub router_logits: Span<f32>,
    /// `[S]` chosen experts.
    pub routes: Span<u32>,
    /// `[S]` their weights.
    pub route_weights: Span<f32>,
    /// `[S]` slots sorted by expert.
    pub order: Span<u32>,
    /// `[num_experts + 1]`
    pub offsets: Span<u32>,
    /// `[num_experts]` addresses of one layer's experts.
    pub table: Span<u64>,
    /// `[S, moe_intermediate_size]`
    pub expert_act: Span<f32>,
    /// `[S, hidden_size]`
    pub expert_out: Span<f32>,
    /// `[T, intermediate_size]`
    pub gate: Span<f32>,
    /// `[T, intermediate_size]`
    pub up: Span<f32>,
    /// `[T, intermediate_size]`
    pub act: Span<f32>,
    /// `[T, hidden_size]`, a shared expert's output; empty in a model without.
    pub shared_out: Span<f32>,
    /// `[T]` what its gate says; empty in a model without.
    pub shared_gate: Span<f32>,
    /// What a kernel may use while it runs; empty where the device's kernels need nothing.
    pub scratch: Span<u8>,
}

impl Workspace {
    /// Lays the spans out from `base` on; returns them and the bytes they take.
    pub fn carve(base: u64, sizes: &Sizes, tokens: usize, scratch_bytes: usize) -> (Self, u64) {
        let slots = tokens * sizes.top_k;
        let mut carver = Carver::new(base);
        let scratch = carver.take(scratch_bytes);
        let ids = carver.take(tokens);
        let normed = carver.take(tokens * sizes.hidden_size);
        let branch = carver.take(tokens * sizes.hidden_size);
        let overlay = carver.mark();
        let q = carver.take(tokens * sizes.q_width);
        let k = carver.take(tokens * sizes.kv_width);
        let v = carver.take(tokens * sizes.kv_width);
        let attended = carver.take(tokens * sizes.q_width);
        carver.rewind(overlay);
        let router_logits = carver.take(tokens * sizes.num_experts);
        let routes = carver.take(slots);
        let route_weights = carver.take(slots);
        let order = carver.take(slots);
        let offsets = carver.take(sizes.num_experts + 1);
        let table = carver.take(sizes.num_experts);
        let expert_act = carver.take(slots * sizes.moe_intermediate_size);
        let expert_out = carver.take(slots * sizes.hidden_size);
        carver.rewind(overlay);
        let gate = carver.take(tokens * sizes.intermediate_size);
        let up = carver.take(tokens * sizes.intermediate_size);
        let act = carver.take(tokens * sizes.intermediate_size);
        let shared_tokens = if sizes.shared_layers > 0 { tokens } else { 0 };
        let shared_out = carver.take(shared_tokens * sizes.hidden_size);
        let shared_gate = carver.take(shared_tokens);
        let workspace = Self {
            tokens,
            ids,
            normed,
            branch,
            q,
            k,
            v,
            attended,
            router_logits,
            routes,
            route_weights,
            order,
            offsets,
            table,
            expert_act,
            expert_out,
            gate,
            up,
            act,
            shared_out,
            shared_gate,
            scratch,
        };
        (workspace, carver.bytes())
    }

    /// Rows `0 .. tokens` of a `[T, width]` span.
    pub fn rows<T>(span: Span<T>, tokens: usize, width: usize) -> Result<Span<T>, DeviceError> {
        span.first(tokens * width)
    }
}
