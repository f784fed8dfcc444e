//! The host device's memory: a mapping of the budget's size, a first-fit allocator, and checked views for kernels.

use std::collections::BTreeMap;
use std::mem::{align_of, size_of};

use bytemuck::Pod;
use memmap2::MmapMut;

use super::super::{Buffer, DeviceError, Span, align_up};

/// What freed memory is filled with: NaN as f32 and as bf16, an impossible index as u32.
const POISON: u8 = 0xFF;

/// Memory of exactly the budget's size. Nothing outside it can be addressed by a kernel.
#[derive(Debug)]
pub(super) struct Arena {
    memory: MmapMut,
    budget: u64,
    /// start → length of free ranges, coalesced.
    free: BTreeMap<u64, u64>,
    /// start → length of live allocations, padding included.
    live: BTreeMap<u64, u64>,
    free_bytes: u64,
    low_water: u64,
    poison_fresh: bool,
}

impl Arena {
    pub(super) fn new(budget: u64, poison_fresh: bool) -> Result<Self, DeviceError> {
        let refused = |reason: String| DeviceError::Arena { bytes: budget, reason };
        let bytes = usize::try_from(budget).map_err(|error| refused(error.to_string()))?;
        let memory = MmapMut::map_anon(bytes.max(1)).map_err(|error| refused(error.to_string()))?;
        let mut free = BTreeMap::new();
        if budget > 0 {
            free.insert(0, budget);
        }
        Ok(Self { memory, budget, free, live: BTreeMap::new(), free_bytes: budget, low_water: budget, poison_fresh })
    }

    pub(super) fn budget(&self) -> u64 {
        self.budget
    }
    pub(super) fn free_bytes(&self) -> u64 {
        self.free_bytes
    }
    pub(super) fn take_low_water(&mut self) -> u64 {
        std::mem::replace(&mut self.low_water, self.free_bytes)
    }

    /// First fit, so that the same requests always lie at the same addresses.
    pub(super) fn allocate(&mut self, bytes: u64, label: &'static str) -> Result<Buffer, DeviceError> {
        let largest_free = self.free.values().copied().max().unwrap_or(0);
        let refused = DeviceError::OutOfMemory { label, requested: bytes, largest_free, budget: self.budget };
        let Some(padded) = align_up(bytes.max(1)) else { return Err(refused) };
        let Some((&start, &length)) = self.free.iter().find(|&(_, &length)| length >= padded) else {
            return Err(refused);
        };
        self.free.remove(&start);
        if length > padded {
            self.free.insert(start + padded, length - padded);
        }
        self.live.insert(start, padded);
        self.free_bytes -= padded;
        self.low_water = self.low_water.min(self.free_bytes);
        if self.poison_fresh {
            self.poison(start, padded);
        }
        Ok(Buffer::new(start, bytes))
    }

    /// Poisons and returns an allocation; neighbouring free ranges become one.
    pub(super) fn free(&mut self, buffer: &Buffer) {
        let start = buffer.address();
        let Some(padded) = self.live.remove(&start) else { return };
        self.poison(start, padded);
        self.free_bytes += padded;
        let mut range = (start, padded);
        if let Some((&before, &length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            self.free.remove(&before);
            range = (before, length + range.1);
        }
        if let Some(after) = self.free.remove(&(start + padded)) {
            range.1 += after;
        }
        self.free.insert(range.0, range.1);
    }

    fn poison(&mut self, start: u64, length: u64) {
        self.memory[start as usize..(start + length) as usize].fill(POISON);
    }

    /// Byte range of a span, if it lies inside one live allocation.
    fn range(&self, what: &'static str, address: u64, bytes: u64, align: usize) -> Result<(usize, usize), DeviceError> {
        let end = address.saturating_add(bytes);
        let inside = self
            .live
            .range(..=address)
            .next_back()
            .is_some_and(|(&start, &length)| end <= start + length && address.is_multiple_of(align as u64));
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
