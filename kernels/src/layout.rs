//! How a weight matrix lies in memory: one layout for the expert cache, the host device and CUDA.
//!
//! A matrix is `[rows, cols]` = `[outputs, inputs]`, as in a Hugging Face checkpoint. Rows are cut into tiles of
//! [`TILE_ROWS`] (the last tile is padded), so that a vector register or a warp holds one column of a tile.
//!
//! - **BF16**: `[row tile][col][16 rows]` of bf16. Columns are not padded; rows past the end are `+0.0`.
//! - **INT4**: `[row tile][group of 128 cols][16 rows][run of 32: 4][16 bytes]`. A run is four words of 32 bits, a word eight neighbouring
//!   columns; its nibbles, from the lowest, hold columns 0 2 4 6 1 3 5 7 of those, so that the halves of a word hold neighbours in the
//!   same places ([`int4_shift`]). A nibble holds `q + 8` for `q` in −7..=7 (so 0 never occurs). Padding in rows and columns is `q = 0`.
//!   The scale plane `[row tile][group][16 rows]` of bf16 follows; scales of padding rows are `+0.0`.
//! - **INT8**: `[row tile][group of 128 cols][16 rows][128 bytes]`, a byte `q` in −127..=127 in two's complement, columns in order; padding
//!   and scale plane as for INT4.
//! - **F32**: `[rows][cols]`, for vectors, an expert's biases and tables only.
//!
//! Multi-byte values are little-endian. A weight is `q * scale`; a scale is finite and not negative.
//!
//! Files: this one holds sizes and offsets; `layout/bf16.rs`, `layout/int4.rs` and `layout/int8.rs` pack, unpack and validate.

mod bf16;
mod int4;
mod int8;

use std::ops::Range;

pub use self::bf16::{pack_bf16, pack_bf16_tile, unpack_bf16, validate_bf16};
pub use self::int4::{int4_planes, int4_planes_mut, pack_int4, pack_int4_tile, unpack_int4, validate_int4};
pub use self::int8::{int8_planes, int8_planes_mut, pack_int8, pack_int8_tile, unpack_int8, validate_int8};

/// Rows in one tile.
pub const TILE_ROWS: usize = 16;

/// Columns that share one scale in INT4 and INT8; the last group of a row may hold fewer.
pub const GROUP_COLS: usize = 128;

/// Columns in one run: the part of a group that one accumulator of the group sum takes.
pub const RUN_COLS: usize = 32;

/// Bytes of INT4 nibbles in one row tile's group: 16 rows × 4 runs × 16 bytes.
pub const INT4_GROUP_BYTES: usize = TILE_ROWS * GROUP_COLS / 2;

/// Bytes of INT8 weights in one row tile's group: 16 rows × 128.
pub const INT8_GROUP_BYTES: usize = TILE_ROWS * GROUP_COLS;

/// Bytes of BF16 scales in one row tile's group.
pub const GROUP_SCALE_BYTES: usize = TILE_ROWS * 2;

/// What a nibble holds for `q = 0`.
pub const INT4_ZERO_NIBBLE: u8 = 8;

/// The largest magnitude of a weight in INT4.
pub const INT4_MAX: i8 = 7;

/// The largest magnitude of a weight in INT8.
pub const INT8_MAX: i8 = 127;

/// Every matrix of an expert starts at a multiple of this, and an expert's bytes are padded to it.
pub const EXPERT_ALIGN: usize = 256;

/// Version of the tile layouts, written into every file that holds them.
pub const LAYOUT_VERSION: u32 = 2;

/// How far a column's INT4 nibble is shifted left in its little-endian word, word `col % 32 / 8` of the run.
pub const fn int4_shift(col: usize) -> usize {
    col % 2 * 16 + col % 8 / 2 * 4
}

/// Byte of a run that holds a column's INT4 nibble, and the nibble's shift in it: 0 or 4.
pub(crate) const fn int4_place(col: usize) -> (usize, usize) {
    let shift = int4_shift(col);
    (col % RUN_COLS / 8 * 4 + shift / 8, shift % 8)
}

/// How the elements of a matrix are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatrixFormat {
    /// Brain floating point, 16 bits an element.
    Bf16,
    /// Symmetric 4-bit integers, one BF16 scale for each row and group of 128 columns.
    Int4,
    /// Symmetric 8-bit integers, scaled likewise.
    Int8,
}

impl MatrixFormat {
    /// Every format.
    pub const ALL: [Self; 3] = [Self::Bf16, Self::Int4, Self::Int8];

    /// Bytes of integers in a row tile's group of 128 columns; `None` where there are no groups.
    pub fn group_bytes(self) -> Option<usize> {
        match self {
            Self::Bf16 => None,
            Self::Int4 => Some(INT4_GROUP_BYTES),
            Self::Int8 => Some(INT8_GROUP_BYTES),
        }
    }

    /// The name used in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Int4 => "int4",
            Self::Int8 => "int8",
        }
    }
}

/// Why bytes are not a valid matrix, or values cannot become one.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A dimension is 0, or the size does not fit the address space.
    #[error("a {} matrix of {rows} x {cols} has no size: dimensions must be at least 1 and the bytes must fit in memory", format.name())]
    Shape {
        /// Format asked for.
        format: MatrixFormat,
        /// Outputs.
        rows: usize,
        /// Inputs.
        cols: usize,
    },
    /// A slice has the wrong length.
    #[error("{what} has {found} elements, expected {expected} for {rows} x {cols}")]
    Length {
        /// Which slice.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The length that the shape calls for.
        expected: usize,
        /// Outputs.
        rows: usize,
        /// Inputs.
        cols: usize,
    },
    /// A quantised weight that is larger than its format allows.
    #[error("row {row}, column {col}: quantised weight {found}, expected -{most}..={most}")]
    Quantised {
        /// Row of the matrix.
        row: usize,
        /// Column of the matrix.
        col: usize,
        /// The value found there.
        found: i8,
        /// The largest magnitude of the format.
        most: i8,
    },
    /// Padding that is not zero.
    #[error("padding at row {row}, column {col}: found {found}, expected 0")]
    Padding {
        /// Row of the padded matrix.
        row: usize,
        /// Column of the padded matrix.
        col: usize,
        /// The value found there.
        found: f32,
    },
    /// An element that is infinite or NaN.
    #[error("row {row}, column {col}: weight {found} is not finite")]
    Weight {
        /// Row of the matrix.
        row: usize,
        /// Column of the matrix.
        col: usize,
        /// The value found there.
        found: f32,
    },
    /// A scale that is infinite, NaN or negative.
    #[error("row {row}, group {group}: scale {found}, expected a finite number that is not negative")]
    Scale {
        /// Row of the matrix.
        row: usize,
        /// Group of 128 columns.
        group: usize,
        /// The value found there.
        found: f32,
    },
}

/// Row tiles in a matrix of `rows`.
pub fn row_tiles(rows: usize) -> usize {
    rows.div_ceil(TILE_ROWS)
}

/// Scale groups in a row of `cols`.
pub fn col_groups(cols: usize) -> usize {
    cols.div_ceil(GROUP_COLS)
}

/// Bytes of a packed matrix `[rows, cols]`, padding included; `None` for an empty matrix or one whose size overflows.
pub fn matrix_bytes(format: MatrixFormat, rows: usize, cols: usize) -> Option<usize> {
    if rows == 0 || cols == 0 {
        return None;
    }
    let (units, unit_bytes) = match format.group_bytes() {
        None => (cols, TILE_ROWS * 2),
        Some(bytes) => (col_groups(cols), bytes + GROUP_SCALE_BYTES),
    };
    let bytes = row_tiles(rows).checked_mul(units)?.checked_mul(unit_bytes)?;
    // Rust slices end at isize::MAX bytes.
    isize::try_from(bytes).ok().map(|_| bytes)
}

/// Where an expert's parts lie in its bytes: gate, up, down, and behind them the biases of the three where it has some, each
/// at a multiple of [`EXPERT_ALIGN`]. A bias is f32, one for each row, unpadded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExpertLayout {
    /// How all three are stored.
    pub format: MatrixFormat,
    /// Inputs of gate and up, outputs of down.
    pub hidden_size: usize,
    /// Outputs of gate and up, inputs of down.
    pub moe_intermediate_size: usize,
    /// Byte offset of gate, `[moe_intermediate_size, hidden_size]`; always 0.
    pub gate_offset: usize,
    /// Byte offset of up, `[moe_intermediate_size, hidden_size]`.
    pub up_offset: usize,
    /// Byte offset of down, `[hidden_size, moe_intermediate_size]`.
    pub down_offset: usize,
    /// Byte offsets of the biases of gate, up and down, where there are biases.
    pub bias_offsets: Option<[usize; 3]>,
    /// Bytes of the whole expert, a multiple of [`EXPERT_ALIGN`]; bytes between and after the parts are 0.
    pub bytes: usize,
}

impl ExpertLayout {
    /// The layout for these sizes; `None` where a size is 0 or the bytes overflow.
    pub fn new(format: MatrixFormat, hidden_size: usize, moe_intermediate_size: usize, biases: bool) -> Option<Self> {
        let gate_bytes = matrix_bytes(format, moe_intermediate_size, hidden_size)?;
        let down_bytes = matrix_bytes(format, hidden_size, moe_intermediate_size)?;
        let up_offset = gate_bytes.checked_next_multiple_of(EXPERT_ALIGN)?;
        let down_offset = up_offset.checked_mul(2)?;
        let mut bytes = down_offset.checked_add(down_bytes)?.checked_next_multiple_of(EXPERT_ALIGN)?;
        let mut bias_offsets = None;
        if biases {
            let mut offsets = [0; 3];
            let rows = [moe_intermediate_size, moe_intermediate_size, hidden_size];
            for (offset, rows) in offsets.iter_mut().zip(rows) {
                *offset = bytes;
                let end = bytes.checked_add(rows.checked_mul(size_of::<f32>())?)?;
                bytes = end.checked_next_multiple_of(EXPERT_ALIGN)?;
            }
            bias_offsets = Some(offsets);
        }
        isize::try_from(bytes).ok()?;
        Some(Self {
            format,
            hidden_size,
            moe_intermediate_size,
            gate_offset: 0,
            up_offset,
            down_offset,
            bias_offsets,
            bytes,
        })
    }

    /// Byte range of gate in the expert.
    pub fn gate(&self) -> Range<usize> {
        self.range(self.gate_offset, self.moe_intermediate_size, self.hidden_size)
    }

    /// Byte range of up in the expert.
    pub fn up(&self) -> Range<usize> {
        self.range(self.up_offset, self.moe_intermediate_size, self.hidden_size)
    }

    /// Byte range of down in the expert.
    pub fn down(&self) -> Range<usize> {
        self.range(self.down_offset, self.hidden_size, self.moe_intermediate_size)
    }

    /// Byte ranges of the biases of gate, up and down, where there are biases.
    pub fn biases(&self) -> Option<[Range<usize>; 3]> {
        let rows = [self.moe_intermediate_size, self.moe_intermediate_size, self.hidden_size];
        let range =
            |part: usize, offset: usize| offset..offset.saturating_add(rows[part].saturating_mul(size_of::<f32>()));
        self.bias_offsets.map(|[gate, up, down]| [range(0, gate), range(1, up), range(2, down)])
    }

    fn range(&self, offset: usize, rows: usize, cols: usize) -> Range<usize> {
        // `new` has checked both; fields changed by hand give an empty range.
        offset..offset.saturating_add(matrix_bytes(self.format, rows, cols).unwrap_or(0))
    }
}

/// The packed size, or the error that says why there is none.
fn checked_bytes(format: MatrixFormat, rows: usize, cols: usize) -> Result<usize, LayoutError> {
    matrix_bytes(format, rows, cols).ok_or(LayoutError::Shape { format, rows, cols })
}

/// Refuses a slice whose length is not the one that the shape calls for.
fn check_length(
    what: &'static str,
    found: usize,
    expected: usize,
    rows: usize,
    cols: usize,
) -> Result<(), LayoutError> {
    if found == expected { Ok(()) } else { Err(LayoutError::Length { what, found, expected, rows, cols }) }
}

#[cfg(test)]
mod tests;
