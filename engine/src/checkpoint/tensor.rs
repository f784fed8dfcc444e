//! One tensor: its bytes in the file, and its values.

use std::ops::Range;
use std::path::Path;

use half::{bf16, f16};
use safetensors::Dtype;

use super::error::CheckpointError;
use super::part::Part;

/// Types that a weight may have in a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightDtype {
    /// Brain floating point, 16 bits.
    Bf16,
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
    /// Four-bit floats in blocks with a scale each; only part of a tensor is ever read.
    Mxfp4,
}

impl WeightDtype {
    /// Types that a weight has by itself, and their names.
    pub(super) const FLOATS: (&'static [Self], &'static str) =
        (&[Self::Bf16, Self::F16, Self::F32], "BF16, F16 or F32");
    /// The type of MXFP4's blocks and scales.
    pub(super) const MXFP4: (&'static [Self], &'static str) = (&[Self::Mxfp4], "U8, as MXFP4 is stored");

    /// Bits of one element.
    pub fn bits(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 16,
            Self::F32 => 32,
            Self::Mxfp4 => 4,
        }
    }

    /// `None` for types that are not a weight's.
    pub(super) fn from_safetensors(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::BF16 => Some(Self::Bf16),
            Dtype::F16 => Some(Self::F16),
            Dtype::F32 => Some(Self::F32),
            Dtype::U8 => Some(Self::Mxfp4),
            _ => None,
        }
    }
}

/// A tensor in a mapped file. As a matrix it has [`TensorView::rows`] rows of [`TensorView::cols`] elements: the last
/// dimension is a row, all others together count the rows; a vector is one row.
///
/// Values are read byte by byte, so a file need not align them. Reading a NaN or an infinity is an error.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// Name in the checkpoint.
    pub name: &'a str,
    /// Type of the elements in the file.
    pub dtype: WeightDtype,
    /// Shape in the file.
    pub shape: &'a [usize],
    /// The elements, little-endian, row by row.
    pub bytes: &'a [u8],
    /// MXFP4's scales, one for each block.
    pub(super) scales: Option<&'a [u8]>,
    /// The part of the tensor that is seen.
    pub(super) part: Option<Part>,
    /// The file, for errors.
    pub(super) path: &'a Path,
}

impl<'a> TensorView<'a> {
    /// All of a tensor.
    pub(super) fn whole(
        name: &'a str,
        dtype: WeightDtype,
        shape: &'a [usize],
        bytes: &'a [u8],
        path: &'a Path,
    ) -> Self {
        Self { name, dtype, shape, bytes, scales: None, part: None, path }
    }

    /// MXFP4 blocks with their scales.
    pub(super) fn with_scales(self, scales: &'a [u8]) -> Self {
        Self { scales: Some(scales), ..self }
    }
}

impl TensorView<'_> {
    /// Product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        if let Some(part) = &self.part {
            return part.rows;
        }
        // The product of all dimensions was checked against the file's size when its header was read, but these alone can
        // overflow where the last one is 0.
        self.shape
            .split_last()
            .map_or(1, |(_, rows)| rows.iter().fold(1, |product: usize, &dim| product.saturating_mul(dim)))
    }

    /// The last dimension; 1 for a scalar.
    pub fn cols(&self) -> usize {
        self.part.as_ref().map_or_else(|| self.shape.last().copied().unwrap_or(1), |part| part.cols)
    }

    /// Elements of the tensor.
    pub fn elements(&self) -> usize {
        match &self.part {
            // No more than the tensor has.
            Some(part) => part.rows * part.cols,
            None if self.dtype == WeightDtype::Mxfp4 => self.bytes.len().saturating_mul(2),
            None => self.bytes.len() / (self.dtype.bits() / 8),
        }
    }

    /// The values of `rows`, widened exactly to f32, into `out` of `rows.len() * cols` elements.
    ///
    /// # Errors
    /// Rows that do not exist, a buffer of another size, a value that is not finite.
    pub fn rows_f32(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), CheckpointError> {
        if let Some(part) = &self.part {
            self.check_rows(&rows, out.len())?;
            return self.part_rows_f32(part, rows, out);
        }
        let (bytes, first) = self.row_bytes(&rows, out.len())?;
        // The loops have no early exit, so that they vectorise; a bad value is looked for afterwards.
        let mut finite = true;
        match self.dtype {
            WeightDtype::Bf16 => {
                for (value, element) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *value = f32::from_bits(u32::from(u16::from_le_bytes(*element)) << 16);
                    finite &= value.is_finite();
                }
            }
            WeightDtype::F16 => {
                for (value, element) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *value = f16::from_le_bytes(*element).to_f32();
                    finite &= value.is_finite();
                }
            }
            WeightDtype::F32 => {
                for (value, element) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *value = f32::from_le_bytes(*element);
                    finite &= value.is_finite();
                }
            }
            // Its rows cannot be told from the shape of its blocks alone: it is read through a part.
            WeightDtype::Mxfp4 => return Err(self.bad_rows(&rows, out.len())),
        }
        if finite { Ok(()) } else { self.check_finite(first, out.iter().copied(), "") }
    }

    /// The values of `rows` as BF16 into `out` of `rows.len() * cols` elements: exact where the file holds BF16, rounded to
    /// nearest, ties to even, where it holds F16 or F32.
    ///
    /// # Errors
    /// As [`TensorView::rows_f32`], and a value that is too large for BF16.
    pub fn rows_bf16(&self, rows: Range<usize>, out: &mut [bf16]) -> Result<(), CheckpointError> {
        let first = self.check_rows(&rows, out.len())?;
        if self.dtype == WeightDtype::Bf16 && self.part.is_none() {
            let (bytes, _) = self.row_bytes(&rows, out.len())?;
            let mut finite = true;
            for (value, element) in out.iter_mut().zip(bytes.as_chunks().0) {
                *value = bf16::from_le_bytes(*element);
                finite &= value.is_finite();
            }
            return if finite { Ok(()) } else { self.check_finite(first, out.iter().map(|value| value.to_f32()), "") };
        }
        let mut wide = vec![0f32; out.len()];
        self.rows_f32(rows, &mut wide)?;
        let mut finite = true;
        for (value, &wide) in out.iter_mut().zip(&wide) {
            *value = bf16::from_f32(wide);
            finite &= value.is_finite();
        }
        if finite {
            Ok(())
        } else {
            self.check_finite(first, out.iter().map(|value| value.to_f32()), " that BF16 can hold")
        }
    }

    /// All values, widened exactly to f32, row by row.
    ///
    /// # Errors
    /// A value that is not finite.
    pub fn to_f32_vec(&self) -> Result<Vec<f32>, CheckpointError> {
        let mut values = vec![0f32; self.elements()];
        if !values.is_empty() {
            self.rows_f32(0..self.rows(), &mut values)?;
        }
        Ok(values)
    }

    /// Index of the first element of `rows`, after checking them against the tensor and the buffer.
    fn check_rows(&self, rows: &Range<usize>, buffer: usize) -> Result<usize, CheckpointError> {
        let count = rows.end.checked_sub(rows.start).filter(|_| rows.end <= self.rows());
        let elements = count.and_then(|count| count.checked_mul(self.cols())).filter(|&elements| elements == buffer);
        let first = elements.and_then(|_| rows.start.checked_mul(self.cols()));
        first.ok_or_else(|| self.bad_rows(rows, buffer))
    }

    /// Bytes of `rows` of a whole tensor and the index of their first element.
    fn row_bytes(&self, rows: &Range<usize>, buffer: usize) -> Result<(&[u8], usize), CheckpointError> {
        let first = self.check_rows(rows, buffer)?;
        let element = self.dtype.bits() / 8;
        let bytes = first.checked_mul(element).and_then(|start| {
            let end = start.checked_add(buffer.checked_mul(element)?)?;
            self.bytes.get(start..end)
        });
        Ok((bytes.ok_or_else(|| self.bad_rows(rows, buffer))?, first))
    }

    fn bad_rows(&self, rows: &Range<usize>, buffer: usize) -> CheckpointError {
        CheckpointError::Rows {
            tensor: self.name.to_owned(),
            start: rows.start,
            end: rows.end,
            buffer,
            rows: self.rows(),
            cols: self.cols(),
        }
    }

    /// The error for the first value that is not finite; `first` is the index of the first value in the tensor.
    fn check_finite(
        &self,
        first: usize,
        mut values: impl Iterator<Item = f32>,
        within: &'static str,
    ) -> Result<(), CheckpointError> {
        match values.by_ref().enumerate().find(|(_, value)| !value.is_finite()) {
            None => Ok(()),
            Some((index, found)) => Err(self.not_finite(first + index, found, within)),
        }
    }

    /// Element `element` is `found`.
    pub(super) fn not_finite(&self, element: usize, found: f32, within: &'static str) -> CheckpointError {
        let (path, tensor) = (self.path.to_owned(), self.name.to_owned());
        CheckpointError::NotFinite { path, tensor, element, found, within }
    }
}
