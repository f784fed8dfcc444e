//! Two configurations or builds side by side: whole processes in turns, so that what drifts touches both alike.
//!
//! - `side.rs`: one side, and one process of it
//! - `series.rs`: the processes in their order, ABBA
//! - `load.rs`: what else the machine did meanwhile
//! - `rows.rs`: from processes to ratios with intervals
//! - `gate.rs`: whether a ratio is a regression
//! - `noise.rs`: what one configuration against itself has shown on this machine

mod gate;
mod load;
mod noise;
mod rows;
mod series;
mod side;

pub use gate::{Finding, Gate};
pub use load::Disturbance;
pub use noise::{Noise, noise};
pub use rows::{baseline_rows, rows};
pub use series::{Series, order, run};
pub use side::{Process, Side};
