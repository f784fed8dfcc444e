//! A vector or matrix inside a larger tensor: one expert of a fused tensor, every other row, a transpose.

use std::ops::Range;

use half::f16;

use super::error::CheckpointError;
use super::mxfp4;
use super::tensor::{TensorView, WeightDtype};
use crate::model::spec::TensorPart;

/// Where the elements of a part lie; all of them are inside the tensor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) rows: usize,
    pub(super) cols: usize,
    offset: usize,
    row_stride: usize,
    col_stride: usize,
}

impl Part {
    /// Index in the tensor.
    fn index(&self, row: usize, col: usize) -> usize {
        self.offset + row * self.row_stride + col * self.col_stride
    }
}

impl<'a> TensorView<'a> {
    /// The part of `shape`, a vector or a matrix, that `part` describes.
    ///
    /// # Errors
    /// A part that reaches past the tensor.
    pub(super) fn part(self, shape: &[usize], part: &TensorPart) -> Result<Self, CheckpointError> {
        let cols = shape.last().copied().unwrap_or(1);
        let rows = shape.iter().rev().skip(1).try_fold(1usize, |product, &dim| product.checked_mul(dim));
        let TensorPart { offset, row_stride, col_stride, .. } = *part;
        let last = rows.and_then(|rows| {
            let row = rows.checked_sub(1)?.checked_mul(row_stride)?;
            let col = cols.checked_sub(1)?.checked_mul(col_stride)?;
            offset.checked_add(row)?.checked_add(col)
        });
        let elements = self.elements();
        match (rows, last) {
            (Some(rows), Some(last)) if last < elements => {
                let part = Part { rows, cols, offset, row_stride, col_stride };
                Ok(Self { part: Some(part), ..self })
            }
            _ => Err(CheckpointError::Part { tensor: self.name.to_owned(), last, elements }),
        }
    }

    /// The values of some of a part's rows, which exist, into a buffer of their size.
    pub(super) fn part_rows_f32(
        &self,
        part: &Part,
        rows: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), CheckpointError> {
        match (self.dtype, self.scales) {
            (WeightDtype::Bf16, _) => gather(part, rows.clone(), out, |index| {
                element(self.bytes, index, |bytes| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16))
            }),
            (WeightDtype::F16, _) => gather(part, rows.clone(), out, |index| {
                element(self.bytes, index, |bytes| f16::from_le_bytes(bytes).to_f32())
            }),
            (WeightDtype::F32, _) => {
                gather(part, rows.clone(), out, |index| element(self.bytes, index, f32::from_le_bytes));
            }
            (WeightDtype::Mxfp4, scales) => {
                let scales = scales.unwrap_or(&[]);
                gather(part, rows.clone(), out, |index| mxfp4::value(self.bytes, scales, index));
            }
        }
        match out.iter().enumerate().find(|(_, value)| !value.is_finite()) {
            None => Ok(()),
            Some((place, &found)) => {
                let index = part.index(rows.start + place / part.cols, place % part.cols);
                Err(self.not_finite(index, found, ""))
            }
        }
    }
}

/// Element `index` of `N` bytes; NaN past the end, which [`TensorView::part`] has ruled out.
fn element<const N: usize>(bytes: &[u8], index: usize, widen: impl Fn([u8; N]) -> f32) -> f32 {
    bytes.get(index * N..).and_then(|rest| rest.first_chunk()).map_or(f32::NAN, |bytes| widen(*bytes))
}

/// Fills `out` row by row, reading in the order in which the file has the elements.
fn gather(part: &Part, rows: Range<usize>, out: &mut [f32], value: impl Fn(usize) -> f32) {
    if part.col_stride <= part.row_stride {
        for (row, out) in rows.zip(out.chunks_exact_mut(part.cols)) {
            for (col, out) in out.iter_mut().enumerate() {
                *out = value(part.index(row, col));
            }
        }
    } else {
        for col in 0..part.cols {
            for (place, row) in rows.clone().enumerate() {
                out[place * part.cols + col] = value(part.index(row, col));
            }
        }
    }
}
