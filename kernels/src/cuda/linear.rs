//! Launcher of `cu/linear.cu`: products with one matrix in the contract's order, and the grids of such products.

use super::launch::{Grid, Stream, arguments, size};
use super::module::Function;
use super::pack::aligned;
use super::{Cuda, CudaError, DeviceMatrix, DeviceSlice};
use crate::check;
use crate::contract::{GROUP, RUN, RUNS};
use crate::error::{KernelError, product};
use crate::layout::{MatrixFormat, TILE_ROWS};

/// Groups whose activations a block holds at a time; `CHUNK` of `cu/dot.cuh`.
const CHUNK: usize = 64;

/// Floats of a run of activations in shared memory; `RUN_WORDS` of `cu/dot.cuh`.
const RUN_WORDS: usize = RUN + 4;

/// Warps of a block at most.
const WARPS: usize = 8;

/// Blocks that take `units` of a matrix's `tiles` for each of `inputs` rows of activations, with threads and shared memory for
/// its columns, as `block_dots` of `cu/dot.cuh` lays it out.
pub(super) fn dot_grid(
    kernel: &'static str,
    format: MatrixFormat,
    units: usize,
    (tiles, cols): (usize, usize),
    inputs: usize,
) -> Result<Grid, KernelError> {
    let groups = cols.div_ceil(GROUP);
    let held = groups.min(CHUNK);
    let items = match format {
        MatrixFormat::Int4 | MatrixFormat::Int8 => held,
        MatrixFormat::Bf16 => held.div_ceil(4) * units,
    };
    let shared = held * (4 * RUNS * RUN_WORDS + units * TILE_ROWS * (4 + 2));
    let blocks = product(kernel, "the grid", &[tiles.div_ceil(units), inputs])?;
    let blocks = i32::try_from(blocks).map_err(|_| KernelError::TooLarge { kernel, what: "the grid" })?;
    Ok(Grid::new((blocks as u32, 1, 1), 32 * items.min(WARPS) as u32).shared(shared as u32))
}

impl Cuda {
    /// [`crate::twin::linear`] on the device. Weights must lie at a multiple of 16.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn linear(
        &self,
        stream: Stream,
        x: DeviceSlice<f32>,
        w: DeviceMatrix,
        bias: Option<DeviceSlice<f32>>,
        out: DeviceSlice<f32>,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "linear";
        let tokens = check::linear(&x, &w, bias.as_ref(), &out)?;
        aligned(KERNEL, "the address of w", w.address())?;
        let tiles = w.rows().div_ceil(TILE_ROWS);
        let units = self.units(tiles, tokens);
        let grid = dot_grid(KERNEL, w.format(), units, (tiles, w.cols()), tokens)?;
        let name = match (w.format(), units) {
            (MatrixFormat::Int4, 1) => "linear_int4_1",
            (MatrixFormat::Int4, _) => "linear_int4_2",
            (MatrixFormat::Int8, 1) => "linear_int8_1",
            (MatrixFormat::Int8, _) => "linear_int8_2",
            (MatrixFormat::Bf16, 1) => "linear_bf16_1",
            (MatrixFormat::Bf16, _) => "linear_bf16_2",
        };
        let (rows, cols, tokens) = (size(KERNEL, w.rows())?, size(KERNEL, w.cols())?, size(KERNEL, tokens)?);
        let (matrix, x, bias, out) = (w.address(), x.address(), bias.map_or(0, DeviceSlice::address), out.address());
        // SAFETY: argument types are those of the kernel; shapes were checked.
        unsafe {
            let mut arguments = arguments![matrix, rows, cols, x, tokens, bias, out];
            self.launch(stream, Function("linear", name), grid, &mut arguments)
        }
    }

    /// Tiles that a block takes: two share its activations, where that leaves two blocks for each multiprocessor. An
    /// output's bits are the same with either.
    pub(super) fn units(&self, tiles: usize, inputs: usize) -> usize {
        let pairs = tiles.div_ceil(2).saturating_mul(inputs);
        if pairs >= 2 * self.properties().multiprocessors as usize { 2 } else { 1 }
    }
}
