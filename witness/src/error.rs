//! What can be wrong with a file of this crate.

use std::path::PathBuf;

/// Why an artifact, an observation or a gate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WitnessError {
    /// The operating system refused.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file is larger than anything sensible.
    #[error("{path}: {found} bytes or more, expected at most {limit}")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes that were read before giving up.
        found: u64,
        /// Bytes that are allowed.
        limit: u64,
    },
    /// The file is not of its schema.
    #[error("{path}: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// The file says things that do not go together.
    #[error("{path}: {place}: {found}, expected {expected}")]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// Where in it.
        place: String,
        /// What is there.
        found: String,
        /// What must be there.
        expected: String,
    },
    /// The file is of another version of the schema: it may be perfect, but nothing can be judged by it.
    #[error("{path}: schema version {found}, expected {expected}")]
    SchemaVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The version that is read.
        expected: u32,
    },
    /// The artifact is of other weights or another tokenizer than what is to be judged.
    #[error("{path}: captured with {what} {found}, but this one is {expected}")]
    Foreign {
        /// The artifact or the observation.
        path: PathBuf,
        /// What differs: the checkpoint, the tokenizer, the artifact.
        what: &'static str,
        /// The file's fingerprint.
        found: String,
        /// The fingerprint of what is to be judged.
        expected: String,
    },
}

impl WitnessError {
    /// Whether this is broken evidence (to be answered with INVALID) and not a mistake in a file.
    pub fn is_invalid_evidence(&self) -> bool {
        matches!(self, Self::SchemaVersion { .. } | Self::Foreign { .. })
    }
}
