//! From a config to a loaded engine: checkpoint, expert cache, heatmap, device.
//!
//! - `start.rs`: the steps, each with its progress
//! - `identity.rs`: what exactly is run, for the record
//! - `source.rs`: the commit and the difference from it
//! - `machine.rs`: the processor, and what was seen of its load; `watch.rs`, `load.rs`: what else happened while something was timed

mod identity;
mod load;
mod machine;
mod source;
mod start;
mod watch;

pub use identity::{IdentityInputs, SuiteInputs, sha256};
pub(crate) use load::Counters;
pub use load::Disturbance;
pub use machine::{cpu_name, observations};
pub use source::source;
pub(crate) use start::open_folder;
pub use start::{Opened, Runtime, build_cache, engine_options};
pub use watch::{CardSeen, Seen, Watch};
