//! Launcher of `cu/attention.cu`: attention over the cache in the contract's order.

use super::launch::{Grid, Stream, arguments, position, size};
use super::module::Function;
use super::pack::aligned;
use super::{Cuda, CudaError, DeviceSlice};
use crate::contract::SPLIT;
use crate::error::{KernelError, expect_len, product};
use crate::{AttentionForm, KvFormat, KvLayout, check};

/// Most queries whose splits are spread over the device; with more, each block takes all splits of a query.
const SPREAD_TOKENS: usize = 4;

/// Blocks below which a card is mostly idle.
const ENOUGH_BLOCKS: usize = 64;

/// Widest head that the kernels have room for.
const MAX_HEAD_DIM: usize = 256;

/// Threads of a block.
const THREADS: u32 = 256;

/// `struct Attention` of `cu/attention.cu`.
#[repr(C)]
struct AttentionArgument {
    q: u64,
    cache: u64,
    sinks: u64,
    out: u64,
    states: u64,
    partial: u64,
    position_at: u64,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    first_position: u32,
    window: u32,
    splits: u32,
    scale: f32,
}

/// Most bytes of scratch memory that [`Cuda::attention`] needs for up to `tokens` queries in a context of at most
/// `context_tokens` positions: m, l and o of every split, for as many queries as have theirs spread. `None` where a size
/// overflows.
pub fn attention_workspace_bytes(tokens: usize, heads: usize, head_dim: usize, context_tokens: usize) -> Option<usize> {
    let rows = tokens.min(SPREAD_TOKENS).checked_mul(heads)?;
    split_bytes(head_dim)?.checked_mul(context_tokens.div_ceil(SPLIT))?.checked_mul(rows)
}

/// Bytes of m, l and o of one split of one head.
pub(super) fn split_bytes(head_dim: usize) -> Option<usize> {
    head_dim.checked_add(2)?.checked_mul(size_of::<f32>())
}

impl Cuda {
    /// [`crate::twin::attention`] on the device, for heads of at most 256, with scale and window as in [`AttentionForm`] and
    /// `sinks` `[heads]`. `scratch` has at least
    /// [`attention_workspace_bytes`]; it, `q`, `out` and the cache lie at multiples of 16.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    #[allow(clippy::too_many_arguments)]
    pub fn attention(
        &self,
        stream: Stream,
        q: DeviceSlice<f32>,
        heads: usize,
        (first_position, position_at): (usize, Option<DeviceSlice<u32>>),
        layout: KvLayout,
        cache: DeviceSlice<u8>,
        (scale, window): (f32, Option<usize>),
        sinks: Option<DeviceSlice<f32>>,
        scratch: DeviceSlice<u8>,
        out: DeviceSlice<f32>,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "attention";
        let form = AttentionForm { scale, window, sinks: None };
        let tokens = check::attention(&q, heads, first_position, &layout, &cache, &form, &out)?;
        operands(&layout, heads, sinks, [q.address(), out.address(), cache.address()])?;
        if tokens == 0 {
            return Ok(());
        }
        let splits = match position_at {
            None => most_splits(&form, first_position, tokens),
            Some(_) => most_splits_up_to(window, first_position + tokens),
        };
        let spread = tokens <= SPREAD_TOKENS && splits > 1;
        let rows = product(KERNEL, "queries", &[tokens, heads])?;
        let (first, stored) = position(KERNEL, first_position, tokens, position_at)?;
        let mut argument = AttentionArgument {
            q: q.address(),
            cache: cache.address(),
            sinks: sinks.map_or(0, DeviceSlice::address),
            out: out.address(),
            states: 0,
            partial: 0,
            position_at: stored,
            heads: size(KERNEL, heads)?,
            kv_heads: size(KERNEL, layout.kv_heads)?,
            head_dim: size(KERNEL, layout.head_dim)?,
            first_position: first,
            // A window that reaches past the first position is none.
            window: window.and_then(|window| u32::try_from(window).ok()).unwrap_or(0),
            splits: size(KERNEL, splits)?,
            scale,
        };
        if spread {
            let states = product(KERNEL, "states", &[rows, splits, 2 * size_of::<f32>()])?;
            let bytes =
                product(KERNEL, "scratch", &[rows, splits, split_bytes(layout.head_dim).unwrap_or(usize::MAX)])?;
            aligned(KERNEL, "the address of scratch", scratch.address())?;
            if scratch.len() < bytes {
                let what = "bytes of scratch";
                return Err(KernelError::Shape { kernel: KERNEL, what, expected: bytes, found: scratch.len() }.into());
            }
            argument.states = scratch.address();
            argument.partial = scratch.address() + states as u64;
        }
        let each = heads / layout.kv_heads;
        // A block for each split of each key-value head is few for a card: where it is, fewer heads share one.
        let shares = tokens.saturating_mul(if spread { splits } else { 1 }).saturating_mul(layout.kv_heads);
        let (name, together) = kernel(layout.format, each, spread, shares);
        let blocks = size(KERNEL, product(KERNEL, "blocks", &[layout.kv_heads, each.div_ceil(together)])?)?;
        let tokens = size(KERNEL, tokens)?;
        let grid = if spread { (argument.splits, blocks, tokens) } else { (tokens, blocks, 1) };
        // SAFETY: argument types are those of the kernel; shapes were checked, and scratch has room for all splits.
        unsafe {
            let mut arguments = arguments![argument];
            self.launch(stream, Function(KERNEL, name), Grid::new(grid, THREADS), &mut arguments)?;
            if spread {
                let grid = Grid::new((size(KERNEL, rows)?, 1, 1), THREADS);
                self.launch(stream, Function(KERNEL, "attention_merge"), grid, &mut arguments)?;
            }
        }
        Ok(())
    }
}

/// Most splits that a query at any position below `end` sees.
fn most_splits_up_to(window: Option<usize>, end: usize) -> usize {
    let seen = window.map_or(usize::MAX, |window| window.div_ceil(SPLIT) + 1);
    end.div_ceil(SPLIT).min(seen)
}

/// Refuses heads that the kernels have no room for, sinks of another number, and addresses that are not aligned.
pub(super) fn operands(
    layout: &KvLayout,
    heads: usize,
    sinks: Option<DeviceSlice<f32>>,
    addresses: [u64; 3],
) -> Result<(), KernelError> {
    const KERNEL: &str = "attention";
    layout.refuse_codes(KERNEL)?;
    if layout.head_dim > MAX_HEAD_DIM {
        let (what, expected, found) = ("head_dim", "at most 256", layout.head_dim);
        return Err(KernelError::Geometry { kernel: KERNEL, what, expected, found });
    }
    if let Some(sinks) = sinks {
        expect_len(KERNEL, "sinks [heads]", sinks.len(), heads)?;
    }
    for (what, address) in
        ["the address of q", "the address of out", "the address of the cache"].into_iter().zip(addresses)
    {
        aligned(KERNEL, what, address)?;
    }
    Ok(())
}

/// The most splits that a query sees.
fn most_splits(form: &AttentionForm<'_>, first_position: usize, tokens: usize) -> usize {
    let splits = |position| position / SPLIT - form.first_visible(position) / SPLIT + 1;
    (first_position..first_position + tokens).map(splits).max().unwrap_or(0)
}

/// The kernel for `each` heads that share a key-value head, and how many of them a block takes: as many as there are, up to
/// 8, while `shares` such groups of heads make [`ENOUGH_BLOCKS`]. It changes no bit.
fn kernel(format: KvFormat, each: usize, spread: bool, shares: usize) -> (&'static str, usize) {
    let names = match (format, spread) {
        (KvFormat::F32, false) => {
            ["attention_all_f32_1", "attention_all_f32_2", "attention_all_f32_4", "attention_all_f32_8"]
        }
        (KvFormat::F32, true) => {
            ["attention_split_f32_1", "attention_split_f32_2", "attention_split_f32_4", "attention_split_f32_8"]
        }
        (KvFormat::Bf16, false) => {
            ["attention_all_bf16_1", "attention_all_bf16_2", "attention_all_bf16_4", "attention_all_bf16_8"]
        }
        (KvFormat::Bf16, true) => {
            ["attention_split_bf16_1", "attention_split_bf16_2", "attention_split_bf16_4", "attention_split_bf16_8"]
        }
        // `operands` has refused them.
        (KvFormat::Int8 | KvFormat::Int6 | KvFormat::Int4, _) => [""; 4],
    };
    let mut power = each.min(8).next_power_of_two().trailing_zeros() as usize;
    while power > 0 && shares.saturating_mul(each.div_ceil(1 << power)) < ENOUGH_BLOCKS {
        power -= 1;
    }
    (names[power], 1 << power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_share_a_block_and_a_window_bounds_the_splits() {
        assert_eq!(kernel(KvFormat::F32, 1, true, 1000), ("attention_split_f32_1", 1));
        assert_eq!(kernel(KvFormat::Bf16, 3, false, 1000), ("attention_all_bf16_4", 4));
        assert_eq!(kernel(KvFormat::Bf16, 12, true, 1000), ("attention_split_bf16_8", 8));
        assert_eq!([4, 8, 16, 32, 64].map(|shares| kernel(KvFormat::Bf16, 8, true, shares).1), [1, 1, 2, 4, 8]);
        let causal = AttentionForm::causal(1.0);
        assert_eq!([0, 127, 128, 1000].map(|position| most_splits(&causal, position, 1)), [1, 1, 2, 8]);
        assert_eq!(most_splits(&causal, 100, 30), 2);
        let narrow = AttentionForm { window: Some(128), ..causal };
        assert_eq!([127, 128, 254, 255].map(|position| most_splits(&narrow, position, 1)), [1, 2, 2, 1]);
        assert_eq!(attention_workspace_bytes(1, 32, 128, 1000), Some(32 * 8 * 130 * 4));
        assert_eq!(attention_workspace_bytes(500, 32, 128, 1000), attention_workspace_bytes(4, 32, 128, 1000));
    }
}
