//! Launchers of `cu/gemm.cu`: dense products on tensor cores.

use super::launch::{Grid, Stream, arguments};
use super::module::Function;
use super::pack::{TILE_TOKENS, aligned, tile_grid};
use super::{Cuda, CudaError, DeviceImage, DeviceMatrix, DeviceSlice};
use crate::error::{KernelError, expect_len, rows_of};
use crate::layout::MatrixFormat;

/// Weight rows that one thread block takes.
pub(super) const TILE_OUTPUTS: usize = 128;

const THREADS: u32 = 256;

/// The tensor-core instruction that GEMMs use. Each gives a token's row the same bits whatever stands beside it; the two need not
/// agree with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// `mma.sync`, on every device from compute capability 8.0 on.
    Mma,
    /// `wgmma`, on compute capability 9.0 alone.
    Wgmma,
}

impl Instruction {
    /// The name used in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mma => "mma.sync",
            Self::Wgmma => "wgmma",
        }
    }

    /// Dynamic shared memory of a GEMM's thread block: the stages of `cu/gemm_mma.cuh` and `cu/gemm_wgmma.cuh`.
    fn shared_bytes(self, format: MatrixFormat) -> u32 {
        match (self, format) {
            (Self::Mma, _) => 3 * 32_768,
            (Self::Wgmma, MatrixFormat::Int4) => 5 * 32_768,
            (Self::Wgmma, MatrixFormat::Bf16) => 4 * 32_768,
        }
    }
}

impl Cuda {
    /// The instruction for this device's GEMMs: it depends on nothing else.
    pub fn instruction(&self) -> Instruction {
        if self.properties.capability == (9, 0) { Instruction::Wgmma } else { Instruction::Mma }
    }

    /// [`crate::twin::linear`] on tensor cores: `out[t, n] = w[n] . x[t] (+ bias[n])` with x rounded to BF16, for `tokens`
    /// rows of the image, which [`Cuda::pack_rows`] has filled. A token's row has the same bits whatever the other rows
    /// and their number. Weights must lie at a multiple of 16.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn gemm(
        &self,
        stream: Stream,
        instruction: Instruction,
        image: DeviceImage,
        w: DeviceMatrix,
        bias: Option<DeviceSlice<f32>>,
        out: DeviceSlice<f32>,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "gemm";
        let tokens = rows_of(KERNEL, "out [tokens, rows]", out.len(), w.rows())?;
        image.check(KERNEL, tokens, w.cols())?;
        aligned(KERNEL, "the address of w", w.address())?;
        if let Some(bias) = bias {
            expect_len(KERNEL, "bias [rows]", bias.len(), w.rows())?;
        }
        let grid = self.gemm_grid(
            KERNEL,
            instruction,
            w.format(),
            w.rows().div_ceil(TILE_OUTPUTS),
            tokens.div_ceil(TILE_TOKENS),
        )?;
        let name = match (instruction, w.format()) {
            (Instruction::Mma, MatrixFormat::Int4) => "gemm_int4_mma",
            (Instruction::Mma, MatrixFormat::Bf16) => "gemm_bf16_mma",
            (Instruction::Wgmma, MatrixFormat::Int4) => "gemm_int4_wgmma",
            (Instruction::Wgmma, MatrixFormat::Bf16) => "gemm_bf16_wgmma",
        };
        let (rows, cols) = (size(KERNEL, w.rows())?, size(KERNEL, w.cols())?);
        let (matrix, image, tokens) = (w.address(), image.address(), tokens as u64);
        let (bias, out) = (bias.map_or(0, DeviceSlice::address), out.address());
        // SAFETY: argument types are those of the kernel; the image holds the tokens, and all other lengths are checked.
        unsafe {
            let mut arguments = arguments![matrix, rows, cols, image, tokens, bias, out];
            self.launch(stream, Function("gemm", name), grid, &mut arguments)
        }
    }

    /// Grid and shared memory of a GEMM; refuses an instruction that the device does not have.
    pub(super) fn gemm_grid(
        &self,
        kernel: &'static str,
        instruction: Instruction,
        format: MatrixFormat,
        x: usize,
        tiles: usize,
    ) -> Result<Grid, KernelError> {
        if instruction == Instruction::Wgmma && self.instruction() != Instruction::Wgmma {
            let (major, minor) = self.properties.capability;
            return Err(KernelError::Geometry {
                kernel,
                what: "ten times the compute capability, for wgmma,",
                expected: "90",
                found: (10 * major + minor) as usize,
            });
        }
        Ok(tile_grid(kernel, x, tiles, THREADS)?.shared(instruction.shared_bytes(format)))
    }
}

/// A dimension as kernels take it.
pub(super) fn size(kernel: &'static str, value: usize) -> Result<u32, KernelError> {
    // Half of u32, so that rounding up to tiles cannot overflow there.
    u32::try_from(value)
        .ok()
        .filter(|&value| value <= u32::MAX / 2)
        .ok_or(KernelError::TooLarge { kernel, what: "a dimension of more than 2^31 - 1" })
}
