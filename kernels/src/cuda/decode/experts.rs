//! Launchers of `cu/decode_experts.cu`.

use super::super::grouped_gemm::bias_offsets;
use super::super::launch::{ActivationArgument, Grid, Stream, arguments, size};
use super::super::module::Function;
use super::super::{Cuda, CudaError, DeviceSlice};
use super::{Carve, GROUP_WORDS, STAGED_GROUP, depth, in_sixteens, of_columns, threads};
use crate::Activation;
use crate::error::{KernelError, expect_len, product};
use crate::layout::{ExpertLayout, MatrixFormat, TILE_ROWS, col_groups, row_tiles};

/// Experts of a token at most.
const MAX_SLOTS: usize = 32;

/// `struct Experts` of `cu/decode_experts.cu`.
#[repr(C)]
struct ExpertsArgument {
    table: u64,
    ids: u64,
    experts: u32,
    slots: u32,
    matrices: [u64; 2],
    biases: [u64; 2],
    rows: u32,
    cols: u32,
    stages: u32,
    slots_on: u32,
    tiles_on: u32,
    x: u64,
    weights: u64,
    factor: f32,
    out: u64,
    form: ActivationArgument,
}

/// The experts of one token, as [`Cuda::grouped_gate_up`] takes them.
#[derive(Debug, Clone, Copy)]
pub struct RoutedExperts {
    /// `[slots]`
    pub ids: DeviceSlice<u32>,
    /// `[num_experts]`
    pub table: DeviceSlice<u64>,
    /// Of each expert.
    pub layout: ExpertLayout,
}

impl Cuda {
    /// [`crate::twin::grouped_gate_up`] for one token `x` and INT4 experts, at most 32; faults as for [`Cuda::grouped_gate_up`].
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn token_gate_up(
        &self,
        stream: Stream,
        x: DeviceSlice<f32>,
        experts: RoutedExperts,
        activation: Activation,
        out: DeviceSlice<f32>,
    ) -> Result<bool, CudaError> {
        const KERNEL: &str = "token_gate_up";
        let RoutedExperts { ids, layout, .. } = experts;
        let (rows, cols, slots) = (layout.moe_intermediate_size, layout.hidden_size, ids.len());
        expect_len(KERNEL, "x [hidden]", x.len(), cols)?;
        expect_len(KERNEL, "out [slots, rows]", out.len(), product(KERNEL, "out", &[slots, rows])?)?;
        if layout.format != MatrixFormat::Int4 || slots == 0 || slots > MAX_SLOTS || !in_sixteens(x) {
            return Ok(false);
        }
        let (groups, properties) = (col_groups(cols), self.properties());
        let pairs = product(KERNEL, "the grid", &[row_tiles(rows), slots])?;
        let blocks = pairs.min(properties.multiprocessors as usize);
        let base = Carve::default().take::<f32>(groups * GROUP_WORDS).take::<u64>(MAX_SLOTS);
        let Some((stages, bytes)) = depth(base, groups, pairs.div_ceil(blocks.max(1)), properties.shared_bytes) else {
            return Ok(false);
        };
        let [gate_bias, up_bias, _] = bias_offsets(&layout);
        let mut argument = argument(KERNEL, experts, (rows, cols), (x, out))?;
        argument.matrices = [layout.gate_offset as u64, layout.up_offset as u64];
        argument.biases = [gate_bias, up_bias];
        argument.form = activation.into();
        argument.stages = stages;
        argument.slots_on = size(KERNEL, blocks % slots)?;
        argument.tiles_on = size(KERNEL, blocks / slots)?;
        let grid = Grid::new((size(KERNEL, blocks)?, 1, 1), threads(groups)).shared(bytes);
        self.launch_experts(stream, of_columns(cols, KERNEL, "token_gate_up_part"), grid, argument)
    }

    /// `residual = fma(y, factor, residual)` with `y` the [`crate::twin::combine`] of the [`crate::twin::grouped_down`] of `act`
    /// `[slots, moe_intermediate_size]`, for one token and INT4 experts, at most 32. Faults as for [`Cuda::grouped_gate_up`]. Whatever
    /// wrote ids, table and weights came before the kernel that wrote `act`.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn token_down(
        &self,
        stream: Stream,
        act: DeviceSlice<f32>,
        experts: RoutedExperts,
        weights: DeviceSlice<f32>,
        factor: f32,
        residual: DeviceSlice<f32>,
    ) -> Result<bool, CudaError> {
        const KERNEL: &str = "token_down";
        let RoutedExperts { ids, layout, .. } = experts;
        let (rows, cols, slots) = (layout.hidden_size, layout.moe_intermediate_size, ids.len());
        expect_len(KERNEL, "act [slots, cols]", act.len(), product(KERNEL, "act", &[slots, cols])?)?;
        expect_len(KERNEL, "weights [slots]", weights.len(), slots)?;
        expect_len(KERNEL, "residual [hidden]", residual.len(), rows)?;
        let sixteens = act.address().is_multiple_of(16) && cols.is_multiple_of(4);
        if layout.format != MatrixFormat::Int4 || slots == 0 || slots > MAX_SLOTS || !sixteens {
            return Ok(false);
        }
        let items = slots * col_groups(cols);
        let shared = Carve::default()
            .take::<f32>(items * GROUP_WORDS)
            .take::<[f32; 2]>(items * TILE_ROWS)
            .take::<f32>(slots * TILE_ROWS)
            .take::<u8>(items * STAGED_GROUP);
        let Some(bytes) = shared.within(self.properties().shared_bytes) else { return Ok(false) };
        let [_, _, bias] = bias_offsets(&layout);
        let mut argument = argument(KERNEL, experts, (rows, cols), (act, residual))?;
        argument.matrices = [layout.down_offset as u64; 2];
        argument.biases = [bias; 2];
        argument.weights = weights.address();
        argument.factor = factor;
        let grid = Grid::new((size(KERNEL, row_tiles(rows))?, 1, 1), threads(items)).shared(bytes);
        self.launch_experts(stream, of_columns(cols, KERNEL, "token_down_part"), grid, argument)
    }

    fn launch_experts(
        &self,
        stream: Stream,
        kernel: &'static str,
        grid: Grid,
        argument: ExpertsArgument,
    ) -> Result<bool, CudaError> {
        let status = self.status_address();
        // SAFETY: argument types are those of the kernels; shapes were checked, and whoever filled the table answers for its
        // addresses. What `token_down` reads early is as old as its documentation demands.
        unsafe {
            self.launch_early(stream, Function("decode_experts", kernel), grid, &mut arguments![argument, status])?;
        }
        Ok(true)
    }
}

/// What both kernels take; the rest is zero.
fn argument(
    kernel: &'static str,
    experts: RoutedExperts,
    (rows, cols): (usize, usize),
    (x, out): (DeviceSlice<f32>, DeviceSlice<f32>),
) -> Result<ExpertsArgument, KernelError> {
    let RoutedExperts { ids, table, .. } = experts;
    Ok(ExpertsArgument {
        table: table.address(),
        ids: ids.address(),
        experts: size(kernel, table.len())?,
        slots: size(kernel, ids.len())?,
        matrices: [0; 2],
        biases: [0; 2],
        rows: size(kernel, rows)?,
        cols: size(kernel, cols)?,
        stages: 0,
        slots_on: 0,
        tiles_on: 0,
        x: x.address(),
        weights: 0,
        factor: 0.0,
        out: out.address(),
        form: Activation::SwiGlu.into(),
    })
}
