//! Faults on demand: the nth allocation, copy or event from now fails, once.

/// Which call fails, counted from 1 from the moment the plan is set; `None` never fails.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// The nth allocation answers out of memory.
    pub fail_allocation: Option<u64>,
    /// The nth copy to the device fails, be it of experts or of [`super::Device::begin_uploads`].
    pub fail_copy: Option<u64>,
    /// The nth recorded event never fires.
    pub lose_event: Option<u64>,
}

/// Counts down to a fault.
#[derive(Debug, Default)]
pub(super) struct Countdown {
    seen: u64,
    at: Option<u64>,
}

impl Countdown {
    pub(super) fn set(&mut self, at: Option<u64>) {
        *self = Self { seen: 0, at };
    }
    /// Counts one call; true if this is the one that fails.
    pub(super) fn strikes(&mut self) -> bool {
        self.seen += 1;
        let hit = self.at == Some(self.seen);
        if hit {
            self.at = None;
        }
        hit
    }
    /// The call that is still to fail, as it was set.
    pub(super) fn pending(&self) -> Option<u64> {
        self.at
    }
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }
}
