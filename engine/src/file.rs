//! Reading a file that nobody vouches for: an ordinary one, of at most a stated size.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The operating system refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was attempted: `open`, `read`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A folder, a pipe, a device.
    #[error("{path}: {found}, expected an ordinary file")]
    NotOrdinary {
        /// The path.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// It is larger than anything sensible.
    #[error("{path}: {found} bytes or more, expected at most {limit}")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes that were read before giving up.
        found: u64,
        /// Bytes that are allowed.
        limit: u64,
    },
    /// Bytes that are no text.
    #[error("{path}: not UTF-8 from byte {valid_up_to} on, expected a text")]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Where it stops being UTF-8.
        valid_up_to: usize,
    },
}

/// Opens an ordinary file (or a link to one).
///
/// # Errors
/// [`FileError::Io`], [`FileError::NotOrdinary`].
pub fn open(path: &Path) -> Result<File, FileError> {
    let io = |source| FileError::Io { action: "open", path: path.to_owned(), source };
    // Asked before opening, since opening a pipe waits for its other end.
    let metadata = std::fs::metadata(path).map_err(io)?;
    if !metadata.is_file() {
        let found = if metadata.is_dir() { "a folder" } else { "a special file" };
        return Err(FileError::NotOrdinary { path: path.to_owned(), found });
    }
    File::open(path).map_err(io)
}

/// Reads a whole file of at most `limit` bytes.
///
/// # Errors
/// As [`open`]; a file that is longer, also where it grows meanwhile.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
    let file = open(path)?;
    let mut bytes = Vec::new();
    // One byte more than the limit, so that a longer file is noticed.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(|source| FileError::Io {
        action: "read",
        path: path.to_owned(),
        source,
    })?;
    let found = bytes.len() as u64;
    if found > limit { Err(FileError::TooLarge { path: path.to_owned(), found, limit }) } else { Ok(bytes) }
}

/// Reads a whole text of at most `limit` bytes.
///
/// # Errors
/// As [`read`]; bytes that are not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> Result<String, FileError> {
    String::from_utf8(read(path, limit)?)
        .map_err(|error| FileError::NotUtf8 { path: path.to_owned(), valid_up_to: error.utf8_error().valid_up_to() })
}
