//! What can go wrong when a checkpoint is written as GGUF.

use std::path::PathBuf;

use crate::checkpoint::CheckpointError;
use crate::expert_cache::CacheError;

/// Why a checkpoint could not be written as GGUF.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// A file of the checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// An expert cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A tensor's values do not fit its type.
    #[error("tensor {tensor}: {found}, expected {expected}")]
    Values {
        /// The tensor, by its name in the file.
        tensor: String,
        /// What was found.
        found: String,
        /// What the type can hold.
        expected: String,
    },
    /// The operating system refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// GGUF, or llama.cpp, has no way to say this.
    #[error("{what} is {found}, which cannot be written as GGUF; expected {expected}")]
    Unsupported {
        /// Which property of the model or the tokenizer.
        what: &'static str,
        /// Its value.
        found: String,
        /// What can be written.
        expected: String,
    },
    /// A file beside the weights is not what its name says.
    #[error("{path}: {found}, expected {expected}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What was found.
        found: String,
        /// What was expected in its place.
        expected: &'static str,
    },
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
}

impl GgufError {
    /// An [`GgufError::Io`] for `map_err`.
    pub(super) fn io(action: &'static str, path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
