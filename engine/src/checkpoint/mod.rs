//! Reading a checkpoint folder: weights, `config.json`, `tokenizer.json`.
//!
//! Everything in such a folder is untrusted input: a size is checked before anything of that size is allocated, and an
//! error names the file, what was found there and what was expected.
//!
//! - `open`: [`Checkpoint`], the folder as a whole: which shards there are and which tensor lies where;
//! - `header`: the header of one safetensors file;
//! - `tensor`: [`TensorView`], one tensor's bytes and their exact widening to f32; `part`: vectors and matrices inside a
//!   larger tensor; `mxfp4`: four-bit floats in blocks;
//! - `hash`: SHA-256 of every file that decides what the model computes; `hash_cache`: of those that were hashed before;
//! - [`tokenizer`]: text to token ids and back.

mod error;
mod hash;
mod hash_cache;
mod header;
mod mxfp4;
mod open;
mod part;
mod tensor;
#[cfg(test)]
mod tests;
pub mod tokenizer;

pub use error::CheckpointError;
pub use hash::FileHash;
pub(crate) use hash::hex;
pub use hash_cache::HashCache;
pub use open::{Checkpoint, MAX_CONFIG_BYTES, Shard};
pub use tensor::{TensorView, WeightDtype};
