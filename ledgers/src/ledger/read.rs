//! Streaming a ledger.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Take};
use std::path::{Path, PathBuf};

use super::head::{chain_path, read_head};
use super::line::{LINE_BYTES_MAX, describe, is_garbage, open};
use crate::schema::{Head, Record, WriterId};
use crate::{Error, Result};

/// The chains of a ledger in the order of their names, and files that look like chains but are named otherwise.
pub(crate) fn chains(dir: &Path) -> Result<(Vec<WriterId>, Vec<PathBuf>)> {
    let (mut writers, mut strangers) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(dir).map_err(Error::io("list", dir))? {
        let path = entry.map_err(Error::io("list", dir))?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if !matches!(extension, Some("jsonl" | "head")) {
            continue;
        }
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        match WriterId::try_from(stem) {
            Ok(writer) => writers.push(writer),
            Err(_) => strangers.push(path),
        }
    }
    writers.sort_unstable();
    writers.dedup();
    strangers.sort_unstable();
    Ok((writers, strangers))
}

/// One chain as it stood at one moment: appends that come later are not seen.
pub(crate) struct Snapshot {
    pub(crate) path: PathBuf,
    pub(crate) reader: BufReader<Take<File>>,
}

/// Opens a chain together with its head. The lock is shared and held only to look at the two; `None` for a chain whose
/// file does not exist.
pub(crate) fn snapshot(dir: &Path, writer: &WriterId) -> Result<(Option<Snapshot>, Result<Option<Head>>)> {
    let path = chain_path(dir, writer);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((None, read_head(dir, writer))),
        Err(error) => return Err(Error::io("open", &path)(error)),
    };
    file.lock_shared().map_err(Error::io("lock", &path))?;
    let head = read_head(dir, writer);
    let length = file.metadata().map_err(Error::io("inspect", &path))?.len();
    file.unlock().map_err(Error::io("unlock", &path))?;
    Ok((Some(Snapshot { path, reader: BufReader::with_capacity(1 << 18, file.take(length)) }), head))
}

/// A line, and whether its newline is there.
pub(crate) enum Line {
    Whole(Vec<u8>),
    /// No newline, or longer than any line may be.
    Cut(Vec<u8>),
}

impl Snapshot {
    /// True if no byte is left.
    pub(crate) fn is_at_end(&mut self) -> Result<bool> {
        self.reader.fill_buf().map(<[u8]>::is_empty).map_err(Error::io("read", &self.path))
    }

    /// The next line without its newline.
    pub(crate) fn next_line(&mut self) -> Result<Option<Line>> {
        let mut line = Vec::new();
        let mut limited = (&mut self.reader).take(LINE_BYTES_MAX as u64);
        limited.read_until(b'\n', &mut line).map_err(Error::io("read", &self.path))?;
        Ok(match line.pop() {
            None => None,
            Some(b'\n') => Some(Line::Whole(line)),
            Some(byte) => {
                line.push(byte);
                Some(Line::Cut(line))
            }
        })
    }
}

/// The records of a ledger, chain by chain: see [`read`].
pub struct Records {
    dir: PathBuf,
    writers: std::vec::IntoIter<WriterId>,
    current: Option<(Snapshot, u64)>,
    failed: bool,
}

/// Streams every record of the ledger in `dir`, each with its own hash checked. Links between records are
/// [`crate::verify`]'s to judge. A torn last line, which is no record yet, is left out; any other fault is an error,
/// and the last item.
///
/// # Errors
/// [`Error::Io`] if the folder cannot be listed.
pub fn read(dir: impl Into<PathBuf>) -> Result<Records> {
    let dir = dir.into();
    let (writers, _) = chains(&dir)?;
    Ok(Records { dir, writers: writers.into_iter(), current: None, failed: false })
}

/// Where every chain of the ledger in `dir` ends: what a report commits, so that a removed tail shows.
///
/// # Errors
/// [`Error::Io`]; [`Error::Broken`] if a head cannot be read.
pub fn heads(dir: &Path) -> Result<Vec<Head>> {
    let (writers, _) = chains(dir)?;
    let heads: Result<Vec<_>> = writers.iter().map(|writer| read_head(dir, writer)).collect();
    Ok(heads?.into_iter().flatten().collect())
}

impl Records {
    fn advance(&mut self) -> Result<Option<Record>> {
        loop {
            let Some((snapshot, number)) = &mut self.current else {
                let Some(writer) = self.writers.next() else { return Ok(None) };
                self.current = snapshot(&self.dir, &writer)?.0.map(|snapshot| (snapshot, 0));
                continue;
            };
            match snapshot.next_line()? {
                Some(Line::Cut(cut)) if cut.len() >= LINE_BYTES_MAX => {
                    let detail = format!("the line is longer than {LINE_BYTES_MAX} bytes");
                    return Err(Error::BadRecord { path: snapshot.path.clone(), line: *number + 1, detail });
                }
                None | Some(Line::Cut(_)) => self.current = None,
                Some(Line::Whole(line)) => {
                    *number += 1;
                    match open(&line) {
                        Ok(record) => return Ok(Some(record)),
                        Err(faults) if is_garbage(&faults) && snapshot.is_at_end()? => self.current = None,
                        Err(faults) => {
                            let (path, line) = (snapshot.path.clone(), *number);
                            return Err(Error::BadRecord { path, line, detail: describe(&faults) });
                        }
                    }
                }
            }
        }
    }
}

impl Iterator for Records {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.advance().transpose();
        self.failed = matches!(next, Some(Err(_)));
        next
    }
}
