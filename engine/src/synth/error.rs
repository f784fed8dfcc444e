//! What can go wrong when a model is made up.

use std::path::PathBuf;

use crate::EngineError;
use crate::checkpoint::CheckpointError;
use crate::expert_cache::CacheError;
use crate::model::ModelError;

/// Why a synthetic model could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SynthError {
    /// A skew that is none.
    #[error("skew {found:?}, expected even or zipf:S with S above 0 and at most {MAX_EXPONENT}, as zipf:1.0")]
    Skew {
        /// What was given.
        found: String,
    },
    /// A recipe's number out of its range.
    #[error("{what} is {found}, expected {expected}")]
    Recipe {
        /// Which.
        what: &'static str,
        /// Its value.
        found: String,
        /// What would do.
        expected: String,
    },
    /// A shape that cannot be made up.
    #[error("{found}, expected {expected}")]
    Shape {
        /// What it has.
        found: String,
        /// What can be made up.
        expected: &'static str,
    },
    /// A file in a synthetic model's folder is not what its name says.
    #[error("{}: {found}, expected {expected}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What was found.
        found: String,
        /// What was expected in its place.
        expected: String,
    },
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// The config's.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The checkpoint's.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A file that could not be read.
    #[error(transparent)]
    File(#[from] crate::file::FileError),
    /// The expert cache's.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The engine's.
    #[error(transparent)]
    Engine(#[from] Box<EngineError>),
}

/// The largest exponent of a Zipf law: one expert then gets nearly everything that it can.
pub(super) const MAX_EXPONENT: f64 = 4.0;

impl SynthError {
    /// A [`SynthError::Io`] for `map_err`.
    pub(super) fn io(action: &'static str, path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
