//! From logits to a token: a function of the logits, the parameters, the seed and the step alone.
//!
//! - [`philox`]: the random numbers, by counter
//! - `choose`: temperature, top-k, top-p, min-p, and the draw: `assay_kernels`' sampled choice, here from logits on the host
//! - [`logprobs`]: log-probabilities of a step
//!
//! The engine chooses on its device, with the same answer: [`crate::Engine::decode`] greedily, [`crate::Engine::decode_sampled`] as a
//! [`Sampling`] says.

mod choose;
pub mod logprobs;
pub mod philox;

pub use choose::{Sampling, SamplingError};
