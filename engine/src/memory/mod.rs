//! How many bytes everything needs, computed by the same code that later lays it out.
//!
//! - [`sizes`]: the largest dimensions of a model's layers
//! - [`workspace`]: the activations of one chunk
//! - [`plan`]: the whole budget: what persists, what a prefill borrows, the least budget that works

pub mod plan;
pub mod sizes;
pub mod workspace;

pub use plan::{BankMap, MemoryPlan};
pub use sizes::Sizes;
pub use workspace::Workspace;
