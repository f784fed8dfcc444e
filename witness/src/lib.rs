//! What an independent implementation answered to exact token ids, and how other answers are judged by it.
//!
//! An [`Artifact`] holds, for each prompt, the token ids that went in, the greedy ids that came out, and the likeliest tokens
//! with their log-probabilities at every greedy step and at some positions of the prompt. Whoever is to be judged replays the
//! same ids and writes an [`Observed`]; [`judge`] compares the two by the rules of a [`Gate`]. Nothing here runs a model, and
//! a replay needs no text and no tokenizer.
//!
//! - `artifact`: the artifact's schema, reading and checking; `observed`: the same for what is judged;
//! - `top_k`: the likeliest tokens, and how to take them from logits;
//! - `gate`: rules as data; `figures`: what is counted; `judge`: rules applied to figures;
//! - `schema`: the JSON Schemas in `schema/`;
//! - `capture/` (Python): drives llama.cpp and writes artifacts; `artifacts/`: what it wrote.
//!
//! Invariant: this crate uses no other crate of the workspace, so no bug of theirs can hide in the judge.

mod artifact;
mod error;
mod figures;
mod file;
mod gate;
mod judge;
mod observed;
mod schema;
#[cfg(test)]
mod tests;
mod top_k;

pub use artifact::{Artifact, Binding, ModelFingerprint, Position, Prompt, Step, TokenizerFingerprint, Witness};
pub use error::WitnessError;
pub use figures::PromptFigures;
pub use gate::{Agreement, Gate, LogprobRule, OverlapRule, Prefill, Rules, Scope, Weights};
pub use judge::{Judgement, Outcome, Rule, judge};
pub use observed::{Observed, ObservedPrompt};
pub use schema::{Generate, SCHEMAS, schema_text};
pub use top_k::TopK;

/// The version of [`Artifact`] and [`Observed`] that this code reads and writes.
pub const SCHEMA_VERSION: u32 = 1;
