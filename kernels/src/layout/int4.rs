//! INT4 tiles: nibbles `[row tile][group][16 rows][run: 4][16 bytes]`, then scales `[row tile][group][16 rows]`.

use half::bf16;

use super::bf16::tile_rows;
use super::{
    GROUP_COLS, GROUP_SCALE_BYTES, INT4_GROUP_BYTES, INT4_MAX, INT4_ZERO_NIBBLE, LayoutError, MatrixFormat, RUN_COLS,
    TILE_ROWS, check_length, checked_bytes, col_groups, int4_place, int4_shift, row_tiles,
};

/// Bytes of one row's nibbles in one run.
const RUN_BYTES: usize = RUN_COLS / 2;

/// Bytes of one row's nibbles in one group.
const ROW_BYTES: usize = GROUP_COLS / 2;

/// Splits a packed matrix into its nibbles and its scales (BF16, little-endian).
///
/// # Errors
/// A shape without a size, or bytes of the wrong length.
pub fn int4_planes(bytes: &[u8], rows: usize, cols: usize) -> Result<(&[u8], &[u8]), LayoutError> {
    check_length("packed matrix", bytes.len(), checked_bytes(MatrixFormat::Int4, rows, cols)?, rows, cols)?;
    Ok(bytes.split_at(row_tiles(rows) * col_groups(cols) * INT4_GROUP_BYTES))
}

/// [`int4_planes`], to be written.
///
/// # Errors
/// As [`int4_planes`].
pub fn int4_planes_mut(bytes: &mut [u8], rows: usize, cols: usize) -> Result<(&mut [u8], &mut [u8]), LayoutError> {
    check_length("packed matrix", bytes.len(), checked_bytes(MatrixFormat::Int4, rows, cols)?, rows, cols)?;
    Ok(bytes.split_at_mut(row_tiles(rows) * col_groups(cols) * INT4_GROUP_BYTES))
}

/// Packs `q` `[rows, cols]` and `scales` `[rows, ceil(cols / 128)]`, both row-major.
///
/// # Errors
/// A shape without a size, a slice of the wrong length, a `q` outside −7..=7, a scale that is negative or not finite.
pub fn pack_int4(q: &[i8], scales: &[bf16], rows: usize, cols: usize, out: &mut [u8]) -> Result<(), LayoutError> {
    let planes = int4_planes_mut(out, rows, cols)?;
    pack_tiles((q, scales), (rows, cols), planes, INT4_GROUP_BYTES, pack_int4_tile)
}

/// Packs one row tile of `cols` columns: quantised weights and scales, to packed weights and scales.
type PackTile = fn(&[i8], &[bf16], usize, &mut [u8], &mut [u8]) -> Result<(), LayoutError>;

/// Packs a matrix tile by tile into its two planes; a group of a tile takes `group_bytes` of the first.
pub(super) fn pack_tiles(
    (q, scales): (&[i8], &[bf16]),
    (rows, cols): (usize, usize),
    (weight_bytes, scale_bytes): (&mut [u8], &mut [u8]),
    group_bytes: usize,
    pack_tile: PackTile,
) -> Result<(), LayoutError> {
    let groups = col_groups(cols);
    check_length("quantised weights", q.len(), rows * cols, rows, cols)?;
    check_length("scales", scales.len(), rows * groups, rows, cols)?;
    let q_tiles = q.chunks(TILE_ROWS * cols).zip(scales.chunks(TILE_ROWS * groups));
    let weight_tiles = weight_bytes.chunks_exact_mut(groups * group_bytes);
    let out_tiles = weight_tiles.zip(scale_bytes.chunks_exact_mut(groups * GROUP_SCALE_BYTES));
    for (tile, ((q, scales), (weight_bytes, scale_bytes))) in q_tiles.zip(out_tiles).enumerate() {
        pack_tile(q, scales, cols, weight_bytes, scale_bytes).map_err(|error| in_tile(error, tile))?;
    }
    Ok(())
}

/// Checks the scales of a tile's row, `[groups]`, and puts them into the tile's, `[groups, 16 rows]`.
pub(super) fn pack_scales(scales: &[bf16], row: usize, scale_bytes: &mut [u8]) -> Result<(), LayoutError> {
    for (group, scale) in scales.iter().enumerate() {
        check_scale(*scale, row, group)?;
        let at = group * GROUP_SCALE_BYTES + row * 2;
        scale_bytes[at..at + 2].copy_from_slice(&scale.to_le_bytes());
    }
    Ok(())
}

/// Packs one row tile: `q` is `[n, cols]` and `scales` `[n, groups]` with n of 1..=16; `nibbles` is `groups * 1024` bytes,
/// `scale_bytes` `groups * 32`. For callers that stream or spread the tiles of a large matrix.
///
/// # Errors
/// As [`pack_int4`]; rows are counted from the tile's first.
pub fn pack_int4_tile(
    q: &[i8],
    scales: &[bf16],
    cols: usize,
    nibbles: &mut [u8],
    scale_bytes: &mut [u8],
) -> Result<(), LayoutError> {
    let rows = tile_rows(q.len(), cols, "quantised weights")?;
    let groups = col_groups(cols);
    let shape = || LayoutError::Shape { format: MatrixFormat::Int4, rows, cols };
    let nibble_len = groups.checked_mul(INT4_GROUP_BYTES).ok_or_else(shape)?;
    check_length("scales", scales.len(), rows * groups, rows, cols)?;
    check_length("packed tile", nibbles.len(), nibble_len, rows, cols)?;
    check_length("packed scales", scale_bytes.len(), groups * GROUP_SCALE_BYTES, rows, cols)?;
    // Padding is q = 0 with a scale of +0.0.
    nibbles.fill(INT4_ZERO_NIBBLE | INT4_ZERO_NIBBLE << 4);
    scale_bytes.fill(0);
    for (row, (q, scales)) in q.chunks_exact(cols).zip(scales.chunks_exact(groups)).enumerate() {
        pack_scales(scales, row, scale_bytes)?;
        for (group, q) in q.chunks(GROUP_COLS).enumerate() {
            let at = (group * TILE_ROWS + row) * ROW_BYTES;
            for (q, run) in q.chunks(RUN_COLS).zip(nibbles[at..at + ROW_BYTES].chunks_exact_mut(RUN_BYTES)) {
                pack_run(q, run);
            }
            if let Some(place) = q.iter().position(|q| !(-INT4_MAX..=INT4_MAX).contains(q)) {
                return Err(LayoutError::Quantised {
                    row,
                    col: group * GROUP_COLS + place,
                    found: q[place],
                    most: INT4_MAX,
                });
            }
        }
    }
    Ok(())
}

/// Unpacks a matrix into `out` `[rows, cols]`, row-major, as `q * scale` in f32 (exact unless it is subnormal or overflows).
///
/// # Errors
/// A shape without a size, or a slice of the wrong length. Nibbles are not checked: see [`validate_int4`].
pub fn unpack_int4(bytes: &[u8], rows: usize, cols: usize, out: &mut [f32]) -> Result<(), LayoutError> {
    let (nibbles, scales) = int4_planes(bytes, rows, cols)?;
    check_length("values", out.len(), rows * cols, rows, cols)?;
    let groups = col_groups(cols);
    for (row, out) in out.chunks_exact_mut(cols).enumerate() {
        for (group, out) in out.chunks_mut(GROUP_COLS).enumerate() {
            let scale = scale(scales, groups, row, group).to_f32();
            for (k, out) in out.iter_mut().enumerate() {
                let q = i16::from(stored(nibbles, groups, row, group * GROUP_COLS + k)) - i16::from(INT4_ZERO_NIBBLE);
                *out = f32::from(q) * scale;
            }
        }
    }
    Ok(())
}

/// Checks that every nibble is 1..=15, all padding is `q = 0`, and every scale is finite and not negative.
///
/// # Errors
/// The first place where that does not hold; a shape without a size; a slice of the wrong length.
pub fn validate_int4(bytes: &[u8], rows: usize, cols: usize) -> Result<(), LayoutError> {
    let (nibbles, scales) = int4_planes(bytes, rows, cols)?;
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
            let found = stored(nibbles, groups, row, col);
            let q = found as i8 - INT4_ZERO_NIBBLE as i8;
            if found == 0 {
                return Err(LayoutError::Quantised { row, col, found: q, most: INT4_MAX });
            }
            if (row >= rows || col >= cols) && q != 0 {
                return Err(LayoutError::Padding { row, col, found: f32::from(q) });
            }
        }
    }
    Ok(())
}

/// Up to 32 columns of a row; what they do not fill is `q = 0`.
fn pack_run(q: &[i8], run: &mut [u8]) {
    for (q, word) in q.chunks(8).zip(run.chunks_exact_mut(4)) {
        let mut columns = [0; 8];
        columns[..q.len()].copy_from_slice(q);
        let nibbles = columns.iter().enumerate().map(|(col, &q)| u32::from(nibble(q)) << int4_shift(col));
        word.copy_from_slice(&nibbles.sum::<u32>().to_le_bytes());
    }
}

fn nibble(q: i8) -> u8 {
    q.wrapping_add(INT4_ZERO_NIBBLE as i8) as u8 & 15
}

/// The nibble of one weight, padding included.
fn stored(nibbles: &[u8], groups: usize, row: usize, col: usize) -> u8 {
    let group = row / TILE_ROWS * groups + col / GROUP_COLS;
    let (byte, shift) = int4_place(col);
    let at = (group * TILE_ROWS + row % TILE_ROWS) * ROW_BYTES + col % GROUP_COLS / RUN_COLS * RUN_BYTES + byte;
    nibbles[at] >> shift & 15
}

pub(super) fn scale(scales: &[u8], groups: usize, row: usize, group: usize) -> bf16 {
    let at = ((row / TILE_ROWS * groups + group) * TILE_ROWS + row % TILE_ROWS) * 2;
    bf16::from_le_bytes([scales[at], scales[at + 1]])
}

pub(super) fn check_scale(scale: bf16, row: usize, group: usize) -> Result<(), LayoutError> {
    if scale.is_finite() && scale.is_sign_positive() {
        Ok(())
    } else {
        Err(LayoutError::Scale { row, group, found: scale.to_f32() })
    }
}

/// Turns a row of a tile into a row of the matrix.
fn in_tile(error: LayoutError, tile: usize) -> LayoutError {
    match error {
        LayoutError::Quantised { row, col, found, most } => {
            LayoutError::Quantised { row: row + tile * TILE_ROWS, col, found, most }
        }
        LayoutError::Scale { row, group, found } => LayoutError::Scale { row: row + tile * TILE_ROWS, group, found },
        other => other,
    }
}
