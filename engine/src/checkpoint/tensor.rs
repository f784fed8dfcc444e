//! One tensor: its bytes in the file, and its values.

use std::ops::Range;
use std::path::Path;

use half::{bf16, f16};
use safetensors::Dtype;

use super::error::CheckpointError;

/// Types that a weight may have in a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightDtype {
    /// Brain floating point, 16 bits.
    Bf16,
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
}

impl WeightDtype {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// `None` for types that are not a weight's.
    pub(super) fn from_safetensors(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::BF16 => Some(Self::Bf16),
            Dtype::F16 => Some(Self::F16),
            Dtype::F32 => Some(Self::F32),
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
    /// The file, for errors.
    pub(super) path: &'a Path,
}

impl TensorView<'_> {
    /// Product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        // The product of all dimensions was checked against the file's size when its header was read, but these alone can
        // overflow where the last one is 0.
        self.shape
            .split_last()
            .map_or(1, |(_, rows)| rows.iter().fold(1, |product: usize, &dim| product.saturating_mul(dim)))
    }

    /// The last dimension; 1 for a scalar.
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Elements of the tensor.
    pub fn elements(&self) -> usize {
        self.bytes.len() / self.dtype.bytes()
    }

    /// The values of `rows`, widened exactly to f32, into `out` of `rows.len() * cols` elements.
    ///
    /// # Errors
    /// Rows that do not exist, a buffer of another size, a value that is not finite.
    pub fn rows_f32(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), CheckpointError> {
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
        }
        if finite { Ok(()) } else { self.check_finite(first, out.iter().copied(), "") }
    }

    /// The values of `rows` as BF16 into `out` of `rows.len() * cols` elements: exact where the file holds BF16, rounded to
    /// nearest, ties to even, where it holds F16 or F32.
    ///
    /// # Errors
    /// As [`TensorView::rows_f32`], and a value that is too large for BF16.
    pub fn rows_bf16(&self, rows: Range<usize>, out: &mut [bf16]) -> Result<(), CheckpointError> {
        let (bytes, first) = self.row_bytes(&rows, out.len())?;
        if self.dtype == WeightDtype::Bf16 {
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

    /// Bytes of `rows` and the index of their first element, after checking both against the tensor and the buffer.
    fn row_bytes(&self, rows: &Range<usize>, buffer: usize) -> Result<(&[u8], usize), CheckpointError> {
        let cols = self.cols();
        let found = rows.end.checked_sub(rows.start).filter(|_| rows.end <= self.rows()).and_then(|count| {
            let elements = count.checked_mul(cols).filter(|&elements| elements == buffer)?;
            let first = rows.start.checked_mul(cols)?;
            let start = first.checked_mul(self.dtype.bytes())?;
            let end = start.checked_add(elements.checked_mul(self.dtype.bytes())?)?;
            Some((self.bytes.get(start..end)?, first))
        });
        found.ok_or_else(|| CheckpointError::Rows {
            tensor: self.name.to_owned(),
            start: rows.start,
            end: rows.end,
            buffer,
            rows: self.rows(),
            cols,
        })
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
            Some((index, found)) => Err(CheckpointError::NotFinite {
                path: self.path.to_owned(),
                tensor: self.name.to_owned(),
                element: first + index,
                found,
                within,
            }),
        }
    }
}
