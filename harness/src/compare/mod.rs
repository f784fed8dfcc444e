//! Two configurations or builds side by side: whole processes in turns, so that what drifts touches both alike.
//!
//! - `side.rs`: one side, and one process of it
//! - `series.rs`: the processes in their order, ABBA
//! - `seen.rs`: what else happened meanwhile
//! - `rows.rs`: from processes to ratios with intervals
//! - `gate.rs`: whether a ratio is a regression
//! - `noise.rs`: what one configuration against itself has shown on this machine

mod gate;
mod noise;
mod rows;
mod seen;
mod series;
mod side;

pub use gate::{Finding, Gate};
pub use noise::{Noise, noise};
pub use rows::{baseline_rows, rows};
pub use seen::{disturbed, observations};
pub use series::{Series, order, run};
pub use side::{Process, Side};
