//! The host device's memory: a mapping of the budget's size, and checked views for kernels.

use std::mem::{align_of, size_of};

use bytemuck::Pod;
use memmap2::MmapMut;

use super::super::ranges::Ranges;
use super::super::{Buffer, DeviceError, Span};

/// What freed memory is filled with: NaN as f32 and as bf16, an impossible index as u32.
const POISON: u8 = 0xFF;

/// Memory of exactly the budget's size. Nothing outside it can be addressed by a kernel.
#[derive(Debug)]
pub(super) struct Arena {
    memory: MmapMut,
    ranges: Ranges,
    poison_fresh: bool,
}

impl Arena {
    pub(super) fn new(budget: u64, poison_fresh: bool) -> Result<Self, DeviceError> {
        let refused = |reason: String| DeviceError::Arena { bytes: budget, reason };
        let bytes = usize::try_from(budget).map_err(|error| refused(error.to_string()))?;
        let memory = MmapMut::map_anon(bytes.max(1)).map_err(|error| refused(error.to_string()))?;
        Ok(Self { memory, ranges: Ranges::new(0, budget), poison_fresh })
    }

    pub(super) fn budget(&self) -> u64 {
        self.ranges.budget()
    }
    pub(super) fn free_bytes(&self) -> u64 {
        self.ranges.free_bytes()
    }
    pub(super) fn take_low_water(&mut self) -> u64 {
        self.ranges.take_low_water()
    }

    pub(super) fn allocate(&mut self, bytes: u64, label: &'static str) -> Result<Buffer, DeviceError> {
        let buffer = self.ranges.allocate(bytes, label)?;
        if self.poison_fresh {
            self.poison(buffer.address(), self.ranges.padded(&buffer));
        }
        Ok(buffer)
    }

    /// Poisons and returns an allocation.
    pub(super) fn free(&mut self, buffer: &Buffer) {
        if let Some(padded) = self.ranges.free(buffer) {
            self.poison(buffer.address(), padded);
        }
    }

    fn poison(&mut self, start: u64, length: u64) {
        self.memory[start as usize..(start + length) as usize].fill(POISON);
    }

    /// Byte range of a span, if it lies inside one live allocation.
    fn range(&self, what: &'static str, address: u64, bytes: u64, align: usize) -> Result<(usize, usize), DeviceError> {
        let end = address.saturating_add(bytes);
        let inside = self.ranges.holds(address, end) && address.is_multiple_of(align as u64);
        if inside || bytes == 0 {
            Ok((address as usize, end as usize))
        } else {
            Err(DeviceError::BadAddress { what, address, end })
        }
    }

    pub(super) fn bytes(&self, what: &'static str, span: Span<u8>) -> Result<&[u8], DeviceError> {
        let (start, end) = self.range(what, span.address(), span.size(), 1)?;
        Ok(self.memory.get(start..end).unwrap_or(&[]))
    }

    pub(super) fn bytes_mut(&mut self, what: &'static str, span: Span<u8>) -> Result<&mut [u8], DeviceError> {
        let (start, end) = self.range(what, span.address(), span.size(), 1)?;
        Ok(self.memory.get_mut(start..end).unwrap_or(&mut []))
    }

    /// Views for one kernel.
    pub(super) fn operands(&mut self, kernel: &'static str) -> Operands<'_> {
        Operands { base: self.memory.as_mut_ptr(), arena: self, kernel, claimed: std::cell::RefCell::default() }
    }
}

/// Hands a kernel slices of the arena, and refuses a written operand that overlaps any other.
pub(super) struct Operands<'a> {
    base: *mut u8,
    arena: &'a Arena,
    kernel: &'static str,
    /// (start, end, written)
    claimed: std::cell::RefCell<Vec<(u64, u64, bool)>>,
}

impl<'a> Operands<'a> {
    fn claim<T: Pod>(&self, span: Span<T>, written: bool) -> Result<*mut T, DeviceError> {
        let (start, end) = (span.address(), span.address() + span.size());
        self.arena.range(self.kernel, start, span.size(), align_of::<T>())?;
        let mut claimed = self.claimed.borrow_mut();
        for &(other_start, other_end, other_written) in claimed.iter() {
            if (written || other_written) && start < other_end && other_start < end {
                return Err(DeviceError::Overlap { kernel: self.kernel, first: other_start, second: start });
            }
        }
        claimed.push((start, end, written));
        // SAFETY: `range` has checked that the bytes lie inside the mapping.
        Ok(unsafe { self.base.add(start as usize) }.cast::<T>())
    }

    /// An operand that the kernel reads.
    pub(super) fn read<T: Pod>(&self, span: Span<T>) -> Result<&'a [T], DeviceError> {
        if span.is_empty() {
            return Ok(&[]);
        }
        let pointer = self.claim(span, false)?;
        debug_assert_eq!(span.size() as usize, span.len() * size_of::<T>());
        // SAFETY: `claim` checked bounds, alignment and that nothing written overlaps; `T` is plain data and the
        // arena cannot be resized or freed while `self` borrows it.
        Ok(unsafe { std::slice::from_raw_parts(pointer, span.len()) })
    }

    /// An operand that the kernel writes.
    #[allow(clippy::mut_from_ref)] // distinct, disjoint claims; see `claim`
    pub(super) fn write<T: Pod>(&self, span: Span<T>) -> Result<&'a mut [T], DeviceError> {
        if span.is_empty() {
            return Ok(&mut []);
        }
        let pointer = self.claim(span, true)?;
        // SAFETY: as in `read`, and `claim` refuses any overlap with an operand handed out before.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer, span.len()) })
    }
}
