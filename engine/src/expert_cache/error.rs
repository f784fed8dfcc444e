//! What can be wrong with an expert cache.

use std::path::{Path, PathBuf};

use assay_kernels::layout::LayoutError;

use super::encode::EncodeError;
use crate::checkpoint::CheckpointError;

/// Why an expert cache could not be built or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
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
    /// Memory for the experts could not be had.
    #[error("cannot map memory for the experts: {0}")]
    Memory(#[from] std::io::Error),
    /// The checkpoint could not be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A tensor could not be encoded.
    #[error("tensor {tensor}: {source}")]
    Encode {
        /// The tensor.
        tensor: String,
        /// Where and why.
        source: EncodeError,
    },
    /// The model has something that a cache cannot hold.
    #[error("layer {layer}: {found}, expected {expected}")]
    Model {
        /// Layer of the model.
        layer: usize,
        /// What the model has.
        found: String,
        /// What a cache can hold.
        expected: &'static str,
    },
    /// The file is not an expert cache, or a damaged one.
    #[error("{}: {found}, expected {expected}; {REBUILD}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What was found.
        found: String,
        /// What was expected in its place.
        expected: String,
    },
    /// The file is a cache of something else.
    #[error("{}: {field} is {found}, expected {expected}; {REBUILD}", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// What differs.
        field: String,
        /// The file's value.
        found: String,
        /// The value that was asked for.
        expected: String,
    },
    /// The bytes of a layer are not those that were written.
    #[error("{}: sha256 of layer {layer} is {found}, expected {expected}: the file is damaged; {REBUILD}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Layer of the model.
        layer: usize,
        /// The hash of the bytes.
        found: String,
        /// The hash in the header.
        expected: String,
    },
    /// A packed matrix breaks the rules of its layout.
    #[error("{}: layer {layer}, expert {expert}, {matrix}: {source}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Layer of the model.
        layer: usize,
        /// Expert of the layer.
        expert: usize,
        /// `gate_proj`, `up_proj` or `down_proj`.
        matrix: &'static str,
        /// Where and why.
        source: LayoutError,
    },
    /// A caller asked for what the cache does not have.
    #[error("{}: {found}, expected {expected}", path.display())]
    Request {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        found: String,
        /// What there is.
        expected: String,
    },
    /// The build was told to stop.
    #[error("building {} was cancelled; nothing was left behind", path.display())]
    Cancelled {
        /// The file that was to be built.
        path: PathBuf,
    },
}

/// What to do about a cache that does not fit.
const REBUILD: &str = "pack it again with `assay cache build CONFIG --replace`";

impl CacheError {
    /// A [`CacheError::Io`] for `map_err`.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    /// A [`CacheError::Malformed`].
    pub(super) fn malformed(path: &Path, found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::Malformed { path: path.to_owned(), found: found.into(), expected: expected.into() }
    }
}
