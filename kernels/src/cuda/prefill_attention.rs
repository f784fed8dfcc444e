//! Launchers of `cu/prefill_attention.cu` and `cu/prefill_attention_wgmma.cu`: causal attention of many queries on tensor cores.

use cudarc::driver::sys;

use super::error::call;
use super::gemm::Instruction;
use super::launch::{Grid, Stream, arguments, size};
use super::module::Function;
use super::pack::{aligned, tile_grid};
use super::{Cuda, CudaError, DeviceSlice};
use crate::contract::SPLIT;
use crate::error::{KernelError, expect_len, product, rows_of};
use crate::{KvFormat, KvLayout};

const KERNEL: &str = "prefill_attention";

/// `struct AttentionArgs` of `cu/attention.cuh`.
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

/// Columns of a box of the tensor maps of the `wgmma` kernels.
const WGMMA_PANEL: usize = 64;

/// Names of the `wgmma` kernels whose blocks have one warpgroup and two that multiply.
fn wgmma_names(layout: &KvLayout) -> Option<[&'static str; 2]> {
    match (layout.format, layout.head_dim) {
        (KvFormat::Bf16, 64) => Some(["prefill_attention_short_64", "prefill_attention_wgmma_64"]),
        (KvFormat::Bf16, 128) => Some(["prefill_attention_short_128", "prefill_attention_wgmma_128"]),
        _ => None,
    }
}

/// The `wgmma` kernel for so many rows of each key-value head: its name and its grid. A warpgroup takes 64 rows, one more brings keys and values;
/// shared memory holds queries, two stages of keys and values, and room to align them.
fn wgmma_launch(layout: &KvLayout, rows: usize, multiprocessors: usize) -> Option<(&'static str, Grid)> {
    const WARPGROUP: (usize, usize) = (64, 128); // rows, threads
    let works = |consumers: usize| rows.div_ceil(consumers * WARPGROUP.0).saturating_mul(layout.kv_heads);
    let consumers = if works(1) <= multiprocessors { 1 } else { 2 };
    let name = wgmma_names(layout)?[consumers - 1];
    let blocks = works(consumers).min(multiprocessors);
    let shared_bytes = 1024 + (consumers * WARPGROUP.0 + 4 * SPLIT) * layout.head_dim * 2;
    let grid = Grid::new((blocks as u32, 1, 1), ((consumers + 1) * WARPGROUP.1) as u32).shared(shared_bytes as u32);
    Some((name, grid))
}

/// Whether [`Cuda::prefill_attention`] has a kernel for this width of head; the exact kernel takes the others.
pub fn prefill_attention_supports(head_dim: usize) -> bool {
    shape(head_dim).is_some()
}

impl Cuda {
    /// The instruction for attention over such a cache: it depends on the device and the layout's form alone.
    pub fn prefill_attention_instruction(&self, layout: &KvLayout) -> Instruction {
        if wgmma_names(layout).is_some() { self.instruction() } else { Instruction::Mma }
    }

    /// [`crate::twin::attention`] on tensor cores, with queries and the softmax's weights (and an F32 cache) rounded to BF16. A row
    /// has the same bits whatever queries it is computed with. Values that queries may not see must be finite where their
    /// positions have been appended; positions past `first_position + tokens` may hold anything.
    ///
    /// `q` and `out` are `[tokens, heads * head_dim]`, token t at position `first_position + t`; `sinks` are `[heads]`.
    /// `instruction` is [`Cuda::prefill_attention_instruction`]'s, or `Mma`.
    ///
    /// # Errors
    /// `Kernel`, also for a `head_dim` that [`prefill_attention_supports`] denies and for an instruction that the device or the
    /// layout does not allow; `Call`.
    #[allow(clippy::too_many_arguments)]
    pub fn prefill_attention_by(
        &self,
        stream: Stream,
        instruction: Instruction,
        q: DeviceSlice<f32>,
        heads: usize,
        first_position: usize,
        layout: KvLayout,
        cache: DeviceSlice<u8>,
        (scale, window): (f32, Option<usize>),
        sinks: Option<DeviceSlice<f32>>,
        out: DeviceSlice<f32>,
    ) -> Result<(), CudaError> {
        layout.refuse_codes(KERNEL)?;
        let tokens = check(q, heads, first_position, &layout, cache, window, sinks, out)?;
        let rows = product(KERNEL, "rows", &[tokens, heads / layout.kv_heads])?;
        let arguments = Arguments {
            q: q.address(),
            cache: cache.address(),
            sinks: sinks.map_or(0, DeviceSlice::address),
            out: out.address(),
            scale,
            tokens: size(KERNEL, tokens)?,
            first_position: size(KERNEL, first_position)?,
            heads: size(KERNEL, heads)?,
            kv_heads: size(KERNEL, layout.kv_heads)?,
            window: window.and_then(|window| u32::try_from(window).ok()).unwrap_or(u32::MAX),
        };
        if instruction == Instruction::Wgmma {
            return self.attend_by_wgmma(stream, &layout, cache, rows, arguments);
        }
        let Some(shape) = shape(layout.head_dim) else {
            return Err(geometry("head_dim", "32, 64, 128 or 256", layout.head_dim).into());
        };
        let name = shape.names[usize::from(layout.format == KvFormat::F32)];
        let grid = tile_grid(KERNEL, layout.kv_heads, rows.div_ceil(shape.rows), 128)?.shared(shape.shared_bytes);
        // SAFETY: the argument is the kernel's; every length is checked.
        unsafe {
            let mut arguments = arguments![arguments];
            self.launch(stream, Function("prefill_attention", name), grid, &mut arguments)
        }
    }

    /// [`Cuda::prefill_attention_by`] with the device's instruction.
    ///
    /// # Errors
    /// As there.
    #[allow(clippy::too_many_arguments)]
    pub fn prefill_attention(
        &self,
        stream: Stream,
        q: DeviceSlice<f32>,
        heads: usize,
        first_position: usize,
        layout: KvLayout,
        cache: DeviceSlice<u8>,
        form: (f32, Option<usize>),
        sinks: Option<DeviceSlice<f32>>,
        out: DeviceSlice<f32>,
    ) -> Result<(), CudaError> {
        let instruction = self.prefill_attention_instruction(&layout);
        self.prefill_attention_by(stream, instruction, q, heads, first_position, layout, cache, form, sinks, out)
    }

    /// `arguments` are checked; `rows` are theirs.
    fn attend_by_wgmma(
        &self,
        stream: Stream,
        layout: &KvLayout,
        cache: DeviceSlice<u8>,
        rows: usize,
        arguments: Arguments,
    ) -> Result<(), CudaError> {
        self.require(KERNEL, Instruction::Wgmma)?;
        let Some((name, grid)) = wgmma_launch(layout, rows, self.properties.multiprocessors as usize) else {
            return Err(geometry("head_dim", "64 or 128, and a BF16 cache, for wgmma", layout.head_dim).into());
        };
        size(KERNEL, rows)?;
        // A head's part of a split: keys, then values.
        let part = SPLIT * layout.head_dim * 2;
        let blocks = cache.len() / (2 * part);
        let (width, panel) = (layout.head_dim, WGMMA_PANEL);
        let keys = tensor_map(cache.address(), [panel, 2 * width, blocks], [2 * panel, 2 * part], 2 * width)?;
        let values = tensor_map(cache.address() + part as u64, [width, SPLIT, blocks], [2 * width, 2 * part], SPLIT)?;
        // SAFETY: arguments are the kernel's; every length is checked; the maps name the cache alone.
        unsafe {
            let mut arguments = arguments![keys, values, arguments];
            self.launch(stream, Function("prefill_attention_wgmma", name), grid, &mut arguments)
        }
    }
}

/// A map of BF16 `[sizes[2], sizes[1], sizes[0]]`, rows and matrices `strides` bytes apart, taken in boxes of 64 columns and `rows` rows
/// of one matrix, which are swizzled by 128 bytes on their way into shared memory.
fn tensor_map(
    address: u64,
    sizes: [usize; 3],
    strides: [usize; 2],
    rows: usize,
) -> Result<sys::CUtensorMap, CudaError> {
    let mut map = sys::CUtensorMap { opaque: [0; 16] };
    let (sizes, strides) = (sizes.map(|size| size as u64), strides.map(|stride| stride as u64));
    let boxed = [WGMMA_PANEL as u32, rows as u32, 1];
    // SAFETY: the arrays have the lengths that the rank demands; the map is only written.
    unsafe {
        sys::cuTensorMapEncodeTiled(
            &raw mut map,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            3,
            address as *mut std::ffi::c_void,
            sizes.as_ptr(),
            strides.as_ptr(),
            boxed.as_ptr(),
            [1u32; 3].as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    }
    .result()
    .map_err(call("cuTensorMapEncodeTiled", || format!("sizes {sizes:?}, strides {strides:?}, box {boxed:?}")))?;
    Ok(map)
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
    KernelError::Geometry { kernel: KERNEL, what, expected, found }
}
