//! Launchers of `cu/grouped_gemm.cu`: the routed experts' products on tensor cores.

use super::gemm::{Instruction, TILE_OUTPUTS};
use super::launch::{ActivationArgument, Grid, Stream, arguments, size};
use super::module::Function;
use super::{Cuda, CudaError, DeviceImage, DevicePlan, DeviceSlice, plan_words, slot_image_bytes};
use crate::Activation;
use crate::contract::GROUP;
use crate::error::{KernelError, expect_len, product};
use crate::layout::{ExpertLayout, MatrixFormat};

/// Where a grouped GEMM's operands lie in one workspace, in bytes from its start; each part begins at a multiple of 256.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupedWorkspace {
    /// The plan, [`super::plan_words`] words.
    pub plan: usize,
    /// The image of the experts' input.
    pub input: usize,
    /// The image of what stands between their halves.
    pub middle: usize,
    /// All of it.
    pub bytes: usize,
}

/// The workspace that plan, pack, gate and up, and down need together. The `[slots, hidden]` output is not in it. `None` where
/// a size is 0 or overflows.
pub fn grouped_workspace_bytes(
    slots: usize,
    num_experts: usize,
    hidden_size: usize,
    moe_intermediate_size: usize,
) -> Option<GroupedWorkspace> {
    let plan = plan_words(slots, num_experts)?.checked_mul(size_of::<u32>())?;
    let input = slot_image_bytes(slots, num_experts, hidden_size)?;
    let middle = slot_image_bytes(slots, num_experts, moe_intermediate_size)?;
    let align = |bytes: usize| bytes.checked_next_multiple_of(256);
    let input_at = align(plan)?;
    let middle_at = align(input_at.checked_add(input)?)?;
    let bytes = align(middle_at.checked_add(middle)?)?;
    Some(GroupedWorkspace { plan: 0, input: input_at, middle: middle_at, bytes })
}

impl Cuda {
    /// [`crate::twin::grouped_gate_up`] on tensor cores: `middle` gets `activation(gate . x, up . x)`, as BF16 and in the order of
    /// the plan. `table` is `[num_experts]`, the device address of each expert's bytes, 0 where it has none; `input` is what
    /// [`Cuda::pack_slots`] has filled.
    ///
    /// # Errors
    /// `Kernel`, `Call`; later the fault `ExpertAbsent` for an expert that has slots and no address: its slots are left as
    /// they were.
    #[allow(clippy::too_many_arguments)]
    pub fn grouped_gemm_gate_up(
        &self,
        stream: Stream,
        instruction: Instruction,
        table: DeviceSlice<u64>,
        layout: &ExpertLayout,
        plan: DevicePlan,
        input: DeviceImage,
        activation: Activation,
        middle: DeviceImage,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "grouped_gemm_gate_up";
        expect_len(KERNEL, "table [num_experts]", table.len(), plan.num_experts())?;
        input.check(KERNEL, plan.image_rows(), layout.hidden_size)?;
        middle.check(KERNEL, plan.image_rows(), layout.moe_intermediate_size)?;
        let halves = 2 * layout.moe_intermediate_size.div_ceil(GROUP);
        let (grid, is_short) = self.grouped_grid(KERNEL, instruction, layout.format, halves, plan)?;
        let name = match (instruction, layout.format) {
            (Instruction::Wgmma, MatrixFormat::Int4) if is_short => "gate_up_int4_short",
            (Instruction::Mma, MatrixFormat::Int4) => "gate_up_int4_mma",
            (Instruction::Mma, MatrixFormat::Bf16) => "gate_up_bf16_mma",
            (Instruction::Mma, MatrixFormat::Int8) => "gate_up_int8_mma",
            (Instruction::Wgmma, MatrixFormat::Int4) => "gate_up_int4_wgmma",
            (Instruction::Wgmma, MatrixFormat::Int8) => "gate_up_int8_wgmma",
            (Instruction::Wgmma, MatrixFormat::Bf16) => "gate_up_bf16_wgmma",
        };
        let [gate_bias, up_bias, _] = bias_offsets(layout);
        let (table, up_offset) = (table.address(), layout.up_offset as u64);
        let (rows, cols) = (size(KERNEL, layout.moe_intermediate_size)?, size(KERNEL, layout.hidden_size)?);
        let (plan, input, middle) = (plan.address(), input.address(), middle.address());
        let (form, status) = (ActivationArgument::from(activation), self.status_address());
        // SAFETY: argument types are those of the kernel; images hold every slot of the plan, whoever filled the table answers
        // for its addresses.
        unsafe {
            let mut arguments =
                arguments![table, up_offset, gate_bias, up_bias, rows, cols, plan, input, form, middle, status];
            self.launch(stream, Function("grouped_gemm", name), grid, &mut arguments)
        }
    }

    /// [`crate::twin::grouped_down`] on tensor cores: `out[s] = down . middle[s] (+ bias)`, `out` `[slots, hidden]` in the order
    /// of slots. `order` is `[slots]`, that of [`crate::twin::permute`].
    ///
    /// # Errors
    /// As [`Cuda::grouped_gemm_gate_up`].
    #[allow(clippy::too_many_arguments)]
    pub fn grouped_gemm_down(
        &self,
        stream: Stream,
        instruction: Instruction,
        table: DeviceSlice<u64>,
        layout: &ExpertLayout,
        plan: DevicePlan,
        order: DeviceSlice<u32>,
        middle: DeviceImage,
        out: DeviceSlice<f32>,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "grouped_gemm_down";
        expect_len(KERNEL, "table [num_experts]", table.len(), plan.num_experts())?;
        expect_len(KERNEL, "order [slots]", order.len(), plan.slots())?;
        middle.check(KERNEL, plan.image_rows(), layout.moe_intermediate_size)?;
        let expected = product(KERNEL, "out", &[plan.slots(), layout.hidden_size])?;
        expect_len(KERNEL, "out [slots, hidden]", out.len(), expected)?;
        let blocks = layout.hidden_size.div_ceil(TILE_OUTPUTS);
        let (grid, is_short) = self.grouped_grid(KERNEL, instruction, layout.format, blocks, plan)?;
        let name = match (instruction, layout.format) {
            (Instruction::Wgmma, MatrixFormat::Int4) if is_short => "down_int4_short",
            (Instruction::Mma, MatrixFormat::Int4) => "down_int4_mma",
            (Instruction::Mma, MatrixFormat::Bf16) => "down_bf16_mma",
            (Instruction::Mma, MatrixFormat::Int8) => "down_int8_mma",
            (Instruction::Wgmma, MatrixFormat::Int4) => "down_int4_wgmma",
            (Instruction::Wgmma, MatrixFormat::Int8) => "down_int8_wgmma",
            (Instruction::Wgmma, MatrixFormat::Bf16) => "down_bf16_wgmma",
        };
        let [_, _, bias] = bias_offsets(layout);
        let (table, offset) = (table.address(), layout.down_offset as u64);
        let (rows, cols) = (size(KERNEL, layout.hidden_size)?, size(KERNEL, layout.moe_intermediate_size)?);
        let (plan, order, middle) = (plan.address(), order.address(), middle.address());
        let (out, status) = (out.address(), self.status_address());
        // SAFETY: as in `grouped_gemm_gate_up`.
        unsafe {
            let mut arguments = arguments![table, offset, bias, rows, cols, plan, order, middle, out, status];
            self.launch(stream, Function("grouped_gemm", name), grid, &mut arguments)
        }
    }
}

impl Cuda {
    /// The grid of a grouped GEMM, and whether its kernel is the one for tiles of few slots: narrow, so that two blocks fit a
    /// multiprocessor. For INT8 that would need more registers than two blocks have.
    fn grouped_grid(
        &self,
        kernel: &'static str,
        instruction: Instruction,
        format: MatrixFormat,
        x: usize,
        plan: DevicePlan,
    ) -> Result<(Grid, bool), KernelError> {
        /// Five stages of 32 rows.
        const SHORT_BYTES: u32 = 5 * 32 * 256;
        let grid = self.gemm_grid(kernel, instruction, format, x, plan.tiles())?;
        let is_short = plan.is_short() && (instruction, format) == (Instruction::Wgmma, MatrixFormat::Int4);
        Ok((if is_short { grid.shared(SHORT_BYTES) } else { grid }, is_short))
    }
}

/// Offsets of the biases of gate, up and down; 0, where gate's weights lie, for none.
pub(super) fn bias_offsets(layout: &ExpertLayout) -> [u64; 3] {
    layout.bias_offsets.map_or([0; 3], |offsets| offsets.map(|offset| offset as u64))
}
