//! Launchers of `cu/embed.cu`, `cu/norm.cu`, `cu/rope.cu`, `cu/kv.cu` and `cu/argmax.cu`: one token's rows.

use super::launch::{Grid, Stream, arguments, position, size};
use super::module::Function;
use super::{Cuda, CudaError, DeviceMatrix, DeviceSlice};
use crate::contract::RUN;
use crate::contract::SPLIT;
use crate::error::expect_len;
use crate::layout::MatrixFormat;
use crate::{KernelError, KvFormat, KvLayout, check};

/// Bytes of shared memory for a row of `width` f32 and the sums of its runs, as `cu/sum.cuh` pads them.
fn row_bytes(kernel: &'static str, width: usize) -> Result<u32, KernelError> {
    let words = width.saturating_add(width / RUN + 1).saturating_add(width.div_ceil(RUN));
    size(kernel, words.saturating_mul(4))
}

/// `THREADS` and `MAX_BLOCKS` of `cu/argmax.cu`.
const ARGMAX_THREADS: u32 = 256;
const ARGMAX_BLOCKS: u32 = 128;

/// Threads for a row: whole warps, at most 256.
fn row_threads(width: usize) -> u32 {
    (width.min(256).next_multiple_of(32) as u32).max(32)
}

impl Cuda {
    /// [`crate::twin::embed`] on the device; the table is BF16. An id that the table does not have is a fault.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn embed(
        &self,
        stream: Stream,
        ids: DeviceSlice<u32>,
        table: DeviceMatrix,
        out: DeviceSlice<f32>,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "embed";
        check::embed_shapes(&ids, &table, &out)?;
        if table.format() != MatrixFormat::Bf16 {
            let (what, expected) = ("bits an element of the table", "16: the embedding is BF16");
            let found = if table.format() == MatrixFormat::Int8 { 8 } else { 4 };
            return Err(KernelError::Geometry { kernel: KERNEL, what, expected, found }.into());
        }
        let (from, weights, to) = (ids.address(), table.address(), out.address());
        let (rows, cols, status) = (size(KERNEL, table.rows())?, size(KERNEL, table.cols())?, self.status_address());
        let grid = Grid::new((size(KERNEL, ids.len())?, 1, 1), row_threads(table.cols()));
        // SAFETY: argument types are those of the kernel; shapes were checked.
        unsafe {
            let mut arguments = arguments![from, weights, rows, cols, to, status];
            self.launch(stream, Function(KERNEL, KERNEL), grid, &mut arguments)
        }
    }

    /// [`crate::twin::rms_norm`] on the device.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn rms_norm(
        &self,
        stream: Stream,
        x: DeviceSlice<f32>,
        weight: DeviceSlice<f32>,
        eps: f32,
        out: DeviceSlice<f32>,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "rms_norm";
        let tokens = size(KERNEL, check::rms_norm(&x, &weight, &out)?)?;
        let (from, factors, to) = (x.address(), weight.address(), out.address());
        let width = size(KERNEL, weight.len())?;
        let grid = Grid::new((tokens, 1, 1), row_threads(weight.len())).shared(row_bytes(KERNEL, weight.len())?);
        // SAFETY: as in `embed`.
        unsafe {
            let mut arguments = arguments![from, factors, width, eps, to];
            self.launch(stream, Function("norm", KERNEL), grid, &mut arguments)
        }
    }

    /// [`crate::twin::head_norm_rope`] on the device. Where the position is in device memory, read when the kernel runs,
    /// `first_position` is the largest that it may be.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    #[allow(clippy::too_many_arguments)]
    pub fn head_norm_rope(
        &self,
        stream: Stream,
        x: DeviceSlice<f32>,
        heads: usize,
        head_dim: usize,
        rotary_dim: usize,
        norm: Option<DeviceSlice<f32>>,
        eps: f32,
        cos: DeviceSlice<f32>,
        sin: DeviceSlice<f32>,
        (first_position, position_at): (usize, Option<DeviceSlice<u32>>),
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "head_norm_rope";
        let weight = norm.as_ref();
        let tokens = check::head_norm_rope(&x, heads, head_dim, rotary_dim, weight, &cos, &sin, first_position)?;
        let part = norm.map_or(head_dim, DeviceSlice::len);
        let (on, weight) = (x.address(), norm.map_or(0, DeviceSlice::address));
        let (row_width, part_width) = (size(KERNEL, heads * head_dim)?, size(KERNEL, part)?);
        let (head_dim, rotary_dim) = (size(KERNEL, head_dim)?, size(KERNEL, rotary_dim)?);
        let (cos, sin) = (cos.address(), sin.address());
        let (first, stored) = position(KERNEL, first_position, tokens, position_at)?;
        let grid = Grid::new((size(KERNEL, tokens)?, row_width / part_width, 1), row_threads(part))
            .shared(row_bytes(KERNEL, part)?);
        // SAFETY: as in `embed`; a null weight is a head without a norm.
        unsafe {
            let mut arguments =
                arguments![on, row_width, part_width, head_dim, rotary_dim, weight, eps, cos, sin, first, stored];
            self.launch(stream, Function("rope", KERNEL), grid, &mut arguments)
        }
    }

    /// [`crate::twin::kv_append`] on the device; the position as in [`Cuda::head_norm_rope`].
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn kv_append(
        &self,
        stream: Stream,
        k: DeviceSlice<f32>,
        v: DeviceSlice<f32>,
        (first_position, position_at): (usize, Option<DeviceSlice<u32>>),
        layout: KvLayout,
        cache: DeviceSlice<u8>,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "kv_append";
        let tokens = check::kv_append(&k, &v, first_position, &layout, &cache)?;
        let (k, v, to) = (k.address(), v.address(), cache.address());
        let (kv_heads, head_dim) = (size(KERNEL, layout.kv_heads)?, size(KERNEL, layout.head_dim)?);
        let value_width = size(KERNEL, layout.value_width())?;
        let (first, stored) = position(KERNEL, first_position, tokens, position_at)?;
        let name = match layout.format {
            KvFormat::F32 => "kv_append_f32",
            KvFormat::Bf16 => "kv_append_bf16",
            KvFormat::Int8 => "kv_append_int8",
            KvFormat::Int6 => "kv_append_int6",
            KvFormat::Int4 => "kv_append_int4",
        };
        // A warp of codes takes a group of 32 of a key or a value.
        let threads = match layout.format.codes() {
            None => row_threads(layout.head_dim),
            Some(_) => row_threads(2 * layout.head_dim.next_multiple_of(32)),
        };
        let grid = Grid::new((size(KERNEL, tokens)?, kv_heads, 1), threads);
        // SAFETY: as in `embed`.
        unsafe {
            let mut arguments = arguments![k, v, to, kv_heads, head_dim, value_width, first, stored];
            self.launch(stream, Function("kv", name), grid, &mut arguments)
        }
    }

    /// The first `positions` positions of a cache of codes as the numbers that they stand for, exactly: an F32 cache of the same
    /// shape, which is the layout that it returns. Nothing is done for a cache of numbers.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn kv_unpack(
        &self,
        stream: Stream,
        layout: KvLayout,
        cache: DeviceSlice<u8>,
        positions: usize,
        out: DeviceSlice<u8>,
    ) -> Result<KvLayout, CudaError> {
        const KERNEL: &str = "kv_unpack";
        let name = match layout.format {
            KvFormat::F32 | KvFormat::Bf16 => return Ok(layout),
            KvFormat::Int8 => "kv_unpack_int8",
            KvFormat::Int6 => "kv_unpack_int6",
            KvFormat::Int4 => "kv_unpack_int4",
        };
        let numbers = KvLayout { format: KvFormat::F32, ..layout };
        layout.check(KERNEL, cache.len())?;
        numbers.check(KERNEL, out.len())?;
        let splits = size(KERNEL, positions.min(layout.capacity_tokens).div_ceil(SPLIT))?;
        let (from, to) = (cache.address(), out.address());
        let (kv_heads, head_dim) = (size(KERNEL, layout.kv_heads)?, size(KERNEL, layout.head_dim)?);
        let value_width = size(KERNEL, layout.value_width())?;
        if splits == 0 {
            return Ok(numbers);
        }
        // SAFETY: as in `embed`.
        unsafe {
            let mut arguments = arguments![from, to, kv_heads, head_dim, value_width];
            self.launch(stream, Function("kv", name), Grid::new((splits, kv_heads, 1), 256), &mut arguments)?;
        }
        Ok(numbers)
    }

    /// [`crate::twin::argmax`] on the device, into the one element of `out`. A NaN is a fault.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn argmax(&self, stream: Stream, logits: DeviceSlice<f32>, out: DeviceSlice<u32>) -> Result<(), CudaError> {
        self.argmax_next(stream, logits, out, None)
    }

    /// [`Cuda::argmax`], and where there is a `next`, a token and its position, the choice takes the token's place and the position
    /// grows by one. It is none of `out`.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn argmax_next(
        &self,
        stream: Stream,
        logits: DeviceSlice<f32>,
        out: DeviceSlice<u32>,
        next: Option<DeviceSlice<u32>>,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "argmax";
        check::argmax(&logits)?;
        expect_len(KERNEL, "out", out.len(), 1)?;
        if let Some(next) = next {
            expect_len(KERNEL, "next", next.len(), 2)?;
        }
        let next = next.map_or(0, DeviceSlice::address);
        let (from, n, to) = (logits.address(), size(KERNEL, logits.len())?, out.address());
        let status = self.status_address();
        let grid = Grid::new((n.div_ceil(ARGMAX_THREADS).min(ARGMAX_BLOCKS), 1, 1), ARGMAX_THREADS);
        // SAFETY: as in `embed`; the kernel reads nothing early.
        unsafe {
            let mut arguments = arguments![from, n, to, next, status];
            self.launch_early(stream, Function(KERNEL, KERNEL), grid, &mut arguments)
        }
    }

    /// [`crate::twin::permute`] on the device. An expert that does not exist is a fault.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn permute(
        &self,
        stream: Stream,
        ids: DeviceSlice<u32>,
        order: DeviceSlice<u32>,
        offsets: DeviceSlice<u32>,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "permute";
        let experts = offsets.len().saturating_sub(1);
        check::permute_shapes(&ids, experts, &order, &offsets)?;
        let (from, order, offsets) = (ids.address(), order.address(), offsets.address());
        let (slots, experts, status) = (size(KERNEL, ids.len())?, size(KERNEL, experts)?, self.status_address());
        // SAFETY: as in `embed`; a block an expert, 256 threads.
        unsafe {
            let mut arguments = arguments![from, slots, order, offsets, status];
            self.launch(stream, Function(KERNEL, KERNEL), Grid::new((experts, 1, 1), 256), &mut arguments)
        }
    }
}
