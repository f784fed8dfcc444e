//! Assay's engine: mixture-of-experts inference under an exact memory budget.
//!
//! From the outside in:
//!
//! - [`model_folder`]: a checkpoint's folder, opened, described and fingerprinted
//! - [`engine`]: prefill, decode, calibration; generic over a device
//! - [`options`], [`error`]: what a caller decides, what can go wrong
//! - [`device`]: the trait, and the device without a GPU
//! - [`session`]: state of earlier requests, for those that begin alike
//! - [`memory`]: how many bytes everything needs
//! - [`residency`]: HCS, which experts are on the device
//! - [`sampling`]: from logits to a token
//! - [`weights`], [`bank`]: what is on the device for good, what waits in host memory
//! - [`expert_cache`]: packed experts on disk
//! - [`checkpoint`], [`model`]: files, and what a model is as data
//! - [`trace`]: what every launch of a request read and wrote
//! - [`gguf`]: a checkpoint written for llama.cpp
//! - [`synth`]: made-up weights in the shape of a real model

pub mod bank;
pub mod checkpoint;
pub mod device;
pub mod engine;
pub mod error;
pub mod expert_cache;
pub mod file;
pub mod gguf;
pub mod json;
pub mod memory;
pub mod model;
pub mod model_folder;
pub mod options;
pub mod residency;
pub mod sampling;
pub mod session;
pub mod synth;
pub mod trace;
pub mod weights;

pub use assay_kernels::KvFormat;
pub use engine::Engine;
pub use error::EngineError;
pub use model_folder::ModelFolder;
pub use options::{EngineOptions, Precision};
