//! Speed: how fast one exact configuration is, timing instrumentation off.
//!
//! - `http.rs`: the same through a server, timed at the client
//! - `plan.rs`: which prompts of which lengths, cut before anything is timed
//! - `run.rs`: warm-ups, then timed repetitions, each kept
//! - `summary.rs`: medians, intervals, residency, memory and verdicts; `work.rs`: what a token takes of the device

mod http;
mod plan;
mod run;
mod summary;
mod work;

pub use http::{HttpMeasured, HttpSample, HttpSummary, run_http, summarise_http};
pub use plan::{Cap, SpeedPlan};
pub use run::{Measured, Sample, run};
pub use summary::{Summary, summarise};
pub(crate) use summary::{low_water, margin_kept, time_row};
