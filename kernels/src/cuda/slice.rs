//! Operands on the device.

use std::marker::PhantomData;

use crate::error::{KernelError, expect_len};
use crate::layout::{MatrixFormat, matrix_bytes};

/// `len` elements of `T` at a device address. Copying it owns nothing: whoever makes one answers for the memory.
pub struct DeviceSlice<T> {
    address: u64,
    len: usize,
    element: PhantomData<fn() -> T>,
}

impl<T> Clone for DeviceSlice<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for DeviceSlice<T> {}

impl<T> std::fmt::Debug for DeviceSlice<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[{}]@{:#x}", std::any::type_name::<T>(), self.len, self.address)
    }
}

impl<T> DeviceSlice<T> {
    /// `len` elements from `address` on.
    ///
    /// # Safety
    /// The bytes are device memory of the context that kernels run in, they live until every kernel that is given them has
    /// finished, and nothing else writes them meanwhile.
    pub unsafe fn new(address: u64, len: usize) -> Self {
        Self { address, len, element: PhantomData }
    }
    /// First byte.
    pub fn address(self) -> u64 {
        self.address
    }
    /// Number of elements.
    pub fn len(self) -> usize {
        self.len
    }
    /// Whether it has no element.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// A weight matrix `[rows, cols]` on the device, in the layout of [`crate::layout`].
#[derive(Debug, Clone, Copy)]
pub struct DeviceMatrix {
    format: MatrixFormat,
    rows: usize,
    cols: usize,
    bytes: DeviceSlice<u8>,
}

impl DeviceMatrix {
    /// A view of `bytes`, which must be exactly [`matrix_bytes`] long.
    ///
    /// # Errors
    /// As [`crate::Matrix::new`].
    pub fn new(format: MatrixFormat, rows: usize, cols: usize, bytes: DeviceSlice<u8>) -> Result<Self, KernelError> {
        let expected = matrix_bytes(format, rows, cols)
            .ok_or(KernelError::TooLarge { kernel: "matrix", what: "a matrix with no rows, no columns or too many" })?;
        expect_len("matrix", "bytes", bytes.len(), expected)?;
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
    /// First byte.
    pub fn address(&self) -> u64 {
        self.bytes.address()
    }
}
