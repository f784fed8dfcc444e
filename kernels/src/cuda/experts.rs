//! Launchers of `cu/experts.cu`: the routed experts' products in the contract's order.

use super::grouped_gemm::bias_offsets;
use super::launch::{ActivationArgument, Stream, arguments, size};
use super::linear::dot_grid;
use super::module::Function;
use super::{Cuda, CudaError, DeviceSlice};
use crate::Activation;
use crate::error::{KernelError, expect_len, product, rows_of};
use crate::layout::{ExpertLayout, MatrixFormat, TILE_ROWS};

/// `struct Expert` of `cu/experts.cu`.
#[repr(C)]
struct ExpertArgument {
    matrices: [u64; 2],
    biases: [u64; 2],
}

/// `struct Route` of `cu/experts.cu`.
#[repr(C)]
struct RouteArgument {
    table: u64,
    ids: u64,
    experts: u32,
    slots: u32,
}

impl Cuda {
    /// [`crate::twin::grouped_gate_up`] on the device: `out[s] = activation(gate . x[s / top_k], up . x[s / top_k])` by the expert
    /// `ids[s]` of slot s.
    ///
    /// `x` is `[tokens, hidden]`, `ids` are `[tokens * top_k]`, `out` is `[tokens * top_k, moe_intermediate_size]`; `table` is
    /// `[num_experts]`, the address of each expert's bytes, which lie as `layout` says at a multiple of 16, or 0 or all
    /// ones where an expert is not on the device.
    ///
    /// # Errors
    /// `Kernel`, `Call`; later the faults `ExpertAbsent` and `Index`, for an expert that has a slot and no address and for an id
    /// that no expert has: such slots are left as they were.
    #[allow(clippy::too_many_arguments)]
    pub fn grouped_gate_up(
        &self,
        stream: Stream,
        x: DeviceSlice<f32>,
        top_k: usize,
        ids: DeviceSlice<u32>,
        table: DeviceSlice<u64>,
        layout: &ExpertLayout,
        activation: Activation,
        out: DeviceSlice<f32>,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "grouped_gate_up";
        let (rows, cols) = (layout.moe_intermediate_size, layout.hidden_size);
        let tokens = rows_of(KERNEL, "slots [tokens, top_k]", ids.len(), top_k)?;
        routed_shapes(KERNEL, (&x, tokens, cols), (&out, ids.len(), rows))?;
        if ids.is_empty() {
            return Ok(());
        }
        let tiles = rows.div_ceil(TILE_ROWS);
        // Gate and up are the two units of a block.
        let grid = dot_grid(KERNEL, layout.format, 2, (2 * tiles, cols), ids.len())?;
        let name = match layout.format {
            MatrixFormat::Int4 => "gate_up_int4",
            MatrixFormat::Int8 => "gate_up_int8",
            MatrixFormat::Bf16 => "gate_up_bf16",
        };
        let [gate_bias, up_bias, _] = bias_offsets(layout);
        let parts = ExpertArgument {
            matrices: [layout.gate_offset as u64, layout.up_offset as u64],
            biases: [gate_bias, up_bias],
        };
        let route = route(KERNEL, table, ids)?;
        let (rows, cols, top_k) = (size(KERNEL, rows)?, size(KERNEL, cols)?, size(KERNEL, top_k)?);
        let (x, form, out) = (x.address(), ActivationArgument::from(activation), out.address());
        let status = self.status_address();
        // SAFETY: as in `linear`; whoever filled the table answers for its addresses.
        unsafe {
            let mut arguments = arguments![route, parts, rows, cols, x, top_k, form, out, status];
            self.launch(stream, Function("experts", name), grid, &mut arguments)
        }
    }

    /// [`crate::twin::grouped_down`] on the device: `out[s] = down . act[s]` by the expert `ids[s]` of slot s.
    ///
    /// `act` is `[slots, moe_intermediate_size]`, `out` is `[slots, hidden]`; `ids` and `table` as for
    /// [`Cuda::grouped_gate_up`].
    ///
    /// # Errors
    /// As [`Cuda::grouped_gate_up`].
    pub fn grouped_down(
        &self,
        stream: Stream,
        act: DeviceSlice<f32>,
        ids: DeviceSlice<u32>,
        table: DeviceSlice<u64>,
        layout: &ExpertLayout,
        out: DeviceSlice<f32>,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "grouped_down";
        let (rows, cols) = (layout.hidden_size, layout.moe_intermediate_size);
        routed_shapes(KERNEL, (&act, ids.len(), cols), (&out, ids.len(), rows))?;
        if ids.is_empty() {
            return Ok(());
        }
        let tiles = rows.div_ceil(TILE_ROWS);
        let units = self.units(tiles, ids.len());
        let grid = dot_grid(KERNEL, layout.format, units, (tiles, cols), ids.len())?;
        let name = match (layout.format, units) {
            (MatrixFormat::Int4, 1) => "down_int4_1",
            (MatrixFormat::Int4, _) => "down_int4_2",
            (MatrixFormat::Int8, 1) => "down_int8_1",
            (MatrixFormat::Int8, _) => "down_int8_2",
            (MatrixFormat::Bf16, 1) => "down_bf16_1",
            (MatrixFormat::Bf16, _) => "down_bf16_2",
        };
        let [_, _, bias] = bias_offsets(layout);
        let down = layout.down_offset as u64;
        let parts = ExpertArgument { matrices: [down; 2], biases: [bias; 2] };
        let route = route(KERNEL, table, ids)?;
        let (rows, cols) = (size(KERNEL, rows)?, size(KERNEL, cols)?);
        let (act, out, status) = (act.address(), out.address(), self.status_address());
        // SAFETY: as in `grouped_gate_up`.
        unsafe {
            let mut arguments = arguments![route, parts, rows, cols, act, out, status];
            self.launch(stream, Function("experts", name), grid, &mut arguments)
        }
    }
}

fn route(kernel: &'static str, table: DeviceSlice<u64>, ids: DeviceSlice<u32>) -> Result<RouteArgument, KernelError> {
    Ok(RouteArgument {
        table: table.address(),
        ids: ids.address(),
        experts: size(kernel, table.len())?,
        slots: size(kernel, ids.len())?,
    })
}

/// Refuses an input that is not `[inputs, cols]` and an output that is not `[slots, rows]`.
fn routed_shapes(
    kernel: &'static str,
    (x, inputs, cols): (&DeviceSlice<f32>, usize, usize),
    (out, slots, rows): (&DeviceSlice<f32>, usize, usize),
) -> Result<(), KernelError> {
    expect_len(kernel, "x [rows, cols]", x.len(), product(kernel, "x", &[inputs, cols])?)?;
    expect_len(kernel, "out [slots, rows]", out.len(), product(kernel, "out", &[slots, rows])?)
}
