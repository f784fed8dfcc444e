//! Memory that a device's kernels use while they run: partial results, operands in another form.

use assay_kernels::cuda::decode::route_workspace_bytes;
use assay_kernels::cuda::{attention_workspace_bytes, grouped_workspace_bytes, image_bytes};

use super::Sizes;
use crate::device::{Arithmetic, DeviceKind};
use crate::error::EngineError;

/// Most bytes that one kernel of a pass over `tokens` tokens needs, in a context of at most `context_tokens`.
pub(super) fn scratch_bytes(
    device: DeviceKind,
    arithmetic: Arithmetic,
    sizes: &Sizes,
    context_tokens: usize,
    tokens: usize,
) -> Result<usize, EngineError> {
    let needs = match (device, arithmetic) {
        (DeviceKind::Host, _) => Some(0),
        (DeviceKind::Cuda, Arithmetic::Exact) => exact(sizes, context_tokens, tokens),
        (DeviceKind::Cuda, Arithmetic::Tensor) => tensor(sizes, context_tokens, tokens),
    };
    needs.ok_or(EngineError::TooLarge { what: "the kernels' scratch memory" })
}

/// Partial results of attention, or of the router.
fn exact(sizes: &Sizes, context_tokens: usize, tokens: usize) -> Option<usize> {
    let attention = exact_attention(sizes, context_tokens, tokens)?;
    Some(attention.max(route_workspace_bytes(sizes.num_experts, sizes.hidden_size)?))
}

/// Partial results of the splits of every query.
fn exact_attention(sizes: &Sizes, context_tokens: usize, tokens: usize) -> Option<usize> {
    attention_workspace_bytes(tokens, sizes.q_heads, sizes.head_dim, context_tokens)
}

/// Activations in BF16, of a linear layer or of the experts.
fn tensor(sizes: &Sizes, context_tokens: usize, tokens: usize) -> Option<usize> {
    let widest = sizes.hidden_size.max(sizes.q_width).max(sizes.intermediate_size);
    let linear = image_bytes(tokens, widest)?;
    let experts = match sizes.moe_layers {
        0 => 0,
        _ => {
            let slots = tokens.checked_mul(sizes.top_k)?;
            grouped_workspace_bytes(slots, sizes.num_experts, sizes.hidden_size, sizes.moe_intermediate_size)?.bytes
        }
    };
    let attention = if sizes.tensor_attention { 0 } else { exact_attention(sizes, context_tokens, tokens)? };
    let router = route_workspace_bytes(sizes.num_experts, sizes.hidden_size)?;
    Some(linear.max(experts).max(attention).max(router))
}
