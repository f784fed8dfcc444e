//! From logits to a token: a function of the logits, the parameters, the seed and the step alone.
//!
//! - [`philox`]: the random numbers, by counter
//! - `choose`: temperature, top-k, top-p, min-p, and the draw
//! - [`logprobs`]: log-probabilities of a step
//!
//! Greedy choice is the engine's own ([`crate::Engine::decode`]); [`Sampling::is_greedy`] says when it applies.

mod choose;
pub mod logprobs;
pub mod philox;

pub use choose::{Sampling, SamplingError};
