//! Launchers of `cu/gemm.cu`: dense products on tensor cores.

use super::launch::{Grid, Stream, arguments, size};
use super::module::Function;
use super::pack::{SHORT_TILE, TILE_TOKENS, aligned, image_rows, tile_grid};
use super::{Cuda, CudaError, DeviceImage, DeviceMatrix, DeviceSlice};
use crate::error::{KernelError, expect_len, product, rows_of};
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
            (Self::Wgmma, MatrixFormat::Int4 | MatrixFormat::Int8) => 5 * 32_768,
            (Self::Wgmma, MatrixFormat::Bf16) => 4 * 32_768,
        }
    }
}

/// Matrices that one launch of [`Cuda::gemm_many`] takes.
pub const MOST_MATRICES: usize = 4;

/// One of the products of [`Cuda::gemm_many`].
#[derive(Debug, Clone, Copy)]
pub struct GemmProduct {
    /// `[rows, cols]`.
    pub w: DeviceMatrix,
    /// `[rows]`.
    pub bias: Option<DeviceSlice<f32>>,
    /// `[tokens, rows]`.
    pub out: DeviceSlice<f32>,
}

/// `struct GemmMatrix` of `cu/gemm.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Matrix {
    matrix: u64,
    bias: u64,
    out: u64,
    rows: u32,
    first_block: u32,
}

/// `struct GemmMatrices` of `cu/gemm.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Matrices {
    matrices: [Matrix; MOST_MATRICES],
    count: u32,
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
        self.gemm_many(stream, instruction, image, &[GemmProduct { w, bias, out }])
    }

    /// [`Cuda::gemm`] of one image with 1 to 4 matrices of the same columns and format in one launch: small matrices fill what large
    /// ones leave idle. Bits are those of a launch each.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn gemm_many(
        &self,
        stream: Stream,
        instruction: Instruction,
        image: DeviceImage,
        products: &[GemmProduct],
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "gemm";
        let first = match products {
            [first, ..] if products.len() <= MOST_MATRICES => first,
            _ => return Err(geometry("matrices", "1 to 4", products.len()).into()),
        };
        let (format, cols) = (first.w.format(), first.w.cols());
        let tokens = rows_of(KERNEL, "out [tokens, rows]", first.out.len(), first.w.rows())?;
        image.check(KERNEL, image_rows(tokens), cols)?;
        let mut matrices = Matrices { matrices: [Matrix::default(); MOST_MATRICES], count: products.len() as u32 };
        let mut blocks = 0;
        for (to, GemmProduct { w, bias, out }) in matrices.matrices.iter_mut().zip(products) {
            expect_len(KERNEL, "columns of w", w.cols(), cols)?;
            if w.format() != format {
                return Err(geometry("matrices of another format", "0", 1).into());
            }
            expect_len(KERNEL, "out [tokens, rows]", out.len(), product(KERNEL, "out", &[tokens, w.rows()])?)?;
            aligned(KERNEL, "the address of w", w.address())?;
            if let Some(bias) = bias {
                expect_len(KERNEL, "bias [rows]", bias.len(), w.rows())?;
            }
            *to = Matrix {
                matrix: w.address(),
                bias: bias.map_or(0, DeviceSlice::address),
                out: out.address(),
                rows: size(KERNEL, w.rows())?,
                first_block: size(KERNEL, blocks)?,
            };
            blocks += w.rows().div_ceil(TILE_OUTPUTS);
        }
        let tile = self.tile_tokens(blocks, tokens);
        let grid = self.gemm_grid(KERNEL, instruction, format, blocks, tokens.div_ceil(tile))?;
        let name = match (instruction, format) {
            (Instruction::Mma, MatrixFormat::Int4) => "gemm_int4_mma",
            (Instruction::Mma, MatrixFormat::Bf16) => "gemm_bf16_mma",
            (Instruction::Mma, MatrixFormat::Int8) => "gemm_int8_mma",
            (Instruction::Wgmma, MatrixFormat::Int4) => "gemm_int4_wgmma",
            (Instruction::Wgmma, MatrixFormat::Int8) => "gemm_int8_wgmma",
            (Instruction::Wgmma, MatrixFormat::Bf16) => "gemm_bf16_wgmma",
        };
        let (cols, image, tokens, tile) = (size(KERNEL, cols)?, image.address(), tokens as u64, tile as u32);
        // SAFETY: argument types are those of the kernel; the image holds the tokens, and all other lengths are checked.
        unsafe {
            let mut arguments = arguments![matrices, cols, image, tokens, tile];
            self.launch(stream, Function("gemm", name), grid, &mut arguments)
        }
    }

    /// Tokens that a block takes: as few as still leave every block a multiprocessor of its own, so that short prompts keep more of them busy.
    fn tile_tokens(&self, blocks: usize, tokens: usize) -> usize {
        let fits = |tile: &usize| blocks * tokens.div_ceil(*tile) <= self.properties.multiprocessors as usize;
        [SHORT_TILE, 2 * SHORT_TILE].into_iter().find(fits).unwrap_or(TILE_TOKENS)
    }

    /// Refuses an instruction that the device does not have.
    pub(super) fn require(&self, kernel: &'static str, instruction: Instruction) -> Result<(), KernelError> {
        if instruction == Instruction::Mma || self.instruction() == Instruction::Wgmma {
            return Ok(());
        }
        let (major, minor) = self.properties.capability;
        Err(KernelError::Geometry {
            kernel,
            what: "ten times the compute capability, for wgmma,",
            expected: "90",
            found: (10 * major + minor) as usize,
        })
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
        self.require(kernel, instruction)?;
        Ok(tile_grid(kernel, x, tiles, THREADS)?.shared(instruction.shared_bytes(format)))
    }
}

fn geometry(what: &'static str, expected: &'static str, found: usize) -> KernelError {
    KernelError::Geometry { kernel: "gemm", what, expected, found }
}
