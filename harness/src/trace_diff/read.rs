//! Lines of a trace that nobody vouches for: each of a bounded length, each an event, the first one the contract.

use assay_engine::file::{self, FileError};
use assay_engine::trace::{Contract, Event, FORMAT_VERSION, MAX_LINE_BYTES};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

const BUFFER_BYTES: usize = 1 << 20;

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceFileError {
    /// It cannot be opened or read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A line is not what it should be.
    #[error("{}, line {line}: {found}, expected {expected}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Which line, from 1.
        line: u64,
        /// What is there.
        found: String,
        /// What should be.
        expected: String,
    },
}

impl TraceFileError {
    /// Whether the file is there and says something that cannot be: broken evidence, and no slip of the user's.
    pub fn is_broken_evidence(&self) -> bool {
        matches!(self, Self::Line { .. })
    }
}

/// A file, line by line.
pub(super) struct Reader {
    path: PathBuf,
    file: BufReader<File>,
    /// Lines read.
    pub(super) lines: u64,
    /// Bytes read.
    pub(super) bytes: u64,
    /// The file stops in the middle of a line.
    pub(super) torn: bool,
}

impl Reader {
    /// Opens a trace and reads its first line.
    pub(super) fn open(path: &Path) -> Result<(Self, Contract), TraceFileError> {
        let file = BufReader::with_capacity(BUFFER_BYTES, file::open(path)?);
        let mut reader = Reader { path: path.to_owned(), file, lines: 0, bytes: 0, torn: false };
        let mut line = Vec::new();
        let none = !reader.read(&mut line)?;
        let first = if none { None } else { Some(reader.parse(&line, 1)?) };
        match first {
            Some(Event::Contract(contract)) if contract.format_version == FORMAT_VERSION => Ok((reader, contract)),
            Some(Event::Contract(contract)) => {
                let found = format!("format version {}", contract.format_version);
                Err(reader.broken(1, found, FORMAT_VERSION.to_string()))
            }
            Some(_) => Err(reader.broken(1, "another event".to_owned(), "a contract".to_owned())),
            None => Err(reader.broken(1, "no line".to_owned(), "a contract".to_owned())),
        }
    }

    /// The next line without its newline; false at the end, also where that is in the middle of a line.
    pub(super) fn read(&mut self, line: &mut Vec<u8>) -> Result<bool, TraceFileError> {
        line.clear();
        let most = MAX_LINE_BYTES as u64 + 1;
        let read = (&mut self.file).take(most).read_until(b'\n', line).map_err(|source| FileError::Io {
            action: "read",
            path: self.path.clone(),
            source,
        })?;
        self.bytes += read as u64;
        if line.pop_if(|&mut last| last == b'\n').is_some() {
            self.lines += 1;
            return Ok(true);
        }
        if read as u64 == most {
            let found = format!("more than {MAX_LINE_BYTES} bytes");
            return Err(self.broken(self.lines + 1, found, "a shorter line".to_owned()));
        }
        self.torn = read > 0;
        Ok(false)
    }

    /// A line as an event.
    pub(super) fn parse<'a>(&self, raw: &'a [u8], line: u64) -> Result<Event<'a>, TraceFileError> {
        serde_json::from_slice(raw).map_err(|error| self.broken(line, error.to_string(), "an event".to_owned()))
    }

    pub(super) fn broken(&self, line: u64, found: String, expected: String) -> TraceFileError {
        TraceFileError::Line { path: self.path.clone(), line, found, expected }
    }
}
