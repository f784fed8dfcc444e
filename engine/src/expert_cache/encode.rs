//! From rows of f32 to a packed matrix, tile by tile, on all cores.

use std::ops::Range;
use std::str::FromStr;

use half::bf16;
use rayon::prelude::*;

use assay_kernels::layout::{
    GROUP_COLS, GROUP_SCALE_BYTES, INT4_GROUP_BYTES, INT4_MAX, INT8_GROUP_BYTES, INT8_MAX, LayoutError, MatrixFormat,
    TILE_ROWS, col_groups, int4_planes_mut, int8_planes_mut, matrix_bytes, pack_bf16_tile, pack_int4_tile,
    pack_int8_tile,
};

use super::quantize::{QuantizeMethod, quantize_group};

/// A format, and how the values come into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// Rounded to BF16: exact where the checkpoint holds BF16.
    Bf16,
    /// INT4 in groups of 128.
    Int4(QuantizeMethod),
    /// INT8 in groups of 128, scaled by the largest magnitude.
    Int8,
}

impl Encoding {
    /// Every encoding there is.
    pub const ALL: [Self; 4] =
        [Self::Bf16, Self::Int4(QuantizeMethod::Amax), Self::Int4(QuantizeMethod::Search), Self::Int8];

    /// How the packed bytes are laid out.
    pub fn format(self) -> MatrixFormat {
        match self {
            Self::Bf16 => MatrixFormat::Bf16,
            Self::Int4(_) => MatrixFormat::Int4,
            Self::Int8 => MatrixFormat::Int8,
        }
    }

    /// The name used in file names and on the command line: `bf16`, `int4-amax`, `int4-search`, `int8`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Int4(QuantizeMethod::Amax) => "int4-amax",
            Self::Int4(QuantizeMethod::Search) => "int4-search",
            Self::Int8 => "int8",
        }
    }
}

impl std::fmt::Display for Encoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Encoding {
    type Err = EncodeError;

    fn from_str(name: &str) -> Result<Self, EncodeError> {
        Self::ALL
            .into_iter()
            .find(|encoding| encoding.name() == name)
            .ok_or_else(|| EncodeError::Name { found: name.to_owned() })
    }
}

/// Why values could not be encoded.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// Not an encoding's name.
    #[error("unknown encoding {found:?}, expected bf16, int4-amax, int4-search or int8")]
    Name {
        /// What was given.
        found: String,
    },
    /// A value that is NaN or infinite, or becomes so when it is rounded to BF16.
    #[error("row {row}, column {col}: {found} cannot be stored, expected a finite number within BF16's range")]
    NotFinite {
        /// Row of the matrix.
        row: usize,
        /// Column of the matrix.
        col: usize,
        /// The value.
        found: f32,
    },
    /// A shape or a slice that does not fit.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// How far packed weights are from their source.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SquaredError {
    /// Sum over all weights of the squared difference.
    pub sum: f64,
    /// The largest squared difference of a single weight.
    pub max: f64,
    /// Weights.
    pub weights: u64,
}

impl SquaredError {
    /// Mean squared error; 0 of nothing.
    pub fn mean(&self) -> f64 {
        if self.weights == 0 { 0.0 } else { self.sum / self.weights as f64 }
    }

    /// The two together.
    pub fn and(self, other: Self) -> Self {
        Self { sum: self.sum + other.sum, max: self.max.max(other.max), weights: self.weights + other.weights }
    }
}

/// Encodes `values` `[rows, cols]`, row-major, into `out`, which is [`matrix_bytes`] long.
///
/// # Errors
/// A value that is not finite, a shape without a size, a slice of the wrong length.
pub fn encode_matrix(
    encoding: Encoding,
    values: &[f32],
    rows: usize,
    cols: usize,
    out: &mut [u8],
) -> Result<SquaredError, EncodeError> {
    if rows.checked_mul(cols) != Some(values.len()) {
        let expected = rows.saturating_mul(cols);
        return Err(LayoutError::Length { what: "values", found: values.len(), expected, rows, cols }.into());
    }
    let fill = |rows: Range<usize>, tile: &mut [f32]| {
        tile.copy_from_slice(&values[rows.start * cols..rows.end * cols]);
        Ok::<_, EncodeError>(())
    };
    encode_rows(encoding, rows, cols, fill, out)
}

/// [`encode_matrix`] for a source that is read 16 rows at a time: `fill` writes the rows of a range, row-major. Nothing but
/// a tile for each thread is held besides `out`.
///
/// # Errors
/// As [`encode_matrix`], and those of `fill`.
pub fn encode_rows<E: From<EncodeError> + Send>(
    encoding: Encoding,
    rows: usize,
    cols: usize,
    fill: impl Fn(Range<usize>, &mut [f32]) -> Result<(), E> + Sync,
    out: &mut [u8],
) -> Result<SquaredError, E> {
    let format = encoding.format();
    let layout_error = |error: LayoutError| E::from(EncodeError::from(error));
    let expected =
        matrix_bytes(format, rows, cols).ok_or(LayoutError::Shape { format, rows, cols }).map_err(layout_error)?;
    if out.len() != expected {
        let what = "packed matrix";
        return Err(layout_error(LayoutError::Length { what, found: out.len(), expected, rows, cols }));
    }
    let tile = |index: usize, values: &mut Vec<f32>| {
        let range = index * TILE_ROWS..rows.min((index + 1) * TILE_ROWS);
        values.resize(range.len() * cols, 0.0);
        fill(range.clone(), values)?;
        check_finite(range.start, cols, values).map_err(E::from)
    };
    let errors: Result<Vec<SquaredError>, E> = match encoding {
        Encoding::Bf16 => out
            .par_chunks_exact_mut(cols * TILE_ROWS * 2)
            .enumerate()
            .map_init(Vec::new, |values, (index, out)| {
                tile(index, values)?;
                pack_bf16_tile(values, cols, out).map_err(layout_error)?;
                Ok(bf16_error(values))
            })
            .collect(),
        Encoding::Int4(_) | Encoding::Int8 => {
            let integers = Integers::of(encoding);
            let groups = col_groups(cols);
            let (bytes, scales) = (integers.planes_mut)(out, rows, cols).map_err(layout_error)?;
            bytes
                .par_chunks_exact_mut(groups * integers.group_bytes)
                .zip(scales.par_chunks_exact_mut(groups * GROUP_SCALE_BYTES))
                .enumerate()
                .map_init(IntegerTile::default, |work, (index, (bytes, scales))| {
                    tile(index, &mut work.values)?;
                    let error = work.quantize(integers.method, integers.most, cols);
                    (integers.pack_tile)(&work.q, &work.scales, cols, bytes, scales).map_err(layout_error)?;
                    Ok(error)
                })
                .collect()
        }
    };
    // Summed in the order of the tiles, so that the figure does not depend on the threads.
    Ok(errors?.into_iter().fold(SquaredError::default(), SquaredError::and))
}

/// Splits a packed matrix into integers and scales.
type PlanesMut = fn(&mut [u8], usize, usize) -> Result<(&mut [u8], &mut [u8]), LayoutError>;

/// Packs a row tile's integers and scales.
type PackTile = fn(&[i8], &[bf16], usize, &mut [u8], &mut [u8]) -> Result<(), LayoutError>;

/// What differs between the formats of integers.
#[derive(Clone, Copy)]
struct Integers {
    method: QuantizeMethod,
    most: i8,
    group_bytes: usize,
    planes_mut: PlanesMut,
    pack_tile: PackTile,
}

impl Integers {
    fn of(encoding: Encoding) -> Self {
        let int4 = |method| Self {
            method,
            most: INT4_MAX,
            group_bytes: INT4_GROUP_BYTES,
            planes_mut: int4_planes_mut,
            pack_tile: pack_int4_tile,
        };
        match encoding {
            Encoding::Int4(method) => int4(method),
            Encoding::Bf16 | Encoding::Int8 => Self {
                method: QuantizeMethod::Amax,
                most: INT8_MAX,
                group_bytes: INT8_GROUP_BYTES,
                planes_mut: int8_planes_mut,
                pack_tile: pack_int8_tile,
            },
        }
    }
}

/// One thread's buffers, kept between tiles.
#[derive(Default)]
struct IntegerTile {
    values: Vec<f32>,
    q: Vec<i8>,
    scales: Vec<bf16>,
}

impl IntegerTile {
    /// Fills `q` and `scales` from `values`.
    fn quantize(&mut self, method: QuantizeMethod, most: i8, cols: usize) -> SquaredError {
        self.q.resize(self.values.len(), 0);
        self.scales.clear();
        let mut total = SquaredError { weights: self.values.len() as u64, ..SquaredError::default() };
        for (values, q) in self.values.chunks_exact(cols).zip(self.q.chunks_exact_mut(cols)) {
            for (values, q) in values.chunks(GROUP_COLS).zip(q.chunks_mut(GROUP_COLS)) {
                let fit = quantize_group(method, most, values, q);
                self.scales.push(fit.scale);
                total.sum += fit.squared_error;
                let scale = fit.scale.to_f32();
                let largest = values
                    .iter()
                    .zip(q.iter())
                    .fold(0.0_f32, |largest, (value, q)| largest.max((value - f32::from(*q) * scale).abs()));
                total.max = total.max.max(f64::from(largest) * f64::from(largest));
            }
        }
        total
    }
}

fn bf16_error(values: &[f32]) -> SquaredError {
    let mut total = SquaredError { weights: values.len() as u64, ..SquaredError::default() };
    for value in values {
        let error = f64::from(*value) - f64::from(bf16::from_f32(*value).to_f32());
        total.sum += error * error;
        total.max = total.max.max(error * error);
    }
    total
}

/// Refuses the first value that BF16 cannot hold; the scale of a group that holds only such values is finite too.
fn check_finite(first_row: usize, cols: usize, values: &[f32]) -> Result<(), EncodeError> {
    // BF16's largest is 255 * 2^120; from half a step above it, f32 rounds to infinity.
    const LIMIT: f32 = f32::from_bits(0x7f7f_8000);
    // No early exit, so that the common case vectorises. A NaN is not less than the limit.
    if values.iter().fold(true, |fine, value| fine & (value.abs() < LIMIT)) {
        return Ok(());
    }
    let place = values.iter().position(|value| value.is_nan() || value.abs() >= LIMIT).unwrap_or(0);
    Err(EncodeError::NotFinite { row: first_row + place / cols, col: place % cols, found: values[place] })
}
