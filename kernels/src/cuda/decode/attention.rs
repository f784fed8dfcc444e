//! Launcher of `cu/decode_attention.cu`, and for heads of 128 `cu/decode_attention_split.cu` and `cu/decode_attention_deep.cu`.

use super::super::attention::{operands, split_bytes};
use super::super::launch::{Grid, Stream, arguments, position, size};
use super::super::module::Function;
use super::super::{Cuda, CudaError, DeviceSlice};
use super::{Carve, GROUP_WORDS};
use crate::contract::{RUN, RUNS, SPLIT};
use crate::error::{KernelError, expect_len, product};
use crate::{AttentionForm, KvFormat, KvLayout, check};

const KERNEL: &str = "attend";

const THREADS: u32 = 256;

/// Widest head that the kernel has room for.
const MAX_DIM: usize = 128;

/// Blocks of heads that have a ticket; `MAX_TICKETS` of `cu/decode_attention.cu`.
const MAX_TICKETS: usize = 256;

/// Splits that one block of a head merges by itself; `MOST_SPLITS` of `cu/decode_attention.cu`. As many blocks as every cluster may have.
const MOST_SPLITS: usize = 8;

/// Floats of what a block of a cluster has found for a head; `FOUND_WORDS` of `cu/decode_attention.cu`.
const FOUND_WORDS: usize = MAX_DIM + 4;

/// Width of the heads that have kernels of their own.
const WIDE_DIM: usize = 128;

/// The most heads of a block of one split.
const SPLIT_HEADS: usize = 2;

/// Dimensions and threads of a block of the merge.
const MERGE: (u32, u32) = (32, 256);

/// `struct Attend` of `cu/decode_attention.cu`.
#[repr(C)]
struct AttendArgument {
    rows: [u64; 3],
    norms: [u64; 2],
    tables: [u64; 2],
    cache: u64,
    sinks: u64,
    out: u64,
    states: u64,
    partial: u64,
    position_at: u64,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    rotary_dim: u32,
    first_position: u32,
    window: u32,
    splits: u32,
    scale: f32,
    eps: f32,
    merged_after: u32,
    clustered: u32,
}

/// Norms of single heads, `[head_dim]`, where there are any.
#[derive(Debug, Clone, Copy)]
pub struct HeadNorms {
    /// Of queries.
    pub q: Option<DeviceSlice<f32>>,
    /// Of keys.
    pub k: Option<DeviceSlice<f32>>,
    /// Added to the mean square.
    pub eps: f32,
}

/// Rope's tables, `[positions, rotary_dim / 2]`.
#[derive(Debug, Clone, Copy)]
pub struct Rope {
    /// Elements of a head that turn.
    pub rotary_dim: usize,
    /// Cosines.
    pub cos: DeviceSlice<f32>,
    /// Sines.
    pub sin: DeviceSlice<f32>,
}

/// [`AttentionForm`] on the device.
#[derive(Debug, Clone, Copy)]
pub struct AttendForm {
    /// Factor on every score.
    pub scale: f32,
    /// Positions that a query sees.
    pub window: Option<usize>,
    /// `[heads]`
    pub sinks: Option<DeviceSlice<f32>>,
}

impl Cuda {
    /// One token at a position: [`crate::twin::head_norm_rope`] of `q` and of `k`, [`crate::twin::kv_append`] of `k` and `v`, and
    /// [`crate::twin::attention`]. `q` and `k` stay as they are. For a BF16 cache, and heads of 32, 64, 96 or 128, each normed by itself
    /// or not at all. Scratch memory as for [`Cuda::attention`]; the position as in [`Cuda::head_norm_rope`]. It and
    /// earlier rows of the cache were written before the kernel that comes before this one.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    #[allow(clippy::too_many_arguments)]
    pub fn attend(
        &self,
        stream: Stream,
        [q, k, v]: [DeviceSlice<f32>; 3],
        norms: HeadNorms,
        rope: Rope,
        (first_position, position_at): (usize, Option<DeviceSlice<u32>>),
        (layout, cache): (KvLayout, DeviceSlice<u8>),
        form: AttendForm,
        scratch: DeviceSlice<u8>,
        out: DeviceSlice<f32>,
    ) -> Result<bool, CudaError> {
        let KvLayout { format, kv_heads, head_dim, .. } = layout;
        if format != KvFormat::Bf16 {
            return Ok(false);
        }
        let heads = q.len().checked_div(head_dim).unwrap_or(0);
        let looks = AttentionForm { scale: form.scale, window: form.window, sinks: None };
        if check::attention(&q, heads, first_position, &layout, &cache, &looks, &out)? != 1 {
            return Ok(false);
        }
        check::kv_append(&k, &v, first_position, &layout, &cache)?;
        for (x, heads, norm) in [(&q, heads, norms.q), (&k, kv_heads, norms.k)] {
            let Rope { rotary_dim, cos, sin } = &rope;
            check::head_norm_rope(x, heads, head_dim, *rotary_dim, norm.as_ref(), cos, sin, first_position)?;
        }
        operands(&layout, heads, form.sinks, [q.address(), out.address(), cache.address()])?;
        // A norm as wide as all heads is another kernel's; with one head it is the same.
        let apart = [norms.q, norms.k].iter().flatten().all(|norm| norm.len() == head_dim);
        if !head_dim.is_multiple_of(RUN) || head_dim > MAX_DIM || !apart {
            return Ok(false);
        }
        let splits = most_splits(form.window, first_position, position_at.is_some());
        let each = heads / kv_heads;
        let together = heads_of_a_block(each, kv_heads, splits, self.properties().multiprocessors as usize);
        let blocks = product(KERNEL, "blocks", &[kv_heads, each.div_ceil(together)])?;
        let Some(Form { function, threads, clustered, bytes }) = self.form(head_dim, together, splits)? else {
            return Ok(false);
        };
        let merged_after = splits > MOST_SPLITS;
        if !merged_after && !clustered && blocks > MAX_TICKETS {
            return Ok(false);
        }
        let (states, partial) = places(scratch, heads, head_dim, splits)?;
        let (first, stored) = position(KERNEL, first_position, 1, position_at)?;
        let argument = AttendArgument {
            rows: [q, k, v].map(DeviceSlice::address),
            norms: [norms.q, norms.k].map(|norm| norm.map_or(0, DeviceSlice::address)),
            tables: [rope.cos, rope.sin].map(DeviceSlice::address),
            cache: cache.address(),
            sinks: form.sinks.map_or(0, DeviceSlice::address),
            out: out.address(),
            states,
            partial,
            position_at: stored,
            heads: size(KERNEL, heads)?,
            kv_heads: size(KERNEL, kv_heads)?,
            head_dim: size(KERNEL, head_dim)?,
            rotary_dim: size(KERNEL, rope.rotary_dim)?,
            first_position: first,
            // A window that reaches past the first position is none.
            window: form.window.and_then(|window| u32::try_from(window).ok()).unwrap_or(0),
            splits: size(KERNEL, splits)?,
            scale: form.scale,
            eps: norms.eps,
            merged_after: merged_after.into(),
            clustered: clustered.into(),
        };
        // Two blocks of a multiprocessor, each with several splits where there are more.
        let shares = splits.min((2 * self.properties().multiprocessors as usize / blocks).max(MOST_SPLITS));
        let shares = size(KERNEL, if clustered { splits.next_power_of_two() } else { shares })?;
        let grid = Grid::new((shares, size(KERNEL, blocks)?, 1), threads).shared(bytes);
        let grid = grid.cluster(if clustered { shares } else { 1 });
        let merge = Grid::new((argument.head_dim / MERGE.0, argument.heads, 1), MERGE.1);
        // SAFETY: the argument type is that of the kernels; shapes were checked, and scratch has room for all splits. Read early are
        // earlier positions of the cache, and the position, as old as the documentation demands.
        unsafe {
            let mut arguments = arguments![argument];
            self.launch_early(stream, function, grid, &mut arguments)?;
            if merged_after {
                self.launch_early(stream, Function("decode_attention", "attend_merge"), merge, &mut arguments)?;
            }
        }
        Ok(true)
    }

    /// The kernel for blocks of `heads` heads that see up to `splits` splits; none where a block has too little shared memory.
    fn form(&self, dim: usize, heads: usize, splits: usize) -> Result<Option<Form>, CudaError> {
        let at = heads.trailing_zeros() as usize;
        let (wide, few, limit) = (dim == WIDE_DIM, splits <= MOST_SPLITS, self.properties().shared_bytes);
        let split = ["attend_split_1", "attend_split_2"].get(at).filter(|_| wide && few);
        let deep = at.checked_sub(2).and_then(|at| ["attend_deep_4", "attend_deep_8"].get(at)).filter(|_| wide && !few);
        let own = split.map(|name| (Function("decode_attention_split", name), THREADS));
        let own = own.or(deep.map(|name| (Function("decode_attention_deep", name), 32 * heads as u32)));
        if let Some((function, threads)) = own {
            let clustered = few && splits > 1;
            let shared = if few { split_shared(heads, clustered) } else { deep_shared(heads) };
            // What has clusters has the copies that both need.
            if let (Some(bytes), true) = (shared.within(limit), self.clusters(function)?) {
                return Ok(Some(Form { function, threads, clustered, bytes }));
            }
        }
        let function = Function("decode_attention", ["attend_1", "attend_2", "attend_4", "attend_8"][at]);
        let clustered = few && splits > 1 && self.clusters(function)?;
        let bytes = shared(dim, heads, clustered).within(limit);
        Ok(bytes.map(|bytes| Form { function, threads: THREADS, clustered, bytes }))
    }
}

/// A kernel, and how it is launched.
struct Form {
    function: Function,
    threads: u32,
    /// Whether the blocks that share the splits are a cluster.
    clustered: bool,
    /// Of shared memory.
    bytes: u32,
}

/// The most splits that a query sees: at the position, or at any up to it.
fn most_splits(window: Option<usize>, position: usize, any_before: bool) -> usize {
    let first = window.map_or(0, |window| (position + 1).saturating_sub(window) / SPLIT);
    if !any_before {
        return position / SPLIT - first + 1;
    }
    let seen = window.map_or(usize::MAX, |window| window.div_ceil(SPLIT) + 1);
    (position / SPLIT + 1).min(seen)
}

/// Query heads of a block: a power of two up to 8, so many that there is about a block for each multiprocessor. Clusters have blocks without work, whose
/// places others would wait for. It changes no bit.
fn heads_of_a_block(each: usize, kv_heads: usize, splits: usize, multiprocessors: usize) -> usize {
    let blocks =
        |together: usize, splits: usize| kv_heads.saturating_mul(splits).saturating_mul(each.div_ceil(together));
    let mut together = each.min(8).next_power_of_two();
    while together > 1 && blocks(together, splits) < multiprocessors * 3 / 4 {
        together /= 2;
    }
    let crowded = splits <= MOST_SPLITS && blocks(together, splits.next_power_of_two()) > multiprocessors;
    if crowded && each > 1 { together.max(SPLIT_HEADS) } else { together }
}

/// The keys and values of a split; tiles of 16 keys start in other banks.
fn staged(dim: usize) -> Carve {
    Carve::default().take::<u8>(SPLIT / 16 * (32 * dim + 32)).take::<u8>(SPLIT * dim * 2)
}

/// As `attend` of `cu/decode_attention.cu` carves it.
fn shared(dim: usize, heads: usize, clustered: bool) -> Carve {
    staged(dim)
        .take::<f32>(RUNS * heads * SPLIT)
        .take::<f32>(heads * GROUP_WORDS)
        .take::<f32>(heads * GROUP_WORDS)
        .take::<f32>(GROUP_WORDS)
        .take::<f32>(if clustered { MOST_SPLITS * heads * FOUND_WORDS } else { 0 })
}

/// As `attend_split` of `cu/decode_attention_split.cu` carves it.
fn split_shared(heads: usize, clustered: bool) -> Carve {
    const WARPS: usize = THREADS as usize / 32;
    staged(WIDE_DIM)
        .take::<f32>(heads * RUNS * SPLIT)
        .take::<f32>(heads * RUNS * WIDE_DIM)
        .take::<f32>(heads * WIDE_DIM)
        .take::<f32>(heads * WARPS * RUN)
        .take::<f32>((heads + 1) * GROUP_WORDS)
        .take::<f32>(if clustered { MOST_SPLITS * heads * FOUND_WORDS } else { 0 })
}

/// As `attend_deep` of `cu/decode_attention_deep.cu` carves it.
fn deep_shared(heads: usize) -> Carve {
    staged(WIDE_DIM)
        .take::<f32>(heads * RUNS * SPLIT)
        .take::<f32>(heads * RUNS * WIDE_DIM)
        .take::<f32>(heads * WIDE_DIM)
        .take::<f32>(heads * GROUP_WORDS)
}

/// Addresses of m and l, and of o, of every split; refuses too little scratch memory.
fn places(scratch: DeviceSlice<u8>, heads: usize, head_dim: usize, splits: usize) -> Result<(u64, u64), KernelError> {
    if splits == 1 {
        return Ok((0, 0));
    }
    let partial = product(KERNEL, "partial", &[heads, splits, head_dim, size_of::<f32>()])?;
    let bytes = product(KERNEL, "scratch", &[heads, splits, split_bytes(head_dim).unwrap_or(usize::MAX)])?;
    if scratch.len() < bytes || !scratch.address().is_multiple_of(16) {
        expect_len(KERNEL, "bytes of scratch, at a multiple of 16", scratch.len(), bytes)?;
    }
    Ok((scratch.address() + partial as u64, scratch.address()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_for_each_multiprocessor() {
        let together = |splits| heads_of_a_block(8, 4, splits, 132);
        assert_eq!([1, 2, 4, 5, 8, 16, 32, 128].map(together), [1, 1, 1, 2, 2, 4, 8, 8]);
        assert_eq!(heads_of_a_block(3, 1, 1000, 132), 4);
        assert_eq!(heads_of_a_block(1, 64, 8, 132), 1);
        assert_eq!(most_splits(None, 127, true), 1);
        assert_eq!([most_splits(Some(128), 254, false), most_splits(Some(128), 255, false)], [2, 1]);
        assert_eq!(most_splits(Some(128), 1000, true), 2);
    }
}
