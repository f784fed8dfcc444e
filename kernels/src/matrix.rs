//! A view of a weight matrix in the tiled layout of [`crate::layout`], and its readers.

use crate::contract::{GROUP, RUN, RUNS};
use crate::error::KernelError;
use crate::layout::{INT4_ZERO_NIBBLE, MatrixFormat, TILE_ROWS, int4_place};
use half::bf16;

use crate::layout::matrix_bytes;

/// Bytes of one row of a group of an INT4 tile: four runs of 32 nibbles.
pub(crate) const INT4_ROW_BYTES: usize = GROUP / 2;

/// Bytes of one run of a row of an INT4 tile.
pub(crate) const INT4_RUN_BYTES: usize = INT4_ROW_BYTES / RUNS;

/// Bytes of one column of a BF16 tile, or of the scales of one group of a tile of integers.
pub(crate) const BF16_COL_BYTES: usize = TILE_ROWS * 2;

/// The nibbles of one group of an INT4 tile.
pub(crate) type Int4Group = [[u8; INT4_ROW_BYTES]; TILE_ROWS];

/// The weights of one group of an INT8 tile.
pub(crate) type Int8Group = [[u8; GROUP]; TILE_ROWS];

/// A weight matrix `[rows, cols]` = `[outputs, inputs]` in the tiled layout.
///
/// Kernels read it with unaligned loads; 64-byte alignment makes them faster.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    format: MatrixFormat,
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// A view of `bytes`, which must be exactly [`matrix_bytes`] long.
    ///
    /// # Errors
    /// `TooLarge` where the shape has no size, `Shape` where the size is another.
    pub fn new(format: MatrixFormat, rows: usize, cols: usize, bytes: &'a [u8]) -> Result<Self, KernelError> {
        let expected = matrix_bytes(format, rows, cols)
            .ok_or(KernelError::TooLarge { kernel: "matrix", what: "a matrix with no rows, no columns or too many" })?;
        crate::error::expect_len("matrix", "bytes", bytes.len(), expected)?;
        Ok(Self { format, rows, cols, bytes })
    }

    /// How elements are stored.
    pub fn format(&self) -> MatrixFormat {
        self.format
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Tiles of 16 rows, the last one padded.
    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    /// Groups of 128 columns, the last one perhaps short.
    pub fn groups(&self) -> usize {
        self.cols.div_ceil(GROUP)
    }

    /// Element as stored: the weight itself for BF16, else the unscaled integer.
    ///
    /// # Panics
    /// If `row` or `col` is out of range.
    #[inline(always)]
    pub fn element(&self, row: usize, col: usize) -> f32 {
        let (tile, lane) = (row / TILE_ROWS, row % TILE_ROWS);
        match self.format {
            MatrixFormat::Bf16 => read_bf16(self.bytes, (tile * self.cols + col) * TILE_ROWS + lane),
            MatrixFormat::Int4 => {
                let group = tile * self.groups() + col / GROUP;
                let run = (group * TILE_ROWS + lane) * RUNS + col % GROUP / RUN;
                let (byte, shift) = int4_place(col);
                let nibble = self.bytes[run * INT4_RUN_BYTES + byte] >> shift & 15;
                f32::from(nibble) - f32::from(INT4_ZERO_NIBBLE)
            }
            MatrixFormat::Int8 => {
                let group = tile * self.groups() + col / GROUP;
                f32::from(self.bytes[(group * TILE_ROWS + lane) * GROUP + col % GROUP] as i8)
            }
        }
    }

    /// The factor on a row's group of columns: its scale, 1 for BF16.
    ///
    /// # Panics
    /// If `row` or `group` is out of range.
    #[inline(always)]
    pub fn scale(&self, row: usize, group: usize) -> f32 {
        let Some(plane) = self.plane_bytes() else { return 1.0 };
        let index = (row / TILE_ROWS * self.groups() + group) * TILE_ROWS + row % TILE_ROWS;
        read_bf16(&self.bytes[plane..], index)
    }

    /// Bytes of all integers, behind which the scales lie; `None` for BF16.
    #[inline(always)]
    fn plane_bytes(&self) -> Option<usize> {
        self.format.group_bytes().map(|bytes| self.tiles() * self.groups() * bytes)
    }

    /// Weight in f32. Exact: such an integer times a BF16 scale fits an f32.
    ///
    /// # Panics
    /// If `row` or `col` is out of range.
    #[inline(always)]
    pub fn weight(&self, row: usize, col: usize) -> f32 {
        self.element(row, col) * self.scale(row, col / GROUP)
    }

    /// BF16 only: the columns `cols` of a tile, 32 bytes a column.
    #[inline(always)]
    pub(crate) fn bf16_cols(&self, tile: usize, cols: std::ops::Range<usize>) -> &'a [[u8; BF16_COL_BYTES]] {
        let start = tile * self.cols;
        let columns: &[[u8; BF16_COL_BYTES]] = bytemuck::cast_slice(self.bytes);
        &columns[start + cols.start..start + cols.end]
    }

    /// INT4 only: a tile's group, sixteen rows.
    #[inline(always)]
    pub(crate) fn int4_group(&self, tile: usize, group: usize) -> &'a Int4Group {
        let groups: &[Int4Group] = bytemuck::cast_slice(&self.bytes[..self.plane_bytes().unwrap_or(0)]);
        &groups[tile * self.groups() + group]
    }

    /// INT8 only: a tile's group, sixteen rows.
    #[inline(always)]
    pub(crate) fn int8_group(&self, tile: usize, group: usize) -> &'a Int8Group {
        let groups: &[Int8Group] = bytemuck::cast_slice(&self.bytes[..self.plane_bytes().unwrap_or(0)]);
        &groups[tile * self.groups() + group]
    }

    /// Integers only: the 16 scales of a tile's group.
    #[inline(always)]
    pub(crate) fn scales(&self, tile: usize, group: usize) -> &'a [u8; BF16_COL_BYTES] {
        let plane = self.plane_bytes().unwrap_or(0);
        let scales: &[[u8; BF16_COL_BYTES]] = bytemuck::cast_slice(&self.bytes[plane..]);
        &scales[tile * self.groups() + group]
    }
}

/// Element `index` of little-endian BF16 bytes.
#[inline(always)]
pub(crate) fn read_bf16(bytes: &[u8], index: usize) -> f32 {
    bf16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::layout::INT4_GROUP_BYTES;

    #[test]
    fn a_view_refuses_the_wrong_size() {
        let error = Matrix::new(MatrixFormat::Bf16, 1, 1, &[0; 31]).unwrap_err();
        assert_eq!(error.to_string(), "matrix: bytes is 31, expected 32");
        assert!(Matrix::new(MatrixFormat::Int4, 0, 1, &[]).is_err());
    }

    #[test]
    fn readers_find_each_element_where_the_layout_says() {
        // 17 x 130: a second tile of one row, a second group of two columns.
        let mut bytes = vec![0x88u8; matrix_bytes(MatrixFormat::Int4, 17, 130).unwrap()];
        let group = 3; // tile 1, group 1: columns 128 and 129 of row 16
        // Low nibble of the word's low half 1 = -7, of its high half 15 = +7.
        bytes[group * INT4_GROUP_BYTES] = 0x81;
        bytes[group * INT4_GROUP_BYTES + 2] = 0x8f;
        let plane = 4 * INT4_GROUP_BYTES;
        bytes[plane + group * 32..plane + group * 32 + 2].copy_from_slice(&bf16::from_f32(0.5).to_le_bytes());
        let matrix = Matrix::new(MatrixFormat::Int4, 17, 130, &bytes).unwrap();
        assert_eq!((matrix.element(16, 128), matrix.element(16, 129)), (-7.0, 7.0));
        assert_eq!((matrix.weight(16, 128), matrix.weight(16, 129)), (-3.5, 3.5));
        assert_eq!(matrix.element(0, 0), 0.0);

        let mut bytes = vec![0u8; matrix_bytes(MatrixFormat::Bf16, 17, 130).unwrap()];
        let index = (130 + 129) * 16; // tile 1, column 129, lane 0
        bytes[2 * index..2 * index + 2].copy_from_slice(&bf16::from_f32(-1.25).to_le_bytes());
        let matrix = Matrix::new(MatrixFormat::Bf16, 17, 130, &bytes).unwrap();
        assert_eq!(matrix.weight(16, 129), -1.25);
        assert_eq!(matrix.weight(0, 129), 0.0);
    }
}
