//! BF16 tiles: `[row tile][col][16 rows]`.

use half::bf16;

use super::{LayoutError, MatrixFormat, TILE_ROWS, check_length, checked_bytes};

/// Packs `values` `[rows, cols]`, row-major, rounding each to BF16 (nearest, ties to even; exact for BF16 sources).
///
/// # Errors
/// A shape without a size, or a slice of the wrong length.
pub fn pack_bf16(values: &[f32], rows: usize, cols: usize, out: &mut [u8]) -> Result<(), LayoutError> {
    let bytes = checked_bytes(MatrixFormat::Bf16, rows, cols)?;
    check_length("values", values.len(), rows * cols, rows, cols)?;
    check_length("packed matrix", out.len(), bytes, rows, cols)?;
    let tiles = values.chunks(TILE_ROWS * cols).zip(out.chunks_exact_mut(TILE_ROWS * cols * 2));
    for (tile, out) in tiles {
        pack_bf16_tile(tile, cols, out)?;
    }
    Ok(())
}

/// Packs one row tile: `values` is `[n, cols]` with n of 1..=16, `out` is `cols * 32` bytes. For callers that stream or
/// spread the tiles of a large matrix.
///
/// # Errors
/// A slice of the wrong length.
pub fn pack_bf16_tile(values: &[f32], cols: usize, out: &mut [u8]) -> Result<(), LayoutError> {
    let rows = tile_rows(values.len(), cols, "values")?;
    check_length("packed tile", out.len(), checked_bytes(MatrixFormat::Bf16, TILE_ROWS, cols)?, rows, cols)?;
    for (col, column) in out.chunks_exact_mut(TILE_ROWS * 2).enumerate() {
        for (row, element) in column.chunks_exact_mut(2).enumerate() {
            let value = if row < rows { bf16::from_f32(values[row * cols + col]) } else { bf16::ZERO };
            element.copy_from_slice(&value.to_le_bytes());
        }
    }
    Ok(())
}

/// Unpacks a matrix into `out` `[rows, cols]`, row-major; exact.
///
/// # Errors
/// A shape without a size, or a slice of the wrong length.
pub fn unpack_bf16(bytes: &[u8], rows: usize, cols: usize, out: &mut [f32]) -> Result<(), LayoutError> {
    check_length("packed matrix", bytes.len(), checked_bytes(MatrixFormat::Bf16, rows, cols)?, rows, cols)?;
    check_length("values", out.len(), rows * cols, rows, cols)?;
    for (tile, out) in bytes.chunks_exact(TILE_ROWS * cols * 2).zip(out.chunks_mut(TILE_ROWS * cols)) {
        for (row, out) in out.chunks_exact_mut(cols).enumerate() {
            for (col, out) in out.iter_mut().enumerate() {
                *out = element(tile, row, col).to_f32();
            }
        }
    }
    Ok(())
}

/// Checks that every element is finite and all padding is `+0.0`.
///
/// # Errors
/// The first place where that does not hold; a shape without a size; a slice of the wrong length.
pub fn validate_bf16(bytes: &[u8], rows: usize, cols: usize) -> Result<(), LayoutError> {
    check_length("packed matrix", bytes.len(), checked_bytes(MatrixFormat::Bf16, rows, cols)?, rows, cols)?;
    for (tile_index, tile) in bytes.chunks_exact(TILE_ROWS * cols * 2).enumerate() {
        for col in 0..cols {
            for tile_row in 0..TILE_ROWS {
                let row = tile_index * TILE_ROWS + tile_row;
                let value = element(tile, tile_row, col);
                if row >= rows && value.to_bits() != 0 {
                    return Err(LayoutError::Padding { row, col, found: value.to_f32() });
                }
                if !value.is_finite() {
                    return Err(LayoutError::Weight { row, col, found: value.to_f32() });
                }
            }
        }
    }
    Ok(())
}

fn element(tile: &[u8], row: usize, col: usize) -> bf16 {
    let at = (col * TILE_ROWS + row) * 2;
    bf16::from_le_bytes([tile[at], tile[at + 1]])
}

/// Rows in a tile of `len` elements; an error unless they are 1..=16 whole rows.
pub(super) fn tile_rows(len: usize, cols: usize, what: &'static str) -> Result<usize, LayoutError> {
    let rows = len.checked_div(cols).unwrap_or(0);
    if (1..=TILE_ROWS).contains(&rows) && len.is_multiple_of(cols) {
        return Ok(rows);
    }
    Err(LayoutError::Length { what, found: len, expected: TILE_ROWS.saturating_mul(cols), rows: TILE_ROWS, cols })
}
