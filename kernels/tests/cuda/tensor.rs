//! What tests of tensor-core kernels share: error bounds, the image's order, matrices.

use assay_kernels::cuda::Instruction;
use assay_kernels::layout::{MatrixFormat, matrix_bytes, pack_bf16, pack_int4, pack_int8};
use half::bf16;
use libtest_mimic::Failed;
use rayon::prelude::*;

use super::support::{Device, awkward};

/// Relative rounding error of BF16, to nearest: half a unit in the last of its eight bits of significand.
pub(crate) const BF16_ROUNDING: f64 = 1.0 / 256.0;

/// The most that tensor cores are off on a dot product of `k` columns, relative to the sum of the products' magnitudes.
///
/// A step adds 16 exact products to an accumulator. The terms are aligned to the largest and cut, none below 23 bits after
/// its leading one; each of the 17 loses less than 2^-23 of the largest, which is at most the sum of magnitudes. There are K / 16
/// steps (of whole groups). With scales, each group's sum joins the total by an FMA that rounds once more.
pub(crate) fn tensor_error(k: usize) -> f64 {
    let groups = k.div_ceil(128) as f64;
    groups * (8.0 * 17.0 * 2f64.powi(-23) + 2f64.powi(-24))
}

/// Instructions that this device has.
pub(crate) fn instructions(device: &Device) -> Vec<Instruction> {
    match device.cuda.instruction() {
        Instruction::Mma => vec![Instruction::Mma],
        Instruction::Wgmma => vec![Instruction::Mma, Instruction::Wgmma],
    }
}

pub(crate) fn rounded(x: f32) -> f32 {
    bf16::from_f32(x).to_f32()
}

/// Column of the group at a position of an image's group: position 16 (2 t + u) + 8 h + 2 c + e holds 32 c + 8 t + 4 u + 2 h + e.
pub(crate) fn column(position: usize) -> usize {
    let (t, u, h) = (position / 32, position / 16 % 2, position / 8 % 2);
    let (c, e) = (position / 2 % 4, position % 2);
    32 * c + 8 * t + 4 * u + 2 * h + e
}

/// Element of an image's panel `[group][block of 8 rows][16 chunks][8 rows][8]`, which has room for `blocks` blocks.
pub(crate) fn panel_element(panel: &[u8], blocks: usize, row: usize, col: usize) -> f32 {
    let position = (0..128).find(|&position| column(position) == col % 128).unwrap();
    let at = ((col / 128 * blocks + row / 8) * 16 + position / 8) * 64 + row % 8 * 8 + position % 8;
    bf16::from_le_bytes([panel[2 * at], panel[2 * at + 1]]).to_f32()
}

/// Weights in both forms: packed, and f64 row-major.
pub(crate) struct Weights {
    pub(crate) format: MatrixFormat,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) packed: Vec<u8>,
    pub(crate) values: Vec<f64>,
}

impl Weights {
    pub(crate) fn new(format: MatrixFormat, rows: usize, cols: usize, seed: u64) -> Self {
        let mut packed = vec![0; matrix_bytes(format, rows, cols).unwrap()];
        let unit: Vec<f32> = awkward(rows * cols, seed).iter().map(|x| x.clamp(-1.0, 1.0)).collect();
        let values = match format {
            MatrixFormat::Bf16 => {
                pack_bf16(&unit, rows, cols, &mut packed).unwrap();
                unit.iter().map(|&x| f64::from(rounded(x))).collect()
            }
            MatrixFormat::Int4 | MatrixFormat::Int8 => {
                let (most, pack): (f32, fn(&[i8], &[bf16], usize, usize, &mut [u8]) -> _) =
                    if format == MatrixFormat::Int4 { (7.0, pack_int4) } else { (127.0, pack_int8) };
                let q: Vec<i8> = unit.iter().map(|x| (x * most).round() as i8).collect();
                let groups = cols.div_ceil(128);
                let scales: Vec<bf16> =
                    awkward(rows * groups, seed + 1).iter().map(|x| bf16::from_f32(x.abs().min(1.0))).collect();
                pack(&q, &scales, rows, cols, &mut packed).unwrap();
                let scale = |at: usize| scales[at / cols * groups + at % cols / 128].to_f64();
                q.iter().enumerate().map(|(at, &q)| f64::from(q) * scale(at)).collect()
            }
        };
        Self { format, rows, cols, packed, values }
    }

    /// Dot product of a row with `x`, and the sum of the products' magnitudes.
    pub(crate) fn dot(&self, row: usize, x: &[f32]) -> (f64, f64) {
        let row = &self.values[row * self.cols..(row + 1) * self.cols];
        row.iter().zip(x).fold((0.0, 0.0), |(sum, size), (&w, &x)| {
            let product = w * f64::from(x);
            (sum + product, size + product.abs())
        })
    }
}

/// Fails with the first element that is further from what is expected than its bound allows.
pub(crate) fn within(what: &str, found: &[f32], expected: impl Fn(usize) -> (f64, f64) + Sync) -> Result<(), Failed> {
    let judged = found.par_iter().enumerate().filter_map(|(at, &value)| {
        let (exact, bound) = expected(at);
        let error = (f64::from(value) - exact).abs();
        (error.is_nan() || error > bound).then_some((at, value, exact, bound))
    });
    let wrong: Vec<(usize, f32, f64, f64)> = judged.collect();
    match wrong.first() {
        None => Ok(()),
        Some((at, value, exact, bound)) => Err(format!(
            "{what}: {} of {} outside their bounds; [{at}] is {value:e}, expected {exact:e} within {bound:e}; \
             the next are {:?}",
            wrong.len(),
            found.len(),
            wrong.iter().skip(1).take(6).map(|wrong| (wrong.0, wrong.1, wrong.2)).collect::<Vec<_>>()
        )
        .into()),
    }
}
