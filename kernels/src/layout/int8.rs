//! INT8 tiles: bytes `[row tile][group][16 rows][128]`, then scales `[row tile][group][16 rows]`.

use half::bf16;

use super::bf16::tile_rows;
use super::int4::{check_scale, pack_scales, pack_tiles, scale};
use super::{
    GROUP_COLS, GROUP_SCALE_BYTES, INT8_GROUP_BYTES, INT8_MAX, LayoutError, MatrixFormat, TILE_ROWS, check_length,
    checked_bytes, col_groups, row_tiles,
};

/// Splits a packed matrix into its bytes of weights and its scales (BF16, little-endian).
///
/// # Errors
/// A shape without a size, or bytes of the wrong length.
pub fn int8_planes(bytes: &[u8], rows: usize, cols: usize) -> Result<(&[u8], &[u8]), LayoutError> {
    check_length("packed matrix", bytes.len(), checked_bytes(MatrixFormat::Int8, rows, cols)?, rows, cols)?;
    Ok(bytes.split_at(row_tiles(rows) * col_groups(cols) * INT8_GROUP_BYTES))
}

/// [`int8_planes`], to be written.
///
/// # Errors
/// As [`int8_planes`].
pub fn int8_planes_mut(bytes: &mut [u8], rows: usize, cols: usize) -> Result<(&mut [u8], &mut [u8]), LayoutError> {
    check_length("packed matrix", bytes.len(), checked_bytes(MatrixFormat::Int8, rows, cols)?, rows, cols)?;
    Ok(bytes.split_at_mut(row_tiles(rows) * col_groups(cols) * INT8_GROUP_BYTES))
}

/// Packs `q` `[rows, cols]` and `scales` `[rows, ceil(cols / 128)]`, both row-major.
///
/// # Errors
/// A shape without a size, a slice of the wrong length, a `q` of −128, a scale that is negative or not finite.
pub fn pack_int8(q: &[i8], scales: &[bf16], rows: usize, cols: usize, out: &mut [u8]) -> Result<(), LayoutError> {
    let planes = int8_planes_mut(out, rows, cols)?;
    pack_tiles((q, scales), (rows, cols), planes, INT8_GROUP_BYTES, pack_int8_tile)
}

/// Packs one row tile: `q` is `[n, cols]` and `scales` `[n, groups]` with n of 1..=16; `bytes` is `groups * 2048` bytes,
/// `scale_bytes` `groups * 32`. For callers that stream or spread the tiles of a large matrix.
///
/// # Errors
/// As [`pack_int8`]; rows are counted from the tile's first.
pub fn pack_int8_tile(
    q: &[i8],
    scales: &[bf16],
    cols: usize,
    bytes: &mut [u8],
    scale_bytes: &mut [u8],
) -> Result<(), LayoutError> {
    let rows = tile_rows(q.len(), cols, "quantised weights")?;
    let groups = col_groups(cols);
    let shape = || LayoutError::Shape { format: MatrixFormat::Int8, rows, cols };
    let len = groups.checked_mul(INT8_GROUP_BYTES).ok_or_else(shape)?;
    check_length("scales", scales.len(), rows * groups, rows, cols)?;
    check_length("packed tile", bytes.len(), len, rows, cols)?;
    check_length("packed scales", scale_bytes.len(), groups * GROUP_SCALE_BYTES, rows, cols)?;
    // Padding is q = 0 with a scale of +0.0.
    bytes.fill(0);
    scale_bytes.fill(0);
    for (row, (q, scales)) in q.chunks_exact(cols).zip(scales.chunks_exact(groups)).enumerate() {
        pack_scales(scales, row, scale_bytes)?;
        for (group, q) in q.chunks(GROUP_COLS).enumerate() {
            if let Some(place) = q.iter().position(|&q| q < -INT8_MAX) {
                let (col, found) = (group * GROUP_COLS + place, q[place]);
                return Err(LayoutError::Quantised { row, col, found, most: INT8_MAX });
            }
            let at = (group * TILE_ROWS + row) * GROUP_COLS;
            bytes[at..at + q.len()].copy_from_slice(bytemuck::cast_slice(q));
        }
    }
    Ok(())
}

/// Unpacks a matrix into `out` `[rows, cols]`, row-major, as `q * scale` in f32 (exact unless it is subnormal or overflows).
///
/// # Errors
/// A shape without a size, or a slice of the wrong length. Weights are not checked: see [`validate_int8`].
pub fn unpack_int8(bytes: &[u8], rows: usize, cols: usize, out: &mut [f32]) -> Result<(), LayoutError> {
    let (bytes, scales) = int8_planes(bytes, rows, cols)?;
    check_length("values", out.len(), rows * cols, rows, cols)?;
    let groups = col_groups(cols);
    for (row, out) in out.chunks_exact_mut(cols).enumerate() {
        for (group, out) in out.chunks_mut(GROUP_COLS).enumerate() {
            let scale = scale(scales, groups, row, group).to_f32();
            for (k, out) in out.iter_mut().enumerate() {
                *out = f32::from(stored(bytes, groups, row, group * GROUP_COLS + k)) * scale;
            }
        }
    }
    Ok(())
}

/// Checks that no weight is −128, all padding is `q = 0`, and every scale is finite and not negative.
///
/// # Errors
/// The first place where that does not hold; a shape without a size; a slice of the wrong length.
pub fn validate_int8(bytes: &[u8], rows: usize, cols: usize) -> Result<(), LayoutError> {
    let (bytes, scales) = int8_planes(bytes, rows, cols)?;
    let groups = col_groups(cols);
    for row in 0..row_tiles(rows) * TILE_ROWS {
        for group in 0..groups {
            let found = scale(scales, groups, row, group);
            check_scale(found, row, group)?;
            if row >= rows && found.to_bits() != 0 {
                return Err(LayoutError::Padding { row, col: group * GROUP_COLS, found: found.to_f32() });
            }
        }
        for col in 0..groups * GROUP_COLS {
            let found = stored(bytes, groups, row, col);
            if found < -INT8_MAX {
                return Err(LayoutError::Quantised { row, col, found, most: INT8_MAX });
            }
            if (row >= rows || col >= cols) && found != 0 {
                return Err(LayoutError::Padding { row, col, found: f32::from(found) });
            }
        }
    }
    Ok(())
}

/// One weight, padding included.
fn stored(bytes: &[u8], groups: usize, row: usize, col: usize) -> i8 {
    let group = row / TILE_ROWS * groups + col / GROUP_COLS;
    bytes[(group * TILE_ROWS + row % TILE_ROWS) * GROUP_COLS + col % GROUP_COLS] as i8
}
