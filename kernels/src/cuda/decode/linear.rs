//! Launchers of `cu/decode_linear.cu`.

use super::super::launch::{Grid, Stream, arguments, size};
use super::super::module::Function;
use super::super::{Cuda, CudaError, DeviceMatrix, DeviceSlice};
use super::{Carve, GROUP_WORDS, MAX_DEPTH, depth, in_sixteens, of_columns, threads};
use crate::check;
use crate::layout::{MatrixFormat, col_groups, row_tiles};

/// Outputs of a launch at most; `OUTPUTS` of `cu/decode_linear.cu`.
const OUTPUTS: usize = 3;

/// A kernel for whole groups of columns, and the one for a last group that is short.
type Names = (&'static str, &'static str);

const NORM_LINEAR: [Names; 2] = [("norm_linear", "norm_linear_part"), ("norm_linear_long", "norm_linear_long_part")];
const LINEAR_ADD: [Names; 2] = [("linear_add", "linear_add_part"); 2];

/// What the driver takes of a multiprocessor's shared memory for each block.
const RESERVED: u32 = 1024;

/// One product of a row of activations.
#[derive(Debug, Clone, Copy)]
pub struct Projected {
    /// `[rows, cols]`
    pub weight: DeviceMatrix,
    /// `[rows]`
    pub bias: Option<DeviceSlice<f32>>,
    /// `[rows]`
    pub out: DeviceSlice<f32>,
}

/// `struct Output` of `cu/decode_linear.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct OutputArgument {
    matrix: u64,
    bias: u64,
    out: u64,
    rows: u32,
    first_tile: u32,
}

/// `struct Project` of `cu/decode_linear.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct ProjectArgument {
    x: u64,
    norm: u64,
    normed: u64,
    eps: f32,
    factor: f32,
    cols: u32,
    tiles: u32,
    stages: u32,
    outputs: [OutputArgument; OUTPUTS],
}

impl Cuda {
    /// One token: `normed = rms_norm(x) * norm`, then each output's [`crate::twin::linear`] of it. For INT4 matrices, at most three.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn norm_linear(
        &self,
        stream: Stream,
        x: DeviceSlice<f32>,
        (norm, eps): (DeviceSlice<f32>, f32),
        normed: DeviceSlice<f32>,
        outputs: &[Projected],
    ) -> Result<bool, CudaError> {
        let tokens = check::rms_norm(&x, &norm, &normed)?;
        if tokens != 1 || !in_sixteens(norm) {
            return Ok(false);
        }
        let form = Form { names: NORM_LINEAR, norm: Some((norm, eps, normed)), factor: 1.0 };
        self.project(stream, x, outputs, form)
    }

    /// One token: `residual = fma(linear(x), factor, residual)`, [`crate::twin::linear`] and [`crate::twin::add_assign`]. For an INT4
    /// matrix.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn linear_add(
        &self,
        stream: Stream,
        x: DeviceSlice<f32>,
        weight: DeviceMatrix,
        bias: Option<DeviceSlice<f32>>,
        factor: f32,
        residual: DeviceSlice<f32>,
    ) -> Result<bool, CudaError> {
        let form = Form { names: LINEAR_ADD, norm: None, factor };
        self.project(stream, x, &[Projected { weight, bias, out: residual }], form)
    }

    fn project(
        &self,
        stream: Stream,
        x: DeviceSlice<f32>,
        outputs: &[Projected],
        form: Form,
    ) -> Result<bool, CudaError> {
        let kernel = form.names[0].0;
        for Projected { weight, bias, out } in outputs {
            if check::linear(&x, weight, bias.as_ref(), out)? != 1 {
                return Ok(false);
            }
        }
        let int4 = |output: &Projected| {
            output.weight.format() == MatrixFormat::Int4 && output.weight.address().is_multiple_of(16)
        };
        if outputs.is_empty() || outputs.len() > OUTPUTS || !outputs.iter().all(int4) || !in_sixteens(x) {
            return Ok(false);
        }
        let (cols, mut tiles) = (x.len(), 0usize);
        let mut parts = [OutputArgument::default(); OUTPUTS];
        for (part, Projected { weight, bias, out }) in parts.iter_mut().zip(outputs) {
            *part = OutputArgument {
                matrix: weight.address(),
                bias: bias.map_or(0, DeviceSlice::address),
                out: out.address(),
                rows: size(kernel, weight.rows())?,
                first_tile: size(kernel, tiles)?,
            };
            tiles = tiles.saturating_add(row_tiles(weight.rows()));
        }
        for part in parts.iter_mut().skip(outputs.len()) {
            part.first_tile = size(kernel, tiles)?;
        }
        let (norm, eps, normed) =
            form.norm.map_or((0, 0.0, 0), |(norm, eps, out)| (norm.address(), eps, out.address()));
        let (factor, columns) = (form.factor, size(kernel, cols)?);
        let Some((stages, many, grid)) = self.project_grid(kernel, tiles, cols, form.norm.is_some())? else {
            return Ok(false);
        };
        let tiles = size(kernel, tiles)?;
        let argument =
            ProjectArgument { x: x.address(), norm, normed, eps, factor, cols: columns, tiles, stages, outputs: parts };
        let (whole, part) = form.names[usize::from(many)];
        let name = of_columns(cols, whole, part);
        // SAFETY: the argument type is that of the kernel; shapes were checked. Only weights are read early.
        unsafe { self.launch_early(stream, Function("decode_linear", name), grid, &mut arguments![argument])? };
        Ok(true)
    }

    /// Pairs of tiles copied ahead, and whether there are more; blocks, threads and shared memory. `None` where a block has not enough.
    fn project_grid(
        &self,
        kernel: &'static str,
        tiles: usize,
        cols: usize,
        norms: bool,
    ) -> Result<Option<(u32, bool, Grid)>, CudaError> {
        let (groups, properties) = (col_groups(cols), self.properties());
        let blocks = tiles.min(properties.multiprocessors as usize);
        let base = Carve::default()
            .take::<f32>(groups * GROUP_WORDS)
            .take::<f32>(if norms { cols } else { 0 })
            .take::<f32>(groups);
        let pairs = tiles.div_ceil(blocks.max(1)).div_ceil(2);
        let barriers = Carve::default().take::<u64>(2 * MAX_DEPTH).0 as u32;
        let limit = properties.shared_bytes.saturating_sub(barriers);
        let Some((depth, bytes)) = depth(base, groups, pairs, limit) else { return Ok(None) };
        // With one place, what fills it again would come behind who waits for it.
        let many = depth > 1 && pairs > depth as usize && norms;
        let mut bytes = if many { bytes + barriers } else { bytes };
        if !norms {
            // Attention leaves multiprocessors free: without this some would get two blocks, and others none.
            bytes = bytes.max(properties.shared_bytes / 2 + RESERVED);
        }
        Ok(Some((depth, many, Grid::new((size(kernel, blocks)?, 1, 1), threads(groups)).shared(bytes))))
    }
}

/// What stands around the products.
#[derive(Debug, Clone, Copy)]
struct Form {
    /// For as many pairs of tiles as are copied ahead, and for more.
    names: [Names; 2],
    norm: Option<(DeviceSlice<f32>, f32, DeviceSlice<f32>)>,
    factor: f32,
}
