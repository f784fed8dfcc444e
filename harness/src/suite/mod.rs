//! Suite files: which measurements a command makes, and how often.

mod speed;

pub use speed::{DecodePlan, PrefillPlan, Repetitions, SpeedSuite, SuiteError, capped_lengths};
