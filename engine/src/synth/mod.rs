//! Synthetic models: seeded weights in the shape of a real model, for measuring speed and for comparing implementations where
//! the real weights are not at hand. What such a model says means nothing, and every identity says that it is one.
//!
//! A value depends on seed, layer, expert, tensor and index alone, never on threads. All matrices lie on a grid that INT4, BF16
//! and llama.cpp's Q4_0 hold exactly, so one model can be run by each of them with the same weights.
//!
//! - `shape`: the `config.json` of a real model; `recipe`: everything else that decides the weights, and how a folder says that
//!   it is synthetic
//! - `weights`: which values each tensor gets, and why routing stays even; `skew`: how it is made uneven on purpose
//! - `grid`, `random`: the values themselves
//! - `write`: the folder; experts go straight into an expert cache
//! - `routing`: whether routes are even, judged from counts
//! - `tokenizer`, `error`

mod error;
mod grid;
mod random;
mod recipe;
pub mod routing;
mod shape;
mod skew;
mod tokenizer;
mod weights;
mod write;

pub use error::SynthError;
pub use recipe::{Recipe, Skew, SyntheticRecord};
pub use shape::Shape;
pub use write::{Progress, SynthReport, write_model};
