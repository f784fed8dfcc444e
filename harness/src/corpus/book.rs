//! A checked book and its regions.

use super::canonical::{MarkerError, canonical};
use super::manifest::{BookPin, MAX_BOOK_BYTES};
use assay_engine::file::{self, FileError};
use assay_ledgers::Sha256;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A book is divided into this many equal parts, by bytes.
const PARTS: usize = 5;

/// What a stretch of a book is for. Regions do not touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Region {
    /// Timed prompts and held-out documents: the first three fifths.
    Timed,
    /// Warm-up text: the fourth fifth.
    WarmUp,
    /// Heatmaps: the last fifth.
    Heatmap,
}

/// A book's canonical text.
#[derive(Debug, Clone)]
pub struct Book {
    /// File name.
    pub file: String,
    /// Title.
    pub title: String,
    /// SHA-256 of the canonical text.
    pub canonical_sha256: Sha256,
    /// Canonical text.
    text: String,
}

/// A stretch of a canonical text, by its bytes: where something was cut from. `end` bounds the text that a tokenizer
/// was given, so what was cut ends there or before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextSpan {
    /// File name of the book.
    pub book: String,
    /// SHA-256 of the canonical text: one text may go by two names.
    pub canonical_sha256: Sha256,
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

/// Texts that are missing or not the pinned ones.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The manifest is not one.
    #[error("corpus manifest {}: {reason}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// The set's files are nowhere.
    #[error("{0}")]
    NotFound(String),
    /// A file holds something else than what is pinned.
    #[error("{}: {what} has SHA-256 {found}, expected {expected}", path.display())]
    Digest {
        /// The file.
        path: PathBuf,
        /// The file itself or its canonical text.
        what: &'static str,
        /// What it has.
        found: Sha256,
        /// What is pinned.
        expected: Sha256,
    },
    /// Bytes that are no text.
    #[error("{}: not UTF-8 from byte {valid_up_to} on", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Where it stops being UTF-8.
        valid_up_to: usize,
    },
    /// A canonical text of another length than is pinned.
    #[error("{}: its canonical text has {found} bytes, expected {expected}", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes of its canonical text.
        found: usize,
        /// What is pinned.
        expected: usize,
    },
    /// A text without its markers.
    #[error("{}: {source}", path.display())]
    Marker {
        /// The file.
        path: PathBuf,
        /// Which.
        source: MarkerError,
    },
    /// A prompt was about to be cut from text that built the heatmap.
    #[error(
        "prompt text {}..{} of {} overlaps heatmap text {}..{} of {}: a cache seeded with the text it is measured on proves \
         nothing",
        prompt.start, prompt.end, prompt.book, heatmap.start, heatmap.end, heatmap.book
    )]
    Overlap {
        /// The prompt's text.
        prompt: Box<TextSpan>,
        /// The heatmap's.
        heatmap: Box<TextSpan>,
    },
}

impl Book {
    /// Reads a file and checks it, as it is and in canonical form, against its pin.
    pub(super) fn read(path: &Path, pin: &BookPin) -> Result<Self, CorpusError> {
        let bytes = file::read(path, 2 * MAX_BOOK_BYTES as u64)?;
        let raw = std::str::from_utf8(&bytes)
            .map_err(|error| CorpusError::NotUtf8 { path: path.to_owned(), valid_up_to: error.valid_up_to() })?;
        check_digest(path, "the file", &bytes, pin.sha256)?;
        let text = canonical(raw).map_err(|source| CorpusError::Marker { path: path.to_owned(), source })?;
        check_digest(path, "its canonical text", text.as_bytes(), pin.canonical_sha256)?;
        if text.len() != pin.canonical_bytes {
            return Err(CorpusError::Length {
                path: path.to_owned(),
                found: text.len(),
                expected: pin.canonical_bytes,
            });
        }
        Ok(Book { file: pin.file.clone(), title: pin.title.clone(), canonical_sha256: pin.canonical_sha256, text })
    }

    /// Bytes of the canonical text.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// A region's bytes. Borders are moved down to a character's start.
    pub fn range(&self, region: Region) -> Range<usize> {
        let border = |part: usize| self.floor(self.text.len() / PARTS * part);
        match region {
            Region::Timed => 0..border(3),
            Region::WarmUp => border(3)..border(4),
            Region::Heatmap => border(4)..self.text.len(),
        }
    }

    /// A region's text.
    pub fn text(&self, region: Region) -> &str {
        &self.text[self.range(region)]
    }

    /// Some bytes of the text; both ends lie on characters' starts.
    pub(super) fn slice(&self, bytes: Range<usize>) -> &str {
        &self.text[bytes]
    }

    /// The start of the character that byte `offset` belongs to.
    pub(super) fn floor(&self, offset: usize) -> usize {
        self.text.floor_char_boundary(offset)
    }

    /// The span of `bytes` of this book.
    pub fn span(&self, bytes: Range<usize>) -> TextSpan {
        TextSpan {
            book: self.file.clone(),
            canonical_sha256: self.canonical_sha256,
            start: bytes.start,
            end: bytes.end,
        }
    }

    #[cfg(test)]
    pub(super) fn of_text(file: &str, text: &str) -> Self {
        Book { file: file.into(), title: file.into(), canonical_sha256: Sha256::of(text.as_bytes()), text: text.into() }
    }
}

impl TextSpan {
    /// Whether the two share a byte.
    pub fn overlaps(&self, other: &TextSpan) -> bool {
        self.canonical_sha256 == other.canonical_sha256 && self.start < other.end && other.start < self.end
    }
}

/// Checks that no prompt was cut from text that built the heatmap, whatever divided the books when it was built.
///
/// # Errors
/// The first overlap.
pub fn check_disjoint(prompts: &[TextSpan], heatmap: &[TextSpan]) -> Result<(), CorpusError> {
    for prompt in prompts {
        if let Some(heatmap) = heatmap.iter().find(|heatmap| prompt.overlaps(heatmap)) {
            return Err(CorpusError::Overlap { prompt: Box::new(prompt.clone()), heatmap: Box::new(heatmap.clone()) });
        }
    }
    Ok(())
}

fn check_digest(path: &Path, what: &'static str, bytes: &[u8], expected: Sha256) -> Result<(), CorpusError> {
    let found = Sha256::of(bytes);
    if found == expected {
        return Ok(());
    }
    Err(CorpusError::Digest { path: path.to_owned(), what, found, expected })
}
