//! Writing a checkpoint as GGUF, the file format of llama.cpp, so that an independent implementation can run the same
//! weights.
//!
//! Tensors have llama.cpp's names, types and order of dimensions, and hold the bits that its own converter writes: matrices
//! in BF16 (or F32), norms, biases and routers in F32, a layer's experts stacked into one tensor.
//!
//! - `export`: [`export`], a checkpoint folder into a file;
//! - `metadata`: the keys that describe the model; `vocabulary`: those that describe the tokenizer;
//! - `tensors`: which tensor of the checkpoint becomes which in the file;
//! - `write`: the file format itself.

mod error;
mod export;
mod metadata;
mod tensors;
#[cfg(test)]
mod tests;
mod vocabulary;
mod write;

pub use error::GgufError;
pub use export::{ExportOptions, ExportReport, export};
pub use write::GgufType;
