//! Fidelity: how far a config's distributions are from those of a stored baseline, at every position of the same token ids.
//!
//! A baseline is a file: the token ids of its documents, and of every position the complete F32 logits, or the k largest
//! log-probabilities where somebody declares so. What is compared with it must have the same vocabulary and the same tokens;
//! anything else is no comparison.
//!
//! - `baseline.rs`: the file; `header.rs`: what it says of itself; `row.rs`: what it holds of a position
//! - `distribution.rs`: divergences of two distributions
//! - `tally.rs`: from positions to figures
//! - `measure.rs`: an engine over the documents, to make a baseline or to be compared with one

mod baseline;
mod distribution;
mod header;
mod measure;
mod row;
mod tally;

pub use baseline::{Baseline, BaselineError, BaselineWriter};
pub use distribution::{Distances, LogProbs, TOP};
pub use header::{BaselineDocument, BaselineHeader, MIN_TOP_K};
pub use measure::{compare, write_baseline};
pub use row::Row;
pub use tally::{Fidelity, Tally};
