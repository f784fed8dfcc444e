//! The fewest bytes that were free in each phase.

/// What the engine is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Loading weights.
    Startup,
    /// Calibration runs.
    Calibration,
    /// Prompt processing.
    Prefill,
    /// Token generation.
    Decode,
    /// Reloading the soft tier.
    Restore,
}

/// Low-water marks in bytes; `None` for a phase that has not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[allow(missing_docs)]
pub struct LowWater {
    pub startup: Option<u64>,
    pub calibration: Option<u64>,
    pub prefill: Option<u64>,
    pub decode: Option<u64>,
    pub restore: Option<u64>,
}

impl LowWater {
    /// Lowers a phase's mark.
    pub fn note(&mut self, phase: Phase, free_bytes: u64) {
        let mark = match phase {
            Phase::Startup => &mut self.startup,
            Phase::Calibration => &mut self.calibration,
            Phase::Prefill => &mut self.prefill,
            Phase::Decode => &mut self.decode,
            Phase::Restore => &mut self.restore,
        };
        *mark = Some(mark.map_or(free_bytes, |known| known.min(free_bytes)));
    }
}
