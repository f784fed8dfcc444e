//! How many bytes everything needs, computed by the same code that later lays it out.
//!
//! - [`sizes`]: the largest dimensions of a model's layers
//! - [`workspace`]: the activations of one chunk
//! - `scratch`: what a device's kernels need beside their operands
//! - [`plan`]: the whole budget: what persists, what a prefill borrows, the least budget that works

pub mod plan;
mod scratch;
pub mod sizes;
pub mod workspace;

pub use plan::{BankMap, MemoryPlan};
pub use sizes::Sizes;
pub use workspace::Workspace;
