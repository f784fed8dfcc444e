//! Typed device addresses.

use std::marker::PhantomData;
use std::mem::size_of;

use super::DeviceError;

/// Every allocation starts at a multiple of this many bytes.
pub const ALIGNMENT: u64 = 256;

/// `bytes` rounded up to [`ALIGNMENT`]; `None` on overflow.
pub fn align_up(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGNMENT)
}

/// An owned allocation. It is neither cloned nor dropped silently: give it back with [`super::Device::free`].
#[derive(Debug)]
#[must_use = "an allocation that is dropped is never returned to its device"]
pub struct Buffer {
    address: u64,
    bytes: u64,
}

impl Buffer {
    /// For devices only.
    pub(crate) fn new(address: u64, bytes: u64) -> Self {
        Self { address, bytes }
    }
    /// First byte.
    pub fn address(&self) -> u64 {
        self.address
    }
    /// Size as asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// The whole allocation as elements of `T`.
    pub fn span<T>(&self) -> Span<T> {
        Span::new(self.address, self.bytes as usize / size_of::<T>())
    }
}

/// A device address and a number of elements. Copying it does not own anything.
pub struct Span<T> {
    address: u64,
    len: usize,
    element: PhantomData<fn() -> T>,
}

impl<T> Clone for Span<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Span<T> {}
impl<T> std::fmt::Debug for Span<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[{}]@{}", std::any::type_name::<T>(), self.len, self.address)
    }
}

impl<T> Span<T> {
    /// `len` elements from `address` on.
    pub fn new(address: u64, len: usize) -> Self {
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
    /// Size in bytes.
    pub fn size(self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }
    /// Elements `start .. start + len` of this span.
    pub fn part(self, start: usize, len: usize) -> Result<Self, DeviceError> {
        match start.checked_add(len) {
            Some(end) if end <= self.len => Ok(Self::new(self.address + (start * size_of::<T>()) as u64, len)),
            _ => Err(DeviceError::BadAddress {
                what: "part of a span",
                address: self.address.saturating_add((start.saturating_mul(size_of::<T>())) as u64),
                end: self.address.saturating_add((start.saturating_add(len).saturating_mul(size_of::<T>())) as u64),
            }),
        }
    }
    /// The first `len` elements.
    pub fn first(self, len: usize) -> Result<Self, DeviceError> {
        self.part(0, len)
    }
    /// The same bytes without a type.
    pub fn as_bytes(self) -> Span<u8> {
        Span::new(self.address, self.len * size_of::<T>())
    }
}

/// Lays typed spans one after another, each aligned; with base 0 it only measures.
#[derive(Debug)]
pub struct Carver {
    base: u64,
    used: u64,
    most: u64,
}

impl Carver {
    /// Starts at `base`.
    pub fn new(base: u64) -> Self {
        Self { base, used: 0, most: 0 }
    }
    /// The next `len` elements of `T`.
    pub fn take<T>(&mut self, len: usize) -> Span<T> {
        let span = Span::new(self.base + self.used, len);
        let end = self.used + (len as u64) * size_of::<T>() as u64;
        self.used = end.next_multiple_of(ALIGNMENT);
        self.most = self.most.max(self.used);
        span
    }
    /// Where the next span would start; [`Carver::rewind`] returns here so that later spans may overlay earlier ones.
    pub fn mark(&self) -> u64 {
        self.used
    }
    /// Goes back to a mark.
    pub fn rewind(&mut self, mark: u64) {
        self.used = mark;
    }
    /// Bytes needed for everything taken so far, overlays counted once.
    pub fn bytes(&self) -> u64 {
        self.most
    }
}
