//! Adding to a chain.
//!
//! The order that makes a kill at any point harmless: the log is stored, the line is written with one write and synced,
//! then the head moves. The head therefore never names a record that is not there; what lies behind it is an append
//! that was cut short. If that is a whole record it counts; if not, its bytes are moved aside. Where the head names more
//! than the chain holds, records were lost, and appending refuses.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use super::head::{chain_path, head_path, read_head, read_small, sync_dir, write_head};
use super::line::{LINE_BYTES_MAX, SEAL_BYTES, describe, is_garbage, open, seal, stated_hash};
use super::logs;
use crate::schema::{EvidenceClass, FORMAT_VERSION, Head, LogRef, Origin, Record, TimeUtc, WriterId};
use crate::{Draft, Error, Result, Sha256};

/// What is written to see whether there is room, in bytes: a block of most file systems.
const PROBE_BYTES: usize = 4096;

/// A ledger that this machine appends to.
#[derive(Debug, Clone)]
pub struct Ledger {
    dir: PathBuf,
    writer: WriterId,
}

/// What an append did.
#[derive(Debug, Clone, PartialEq)]
pub struct Appended {
    /// The record as it was written.
    pub record: Record,
    /// Where the bytes of an earlier append that was cut short were moved, if there were any.
    pub torn: Option<PathBuf>,
}

impl Ledger {
    /// Opens the ledger in `dir`, creating the folder and this machine's writer id where they do not exist, and refuses
    /// one that has lost records or cannot be written: better before a run than after it.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::BadWriter`], [`Error::Broken`].
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self> {
        let dir = dir.into();
        std::fs::create_dir_all(&dir).map_err(Error::io("create", &dir))?;
        let writer = writer_id(&dir)?;
        let ledger = Self { dir, writer };
        if chain_path(&ledger.dir, &ledger.writer).exists() || head_path(&ledger.dir, &ledger.writer).exists() {
            let mut file = ledger.lock()?;
            ledger.find_tail(&mut file)?;
        }
        ledger.check_writable()?;
        Ok(ledger)
    }

    /// Writes a block where the next append will write; nothing of it stays.
    fn check_writable(&self) -> Result<()> {
        let logs = self.dir.join("logs");
        std::fs::create_dir_all(&logs).map_err(Error::io("create", &logs))?;
        for folder in [&self.dir, &logs] {
            tempfile::tempfile_in(folder)
                .and_then(|mut file| file.write_all(&[0; PROBE_BYTES]))
                .map_err(Error::io("write in", folder))?;
        }
        let head = head_path(&self.dir, &self.writer);
        if head.exists() {
            OpenOptions::new().write(true).open(&head).map_err(Error::io("open", &head))?;
        }
        Ok(())
    }

    /// The chain of `writer` in a folder that exists.
    pub(super) fn of_writer(dir: &Path, writer: &WriterId) -> Self {
        Self { dir: dir.to_path_buf(), writer: writer.clone() }
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// This machine's writer id in it.
    pub fn writer(&self) -> &WriterId {
        &self.writer
    }

    /// Stores a raw log by content and returns the reference that a record names it by.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn store_log(&self, name: &str, content: impl Read) -> Result<LogRef> {
        logs::store_log(&self.dir, name, content)
    }

    /// The content of a raw log in the ledger in `dir`, which was checked against its hash, read as it is decompressed.
    ///
    /// # Errors
    /// [`Error::MissingLog`], [`Error::ChangedLog`], [`Error::Io`].
    pub fn read_log(dir: &Path, log: &LogRef) -> Result<impl Read + use<>> {
        logs::open_checked(dir, log)
    }

    /// Appends a record; when this returns it is on disk. Any number of processes may do so at once.
    ///
    /// # Errors
    /// [`Error::MissingLog`] and [`Error::NoRawLog`] before anything is written; [`Error::NotCanonical`] and
    /// [`Error::TooLong`] for a record that cannot be a line; [`Error::Broken`] if the ledger has lost records.
    pub fn append(&self, draft: Draft) -> Result<Appended> {
        self.append_with(draft, None)
    }

    pub(super) fn append_with(&self, draft: Draft, origin: Option<Origin>) -> Result<Appended> {
        self.check(&draft)?;
        let mut file = self.lock()?;
        let (tail, torn) = self.settle(&mut file)?;
        let mut record = Record {
            format_version: FORMAT_VERSION,
            writer: self.writer.clone(),
            sequence: tail.count + 1,
            previous: tail.hash,
            time_utc: TimeUtc::now(),
            origin,
            evidence_class: draft.evidence_class,
            body: draft.body,
            identity: draft.identity,
            observations: draft.observations,
            verdicts: draft.verdicts,
            command: draft.command,
            logs: draft.logs,
            hash: Sha256::default(),
        };
        let line = seal(&mut record)?;
        let path = chain_path(&self.dir, &self.writer);
        file.seek(SeekFrom::Start(tail.bytes)).map_err(Error::io("seek in", &path))?;
        if let Err(error) = file.write_all(&line).and_then(|()| file.sync_data()) {
            // A full disk must not leave half a line; if this fails too, the next append moves it aside.
            let _ = file.set_len(tail.bytes);
            return Err(Error::io("append to", &path)(error));
        }
        let head = Head {
            writer: self.writer.clone(),
            count: record.sequence,
            bytes: tail.bytes + line.len() as u64,
            hash: Some(record.hash),
        };
        write_head(&self.dir, &head)?;
        Ok(Appended { record, torn })
    }

    fn check(&self, draft: &Draft) -> Result<()> {
        if draft.evidence_class == EvidenceClass::CurrentBenchmark && draft.logs.is_empty() {
            return Err(Error::NoRawLog);
        }
        for log in &draft.logs {
            if !logs::is_stored(&self.dir, log) {
                let path = logs::log_path(&self.dir, &log.sha256);
                return Err(Error::MissingLog { name: log.name.clone(), sha256: log.sha256, path });
            }
        }
        Ok(())
    }

    /// Opens the chain under an exclusive lock that lasts as long as the file is open.
    pub(super) fn lock(&self) -> Result<File> {
        let path = chain_path(&self.dir, &self.writer);
        let new = !path.exists();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(Error::io("open", &path))?;
        if new {
            sync_dir(&self.dir)?;
        }
        file.lock().map_err(Error::io("lock", &path))?;
        Ok(file)
    }

    /// Brings head and chain to agree after an append that was cut short, and returns where the chain ends.
    pub(super) fn settle(&self, file: &mut File) -> Result<(Head, Option<PathBuf>)> {
        let path = chain_path(&self.dir, &self.writer);
        let tail = self.find_tail(file)?;
        if tail.moved {
            write_head(&self.dir, &tail.head)?;
        }
        if tail.torn.is_empty() {
            return Ok((tail.head, None));
        }
        let aside = self.move_aside(&tail.torn)?;
        file.set_len(tail.head.bytes).and_then(|()| file.sync_all()).map_err(Error::io("cut", &path))?;
        Ok((tail.head, Some(aside)))
    }

    /// Finds the end of the chain by reading no more than what lies behind the head.
    pub(super) fn find_tail(&self, file: &mut File) -> Result<Tail> {
        let path = chain_path(&self.dir, &self.writer);
        let length = file.metadata().map_err(Error::io("inspect", &path))?.len();
        let (mut head, mut moved) = match read_head(&self.dir, &self.writer)? {
            Some(head) => (head, false),
            None if length == 0 => (Head { writer: self.writer.clone(), count: 0, bytes: 0, hash: None }, true),
            None => return Err(Error::broken(&head_path(&self.dir, &self.writer), "the chain's head is missing")),
        };
        if length < head.bytes {
            let detail = format!(
                "the head names {} records in {} bytes, found {length} bytes: records were lost",
                head.count, head.bytes
            );
            return Err(Error::broken(&path, detail));
        }
        self.check_head_record(file, &head)?;
        let behind = usize::try_from(length - head.bytes).unwrap_or(usize::MAX);
        if behind > 4 * LINE_BYTES_MAX {
            return Err(Error::broken(&path, format!("{behind} bytes lie behind the head, more than appends leave")));
        }
        let mut bytes = vec![0; behind];
        read_at(file, head.bytes, &mut bytes, &path)?;
        let mut rest = bytes.as_slice();
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            match open(&rest[..end]) {
                Ok(record) if follows(&record, &head) => {
                    head.count = record.sequence;
                    head.hash = Some(record.hash);
                    head.bytes += end as u64 + 1;
                    moved = true;
                    rest = &rest[end + 1..];
                }
                Ok(record) => {
                    let detail = format!("record {} behind the head does not continue the chain", record.sequence);
                    return Err(Error::broken(&path, detail));
                }
                Err(faults) if is_garbage(&faults) => break,
                Err(faults) => return Err(Error::broken(&path, describe(&faults))),
            }
        }
        Ok(Tail { head, moved, torn: rest.to_vec() })
    }

    /// The head's hash must be the one that the chain's line there ends in.
    fn check_head_record(&self, file: &mut File, head: &Head) -> Result<()> {
        let Some(hash) = head.hash else { return Ok(()) };
        let path = chain_path(&self.dir, &self.writer);
        let changed = || {
            Error::broken(&path, format!("the head names record {} ({}), which is not there", head.count, hash.short()))
        };
        let start = head.bytes.checked_sub(SEAL_BYTES as u64 + 1).ok_or_else(changed)?;
        let mut end = [0; SEAL_BYTES + 1];
        read_at(file, start, &mut end, &path)?;
        if end[SEAL_BYTES] == b'\n' && stated_hash(&end[..SEAL_BYTES]) == Some(hash) { Ok(()) } else { Err(changed()) }
    }

    fn move_aside(&self, bytes: &[u8]) -> Result<PathBuf> {
        let mut number = 1_u64;
        loop {
            let path = self.dir.join(format!("{}.torn-{number}", self.writer));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(mut file) => {
                    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(Error::io("write", &path))?;
                    sync_dir(&self.dir)?;
                    return Ok(path);
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(Error::io("create", &path)(error)),
            }
        }
    }
}

/// Where a chain ends.
pub(super) struct Tail {
    pub(super) head: Head,
    /// True if the head on disk is missing or behind.
    moved: bool,
    torn: Vec<u8>,
}

/// True if `record` is the one after `head`.
pub(super) fn follows(record: &Record, head: &Head) -> bool {
    record.writer == head.writer && record.sequence == head.count + 1 && record.previous == head.hash
}

fn read_at(file: &mut File, offset: u64, buffer: &mut [u8], path: &Path) -> Result<()> {
    file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(buffer)).map_err(Error::io("read", path))
}

/// Reads `<dir>/writer`, or draws an id; where two processes draw at once, one wins and both use it.
fn writer_id(dir: &Path) -> Result<WriterId> {
    let path = dir.join("writer");
    if !path.exists() {
        let mut random = [0; 8];
        getrandom::fill(&mut random)
            .map_err(|error| Error::io("draw a writer id for", &path)(std::io::Error::other(error)))?;
        let id: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut temporary = tempfile::Builder::new()
            .prefix("writer-")
            .suffix(".tmp")
            .tempfile_in(dir)
            .map_err(Error::io("create a temporary file in", dir))?;
        temporary.write_all(format!("{id}\n").as_bytes()).map_err(Error::io("write", temporary.path()))?;
        temporary.as_file().sync_all().map_err(Error::io("sync", temporary.path()))?;
        match temporary.persist_noclobber(&path) {
            Ok(_) => sync_dir(dir)?,
            Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io("create", &path)(error.error)),
        }
    }
    let bytes = read_small(&path).map_err(Error::io("read", &path))?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    WriterId::try_from(text.trim_end().to_owned()).map_err(|_| Error::BadWriter { path, found: text })
}
