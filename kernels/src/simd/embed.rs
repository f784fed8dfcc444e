use super::parallel::for_each_rows;
use crate::contract::{GROUP, RUN};
use crate::layout::{INT4_ZERO_NIBBLE, MatrixFormat, TILE_ROWS};
use crate::matrix::read_bf16;
use crate::{KernelError, Matrix, check};

/// [`crate::twin::embed`], fast.
///
/// # Errors
/// As the twin.
pub fn embed(ids: &[u32], table: Matrix<'_>, out: &mut [f32]) -> Result<(), KernelError> {
    check::embed(ids, &table, out)?;
    let hidden = table.cols();
    for_each_rows(hidden, 14, out, |first, out| {
        for (row, &id) in out.chunks_exact_mut(hidden).zip(&ids[first..]) {
            match table.format() {
                MatrixFormat::Bf16 => bf16_row(&table, id as usize, row),
                MatrixFormat::Int4 => int4_row(&table, id as usize, row),
            }
        }
    });
    Ok(())
}

/// One lane of every column of a tile.
fn bf16_row(table: &Matrix<'_>, id: usize, out: &mut [f32]) {
    let lane = id % TILE_ROWS;
    let cols = table.bf16_cols(id / TILE_ROWS, 0..table.cols());
    for (value, col) in out.iter_mut().zip(cols) {
        *value = read_bf16(col, lane);
    }
}

/// Sixteen bytes of every run of a tile.
fn int4_row(table: &Matrix<'_>, id: usize, out: &mut [f32]) {
    let (tile, lane) = (id / TILE_ROWS, id % TILE_ROWS);
    for (group, out) in out.chunks_mut(GROUP).enumerate() {
        let scale = read_bf16(table.int4_scales(tile, group), lane);
        let value = |nibble: u8| (f32::from(nibble) - f32::from(INT4_ZERO_NIBBLE)) * scale;
        for (run, out) in table.int4_group(tile, group).iter().zip(out.chunks_mut(RUN)) {
            for (pair, &byte) in out.chunks_mut(2).zip(&run[lane * RUN / 2..]) {
                pair[0] = value(byte & 15);
                if let Some(second) = pair.get_mut(1) {
                    *second = value(byte >> 4);
                }
            }
        }
    }
}
