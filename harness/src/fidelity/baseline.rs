//! The file of a baseline. Nobody vouches for it.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | magic, `ASSAYLGT` |
//! | 8 | length of the header, u64 little-endian |
//! | 32 | SHA-256 of all that follows: what the baseline is known by |
//! | length | the header, JSON ([`BaselineHeader`]) |
//! | the rest | a row for each token, in the order of the documents: every logit as f32, or the target's log-probability as f64 and k pairs of id (u32) and log-probability (f32); little-endian |

use super::header::{BaselineHeader, Complaint};
use super::row::Row;
use assay_engine::file::{self, FileError};
use assay_ledgers::Sha256;
use sha2::Digest;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"ASSAYLGT";
/// Magic, length and hash.
const PREFIX_BYTES: u64 = 8 + 8 + 32;
/// Eight million token ids.
const MAX_HEADER_BYTES: u64 = 64 << 20;
const BUFFER_BYTES: usize = 1 << 20;

/// Why a baseline cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BaselineError {
    /// It cannot be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// It cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
    /// It is none, or a damaged one.
    #[error("baseline {}: {found}, expected {expected}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What was found.
        found: String,
        /// What was expected.
        expected: String,
    },
}

/// A baseline being read, row by row.
#[derive(Debug)]
pub struct Baseline {
    /// What it says of itself.
    pub header: BaselineHeader,
    path: PathBuf,
    file: BufReader<File>,
    stated: Sha256,
    hasher: sha2::Sha256,
    row: Vec<u8>,
    rows_left: u64,
}

impl Baseline {
    /// Opens a file and checks its header and size. Rows are checked as they are read.
    ///
    /// # Errors
    /// A file that cannot be read or is no baseline of this version.
    pub fn open(path: &Path) -> Result<Self, BaselineError> {
        let file = file::open(path)?;
        let io = |source| BaselineError::Io { action: "read", path: path.to_owned(), source };
        let malformed =
            |found: String, expected: String| BaselineError::Malformed { path: path.to_owned(), found, expected };
        let size = file.metadata().map_err(io)?.len();
        let mut file = BufReader::with_capacity(BUFFER_BYTES, file);
        let mut prefix = [0u8; PREFIX_BYTES as usize];
        if size < PREFIX_BYTES {
            return Err(malformed(format!("{size} bytes"), format!("at least {PREFIX_BYTES}")));
        }
        file.read_exact(&mut prefix).map_err(io)?;
        let (magic, rest) = prefix.split_at(8);
        let (length, hash) = rest.split_at(8);
        if magic != MAGIC {
            return Err(malformed("another kind of file".to_owned(), "one that begins with ASSAYLGT".to_owned()));
        }
        let length = length.try_into().map_or(u64::MAX, u64::from_le_bytes);
        if length > MAX_HEADER_BYTES || length > size - PREFIX_BYTES {
            return Err(malformed(
                format!("a header of {length} bytes in a file of {size}"),
                format!("one that the file holds, of at most {MAX_HEADER_BYTES}"),
            ));
        }
        let mut text = vec![0u8; length as usize];
        file.read_exact(&mut text).map_err(io)?;
        let header: BaselineHeader =
            serde_json::from_slice(&text).map_err(|error| malformed(error.to_string(), "a header".to_owned()))?;
        let complain = |(found, expected): Complaint| malformed(found, expected);
        header.check().map_err(complain)?;
        let sizes = header.rows().zip(header.row_bytes()).and_then(|(rows, bytes)| {
            let total = rows.checked_mul(bytes)?.checked_add(PREFIX_BYTES + length)?;
            Some((rows, usize::try_from(bytes).ok()?, total))
        });
        let Some((rows_left, row_bytes, total)) = sizes else {
            return Err(malformed("rows of more bytes than can be addressed".to_owned(), "fewer".to_owned()));
        };
        if total != size {
            return Err(malformed(format!("{size} bytes"), format!("{total}, as its header says")));
        }
        let mut hasher = sha2::Sha256::new();
        hasher.update(&text);
        let stated = Sha256(hash.try_into().unwrap_or([0; 32]));
        let row = vec![0; row_bytes];
        Ok(Self { header, path: path.to_owned(), file, stated, hasher, row, rows_left })
    }

    /// The next row; `None` after the last one.
    ///
    /// # Errors
    /// A row that cannot be one.
    pub fn next_row(&mut self) -> Result<Option<Row>, BaselineError> {
        if self.rows_left == 0 {
            return Ok(None);
        }
        self.rows_left -= 1;
        let (path, logits, vocab_size) = (&self.path, self.header.logits, self.header.vocab_size);
        self.file.read_exact(&mut self.row).map_err(|source| BaselineError::Io {
            action: "read",
            path: path.clone(),
            source,
        })?;
        self.hasher.update(&self.row);
        let row = Row::read(&self.row, logits, vocab_size);
        row.map(Some).map_err(|(found, expected)| BaselineError::Malformed { path: path.clone(), found, expected })
    }

    /// After the last row: whether all of it is what its hash says. That hash is what the baseline is known by.
    ///
    /// # Errors
    /// Rows that were not read; another hash.
    pub fn finish(self) -> Result<Sha256, BaselineError> {
        let malformed = |found: String, expected: String| {
            Err(BaselineError::Malformed { path: self.path.clone(), found, expected })
        };
        if self.rows_left > 0 {
            return malformed(format!("{} rows that were not read", self.rows_left), "none".to_owned());
        }
        let found = Sha256(self.hasher.finalize().into());
        if found != self.stated {
            return malformed(format!("SHA-256 {found}"), format!("{}, as it says", self.stated));
        }
        Ok(found)
    }
}

/// A file that is for everybody whom the user lets read; a temporary one is for its owner alone.
fn temporary(folder: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o666)).tempfile_in(folder)
}

/// A baseline being written: beside its place, and moved there when it is whole.
#[derive(Debug)]
pub struct BaselineWriter {
    header: BaselineHeader,
    path: PathBuf,
    file: BufWriter<tempfile::NamedTempFile>,
    hasher: sha2::Sha256,
    row: Vec<u8>,
    rows: u64,
}

impl BaselineWriter {
    /// Writes everything before the rows.
    ///
    /// # Errors
    /// A header that no reader would take; a file that cannot be written.
    pub fn create(path: &Path, header: BaselineHeader) -> Result<Self, BaselineError> {
        header.check().map_err(|(found, expected)| BaselineError::Malformed {
            path: path.to_owned(),
            found,
            expected,
        })?;
        let io = |source| BaselineError::Io { action: "write", path: path.to_owned(), source };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let text = serde_json::to_vec(&header).map_err(|error| io(error.into()))?;
        let mut file = BufWriter::with_capacity(BUFFER_BYTES, temporary(folder).map_err(io)?);
        let mut hasher = sha2::Sha256::new();
        hasher.update(&text);
        let length = (text.len() as u64).to_le_bytes();
        for part in [&MAGIC[..], &length, &[0; 32], &text] {
            file.write_all(part).map_err(io)?;
        }
        Ok(Self { header, path: path.to_owned(), file, hasher, row: Vec::new(), rows: 0 })
    }

    /// The next position's complete logits.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn row(&mut self, logits: &[f32], target: Option<u32>) -> Result<(), BaselineError> {
        self.row.clear();
        Row::of(self.header.logits, logits, target).write(&mut self.row);
        self.hasher.update(&self.row);
        self.rows += 1;
        let path = &self.path;
        self.file.write_all(&self.row).map_err(|source| BaselineError::Io {
            action: "write",
            path: path.clone(),
            source,
        })
    }

    /// Puts the file in its place; its hash.
    ///
    /// # Errors
    /// Rows that are missing; a file that cannot be written.
    pub fn finish(self) -> Result<Sha256, BaselineError> {
        let Self { header, path, file, hasher, rows, .. } = self;
        if Some(rows) != header.rows() {
            let expected = format!("{:?}", header.rows());
            return Err(BaselineError::Malformed { path, found: format!("{rows} rows"), expected });
        }
        let io = |source| BaselineError::Io { action: "write", path: path.clone(), source };
        let hash: [u8; 32] = hasher.finalize().into();
        let mut file = file.into_inner().map_err(|error| io(error.into_error()))?;
        file.seek(SeekFrom::Start(16)).map_err(io)?;
        file.write_all(&hash).map_err(io)?;
        file.as_file().sync_all().map_err(io)?;
        file.persist(&path).map_err(|error| io(error.error))?;
        Ok(Sha256(hash))
    }
}
