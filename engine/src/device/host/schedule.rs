//! Which queued work runs next, when more than one stream could.

/// How the host device orders work between its streams; every order respects events and the order within a stream.
///
/// All but the first exist to expose a missing wait: a correct engine gives the same bits under every one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Schedule {
    /// Work runs when it is queued.
    #[default]
    ProgramOrder,
    /// Work runs when it is waited for; copies only when nothing else can.
    CopiesLate,
    /// Work runs when it is waited for; copies as soon as their own waits allow.
    CopiesEarly,
    /// Work runs when it is waited for, in an order drawn from the seed.
    Shuffled(u64),
}

/// Draws the next stream.
#[derive(Debug)]
pub(super) struct Chooser {
    schedule: Schedule,
    state: u64,
}

impl Chooser {
    pub(super) fn new(schedule: Schedule) -> Self {
        let state = if let Schedule::Shuffled(seed) = schedule { seed | 1 } else { 1 };
        Self { schedule, state }
    }
    pub(super) fn runs_when_queued(&self) -> bool {
        self.schedule == Schedule::ProgramOrder
    }
    /// Whether the copy stream goes first when both could.
    pub(super) fn copy_first(&mut self) -> bool {
        match self.schedule {
            Schedule::ProgramOrder | Schedule::CopiesLate => false,
            Schedule::CopiesEarly => true,
            Schedule::Shuffled(_) => {
                // xorshift64: any sequence will do, as long as the seed repeats it
                self.state ^= self.state << 13;
                self.state ^= self.state >> 7;
                self.state ^= self.state << 17;
                self.state >> 63 == 1
            }
        }
    }
}
