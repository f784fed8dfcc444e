use super::parallel::for_each_rows;
use crate::contract::GROUP;
use crate::layout::{INT4_ZERO_NIBBLE, MatrixFormat, TILE_ROWS, int4_shift};
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
                MatrixFormat::Int8 => int8_row(&table, id as usize, row),
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

/// One row of every group of a tile.
fn int8_row(table: &Matrix<'_>, id: usize, out: &mut [f32]) {
    let (tile, lane) = (id / TILE_ROWS, id % TILE_ROWS);
    for (group, out) in out.chunks_mut(GROUP).enumerate() {
        let scale = read_bf16(table.scales(tile, group), lane);
        for (value, &byte) in out.iter_mut().zip(&table.int8_group(tile, group)[lane]) {
            *value = f32::from(byte as i8) * scale;
        }
    }
}

/// One row of every group of a tile.
fn int4_row(table: &Matrix<'_>, id: usize, out: &mut [f32]) {
    let (tile, lane) = (id / TILE_ROWS, id % TILE_ROWS);
    for (group, out) in out.chunks_mut(GROUP).enumerate() {
        let scale = read_bf16(table.scales(tile, group), lane);
        let (words, _) = table.int4_group(tile, group)[lane].as_chunks();
        for (&word, out) in words.iter().zip(out.chunks_mut(8)) {
            let word = u32::from_le_bytes(word);
            for (col, value) in out.iter_mut().enumerate() {
                let nibble = (word >> int4_shift(col) & 15) as u8;
                *value = (f32::from(nibble) - f32::from(INT4_ZERO_NIBBLE)) * scale;
            }
        }
    }
}
