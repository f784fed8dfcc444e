//! HCS: which experts are on the device during decode, and what changes that.
//!
//! Slots of one expert's size hold experts. A slot is *hard* (kept through prefill), *soft* (its memory is lent to prefill) or
//! *landing* (where a cold expert arrives). A flat table `[layer * num_experts + expert]` says where an expert is. After a cold
//! expert has been used it may be promoted: its landing slot becomes its home and the victim's slot becomes a landing slot, so
//! nothing is copied twice. Promotions are bounded per token (white paper §6.3).
//!
//! Residency moves bytes and changes no arithmetic: any state of this module gives the same answers.
//!
//! - [`policy`]: who is wanted and who leaves
//! - [`heatmap`]: how often each expert was routed to on other text, the prior
//! - [`slots`]: slots, table, landing, promotion
//! - [`trace`]: routes as decode chose them, in a file; [`simulate`]: residency replayed from one, without a model

pub mod heatmap;
pub mod policy;
pub mod simulate;
mod slots;
#[cfg(test)]
mod tests;
pub mod trace;

pub use heatmap::{Heatmap, HeatmapError, HeatmapIdentity, HeatmapText};
pub use policy::{Policy, PolicyKind, Usage};
pub use simulate::{SimulateOptions, Simulated, simulate};
pub use slots::{LayerHits, LayerUse, Miss, Residency, ResidencyCounters, Tier};
pub use trace::{Recorded, RouteTrace, TraceError, TraceShape};

/// An expert of the whole model: `moe_layer * num_experts + expert`, layers without experts not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExpertId(pub u32);

impl ExpertId {
    /// From a layer among the MoE layers and an expert in it.
    pub fn new(moe_layer: usize, num_experts: usize, expert: usize) -> Self {
        Self((moe_layer * num_experts + expert) as u32)
    }
    /// Index into the flat table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
