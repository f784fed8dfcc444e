//! What can go wrong with evidence.

use std::path::{Path, PathBuf};

/// This crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Every error of this crate names the file or the record that it is about.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("{action} {path}: {source}", path = path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A value cannot be written as canonical JSON: a number that is not finite, or an integer that a double cannot hold.
    #[error("a record must survive canonical JSON unchanged (finite numbers, integers up to 2^53): {0}")]
    NotCanonical(String),
    /// A record would be longer than a ledger line may be.
    #[error("a record of {found} bytes is longer than the {limit} bytes that a ledger line may have")]
    TooLong {
        /// Bytes of the line.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// A writer id is not 16 hex digits.
    #[error("{path}: expected a writer id of 16 lowercase hex digits, found {found:?}", path = path.display())]
    BadWriter {
        /// The file that holds it.
        path: PathBuf,
        /// What it holds.
        found: String,
    },
    /// The ledger is no longer what was appended to it; continuing its chain would hide that.
    #[error("{path}: {detail}; nothing was appended: run `ledger verify`, then move the ledger aside", path = path.display())]
    Broken {
        /// The file concerned.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// A line could not be read as a record.
    #[error("{path}:{line}: {detail}", path = path.display())]
    BadRecord {
        /// The chain.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// What is wrong.
        detail: String,
    },
    /// A record names a raw log that the ledger does not hold.
    #[error("log {name:?} ({sha256}), which a record names, is not in {path}", path = path.display())]
    MissingLog {
        /// The log's name in the record.
        name: String,
        /// Its content hash.
        sha256: crate::Sha256,
        /// Where it was expected.
        path: PathBuf,
    },
    /// A raw log is not what the record names.
    #[error("{path}: log {name:?} was changed: {detail}", path = path.display())]
    ChangedLog {
        /// The log's name in the record.
        name: String,
        /// Where it lies.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// Current benchmark evidence is a run whose raw log is kept.
    #[error("current_benchmark evidence needs at least one raw log, found none")]
    NoRawLog,
    /// A hash prefix names no record.
    #[error("no record in {path} has a hash that starts with {prefix:?}", path = path.display())]
    NoSuchRecord {
        /// The ledger.
        path: PathBuf,
        /// The prefix asked for.
        prefix: String,
    },
    /// What should name a record is no beginning of a hash.
    #[error("expected at least six hex digits of a record's hash, found {prefix:?}")]
    BadPrefix {
        /// What was given.
        prefix: String,
    },
    /// A record that was invalidated would be used as if it counted.
    #[error("record {} does not count: record {} invalidates it: {reason}", record.short(), by.short())]
    Invalidated {
        /// The record, as it was first written.
        record: crate::Sha256,
        /// The record that says so.
        by: crate::Sha256,
        /// Why.
        reason: String,
    },
    /// A record would take its own place.
    #[error("record {} cannot take its own place", record.short())]
    ReplacesItself {
        /// The record, as it was first written.
        record: crate::Sha256,
    },
    /// A record is invalidated a second time.
    #[error("record {} is invalid already: {} says why", record.short(), by.short())]
    AlreadyInvalid {
        /// The record, as it was first written.
        record: crate::Sha256,
        /// The record that says so.
        by: crate::Sha256,
    },
    /// A hash prefix names several records.
    #[error("{prefix:?} names more than one record in {path}: give more digits", path = path.display())]
    Ambiguous {
        /// The ledger.
        path: PathBuf,
        /// The prefix asked for.
        prefix: String,
    },
    /// Records are only published out of, and imported from, a ledger that verifies.
    #[error("{path} does not verify (problem 1 of {problems}: {first}): nothing was taken from it", path = path.display())]
    SourceInvalid {
        /// The ledger that records would have come from.
        path: PathBuf,
        /// How many problems were found.
        problems: u64,
        /// The first.
        first: String,
    },
    /// A folder that should be a ledger holds no chain.
    #[error("{path} holds no chain: expected <writer>.jsonl beside <writer>.head", path = path.display())]
    NoChain {
        /// The folder.
        path: PathBuf,
    },
    /// Two ledgers hold different records in one place of one writer's chain.
    #[error(
        "{path}: record {sequence} of writer {writer} has hash {there}, here it has {here}: the chain forked, one of the \
         two was rewritten or two machines wrote as one; nothing was imported",
        path = path.display()
    )]
    Forked {
        /// The chain that was to be imported.
        path: PathBuf,
        /// Its writer.
        writer: crate::schema::WriterId,
        /// The first record that differs.
        sequence: u64,
        /// Its hash in this ledger.
        here: String,
        /// Its hash in the other.
        there: String,
    },
}

impl Error {
    /// Whether this is about evidence that cannot be trusted: changed, lost, or taken back. Anything else is a mistake of the
    /// caller's, or the system's.
    pub const fn is_invalid_evidence(&self) -> bool {
        matches!(
            self,
            Self::Broken { .. }
                | Self::BadRecord { .. }
                | Self::MissingLog { .. }
                | Self::ChangedLog { .. }
                | Self::Invalidated { .. }
                | Self::SourceInvalid { .. }
                | Self::Forked { .. }
        )
    }

    /// Wraps an I/O error with what was tried on which file.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }

    pub(crate) fn broken(path: &Path, detail: impl Into<String>) -> Self {
        Self::Broken { path: path.to_path_buf(), detail: detail.into() }
    }
}
