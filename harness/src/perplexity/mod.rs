//! Perplexity: how well the model predicts text that it was not trained on.
//!
//! - `documents.rs`: token-id lists from a file, or cut out of a prompt set
//! - `score.rs`: windows through the engine, negative log-likelihood in f64
//! - `compare.rs`: paired differences between two configs

mod compare;
mod documents;
mod score;

pub use compare::{Comparison, MIN_DOCUMENTS, compare};
pub use documents::{Document, Documents};
pub use score::{DocumentScore, SHAPE, Total, score};
