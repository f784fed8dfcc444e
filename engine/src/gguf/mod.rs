//! Writing a checkpoint as GGUF, the file format of llama.cpp, so that an independent implementation can run the same
//! weights.
//!
//! Tensors have llama.cpp's names, types and order of dimensions, and hold the bits that its own converter writes: matrices
//! in BF16 (or F32), norms, biases and routers in F32, a layer's experts stacked into one tensor. Matrices can also be written
//! as Q4_0, in whose blocks of 32 INT4's groups of 128 are repeated four times: the very weights of a quantised config.
//!
//! - `export`: [`export`], a checkpoint folder into a file;
//! - `metadata`: the keys that describe the model; `vocabulary`: those that describe the tokenizer;
//! - `tensors`: which tensor of the checkpoint becomes which in the file; `part`: where its values come from; `values`: how
//!   they are written;
//! - `write`: the file format itself.

mod error;
mod export;
mod metadata;
mod part;
mod tensors;
#[cfg(test)]
mod tests;
mod values;
mod vocabulary;
mod write;

pub use error::GgufError;
pub use export::{ExportOptions, ExportReport, ExportSource, export};
pub use write::{GgufType, MAGIC};
