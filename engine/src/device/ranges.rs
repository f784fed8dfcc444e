//! Which bytes of an arena are in use: a first-fit allocator that every device shares, so that the same requests always lie at
//! the same addresses.

use std::collections::BTreeMap;

use super::{Buffer, DeviceError, align_up};

/// Free and live ranges of `base .. base + budget`.
#[derive(Debug)]
pub(super) struct Ranges {
    budget: u64,
    /// start → length of free ranges, coalesced.
    free: BTreeMap<u64, u64>,
    /// start → length of live allocations, padding included.
    live: BTreeMap<u64, u64>,
    free_bytes: u64,
    low_water: u64,
}

impl Ranges {
    pub(super) fn new(base: u64, budget: u64) -> Self {
        let free = if budget > 0 { BTreeMap::from([(base, budget)]) } else { BTreeMap::new() };
        Self { budget, free, live: BTreeMap::new(), free_bytes: budget, low_water: budget }
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

    /// What a request that fails answers.
    pub(super) fn refusal(&self, bytes: u64, label: &'static str) -> DeviceError {
        let largest_free = self.free.values().copied().max().unwrap_or(0);
        DeviceError::OutOfMemory { label, requested: bytes, largest_free, budget: self.budget }
    }

    /// The lowest range that is long enough, padded to [`super::ALIGNMENT`].
    pub(super) fn allocate(&mut self, bytes: u64, label: &'static str) -> Result<Buffer, DeviceError> {
        let Some(padded) = align_up(bytes.max(1)) else { return Err(self.refusal(bytes, label)) };
        let Some((&start, &length)) = self.free.iter().find(|&(_, &length)| length >= padded) else {
            return Err(self.refusal(bytes, label));
        };
        self.free.remove(&start);
        if length > padded {
            self.free.insert(start + padded, length - padded);
        }
        self.live.insert(start, padded);
        self.free_bytes -= padded;
        self.low_water = self.low_water.min(self.free_bytes);
        Ok(Buffer::new(start, bytes))
    }

    /// Returns an allocation, neighbouring free ranges becoming one; its padded length, or `None` if it was not live.
    pub(super) fn free(&mut self, buffer: &Buffer) -> Option<u64> {
        let start = buffer.address();
        let padded = self.live.remove(&start)?;
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
        Some(padded)
    }

    /// Length of a live allocation with its padding.
    pub(super) fn padded(&self, buffer: &Buffer) -> u64 {
        self.live.get(&buffer.address()).copied().unwrap_or(0)
    }

    /// Whether `address .. end` lies inside one live allocation.
    pub(super) fn holds(&self, address: u64, end: u64) -> bool {
        self.live.range(..=address).next_back().is_some_and(|(&start, &length)| end <= start + length)
    }
}
