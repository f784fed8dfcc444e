//! Launcher of `cu/prefill_attention.cu`: causal attention of many queries on tensor cores.

use super::launch::{Grid, Stream, arguments};
use super::module::Function;
use super::pack::aligned;
use super::{Cuda, CudaError, DeviceSlice};
use crate::error::{KernelError, expect_len, product, rows_of};
use crate::{KvFormat, KvLayout};

/// `struct AttentionArgs` of `cu/prefill_attention.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Arguments {
    q: u64,
    cache: u64,
    sinks: u64,
    out: u64,
    scale: f32,
    tokens: u32,
    first_position: u32,
    heads: u32,
    kv_heads: u32,
    window: u32,
}

/// What the kernel is for one width of head: names by cache format, rows of a thread block, its dynamic shared memory.
struct Shape {
    names: [&'static str; 2],
    rows: usize,
    shared_bytes: u32,
}

/// `struct AttentionShape` of the kernel.
fn shape(head_dim: usize) -> Option<Shape> {
    let (names, rows, positions) = match head_dim {
        32 => (["prefill_attention_bf16_32", "prefill_attention_f32_32"], 128, 64),
        64 => (["prefill_attention_bf16_64", "prefill_attention_f32_64"], 128, 64),
        128 => (["prefill_attention_bf16_128", "prefill_attention_f32_128"], 128, 64),
        256 => (["prefill_attention_bf16_256", "prefill_attention_f32_256"], 64, 32),
        _ => return None,
    };
    // Queries, and two stages of keys and values, all BF16.
    let shared_bytes = ((rows + 4 * positions) * head_dim * 2) as u32;
    Some(Shape { names, rows, shared_bytes })
}

/// Whether [`Cuda::prefill_attention`] has a kernel for this width of head; the exact kernel takes the others.
pub fn prefill_attention_supports(head_dim: usize) -> bool {
    shape(head_dim).is_some()
}

impl Cuda {
    /// [`crate::twin::attention`] on tensor cores, with queries and the softmax's weights (and an F32 cache) rounded to BF16. A row
    /// has the same bits whatever queries it is computed with. Values that queries may not see must be finite where their
    /// positions have been appended; positions past `first_position + tokens` may hold anything.
    ///
    /// `q` and `out` are `[tokens, heads * head_dim]`, token t at position `first_position + t`; `sinks` are `[heads]`.
    ///
    /// # Errors
    /// `Kernel`, also for a `head_dim` that [`prefill_attention_supports`] denies; `Call`.
    #[allow(clippy::too_many_arguments)]
    pub fn prefill_attention(
        &self,
        stream: Stream,
        q: DeviceSlice<f32>,
        heads: usize,
        first_position: usize,
        layout: KvLayout,
        cache: DeviceSlice<u8>,
        (scale, window): (f32, Option<usize>),
        sinks: Option<DeviceSlice<f32>>,
        out: DeviceSlice<f32>,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "prefill_attention";
        let tokens = check(q, heads, first_position, &layout, cache, window, sinks, out)?;
        let Some(shape) = shape(layout.head_dim) else {
            let expected = "32, 64, 128 or 256";
            return Err(geometry("head_dim", expected, layout.head_dim).into());
        };
        let rows = product(KERNEL, "rows", &[tokens, heads / layout.kv_heads])?;
        let tiles = u32::try_from(rows.div_ceil(shape.rows)).ok().filter(|&tiles| tiles <= 65_535);
        let tiles = tiles.ok_or(KernelError::TooLarge { kernel: KERNEL, what: "a grid of more than 65,535 tiles" })?;
        let arguments = Arguments {
            q: q.address(),
            cache: cache.address(),
            sinks: sinks.map_or(0, DeviceSlice::address),
            out: out.address(),
            scale,
            tokens: tokens as u32,
            first_position: first_position as u32,
            heads: heads as u32,
            kv_heads: layout.kv_heads as u32,
            window: window.and_then(|window| u32::try_from(window).ok()).unwrap_or(u32::MAX),
        };
        let name = shape.names[usize::from(layout.format == KvFormat::F32)];
        let grid = Grid::new((layout.kv_heads as u32, tiles, 1), 128).shared(shape.shared_bytes);
        // SAFETY: the argument is the kernel's; every length is checked.
        unsafe {
            let mut arguments = arguments![arguments];
            self.launch(stream, Function("prefill_attention", name), grid, &mut arguments)
        }
    }
}

/// What [`crate::twin::attention`] demands, and that positions fit the kernel's 32 bits. Returns tokens.
#[allow(clippy::too_many_arguments)]
fn check(
    q: DeviceSlice<f32>,
    heads: usize,
    first_position: usize,
    layout: &KvLayout,
    cache: DeviceSlice<u8>,
    window: Option<usize>,
    sinks: Option<DeviceSlice<f32>>,
    out: DeviceSlice<f32>,
) -> Result<usize, KernelError> {
    const KERNEL: &str = "prefill_attention";
    let bytes = layout.bytes().ok_or(KernelError::TooLarge { kernel: KERNEL, what: "the KV cache" })?;
    expect_len(KERNEL, "cache bytes", cache.len(), bytes)?;
    for (what, address) in [("the address of q", q.address()), ("the address of the cache", cache.address())] {
        aligned(KERNEL, what, address)?;
    }
    if window == Some(0) {
        return Err(geometry("window", "at least 1", 0));
    }
    if heads == 0 || !heads.is_multiple_of(layout.kv_heads) {
        return Err(geometry("heads", "a positive multiple of kv_heads", heads));
    }
    if let Some(sinks) = sinks {
        expect_len(KERNEL, "sinks [heads]", sinks.len(), heads)?;
    }
    let width = product(KERNEL, "a row of q", &[heads, layout.head_dim])?;
    let tokens = rows_of(KERNEL, "q [tokens, heads * head_dim]", q.len(), width)?;
    expect_len(KERNEL, "out [tokens, heads * head_dim]", out.len(), q.len())?;
    match first_position.checked_add(tokens) {
        Some(end) if end <= layout.capacity_tokens.min(u32::MAX as usize / 2) => Ok(tokens),
        end => Err(KernelError::Index {
            kernel: KERNEL,
            what: "the last position",
            index: end.map_or(usize::MAX, |end| end.saturating_sub(1)),
            limit: layout.capacity_tokens,
        }),
    }
}

fn geometry(what: &'static str, expected: &'static str, found: usize) -> KernelError {
    KernelError::Geometry { kernel: "prefill_attention", what, expected, found }
}
