//! Taking in the chains of another machine's ledger.
//!
//! A chain that is copied keeps its writer, so an imported record is the record that was written, links and all, and is
//! published as one of this machine's own is. What is here is never rewritten: a chain is only continued, line by line
//! under its lock, and its head moves after each block of lines. A kill leaves a shorter chain that verifies, which the
//! next import continues.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use super::append::{Ledger, follows};
use super::head::{chain_path, head_path, write_head};
use super::line::{describe, is_garbage, open, stated_hash};
use super::logs::{check_log, log_path, open_log};
use super::read::{Line, Snapshot, chains, snapshot};
use super::verify::verify;
use crate::schema::{Head, LogRef, Record, Verdict, WriterId};
use crate::{Error, Result};

/// Bytes of lines that are written and synced at once: far less than [`Ledger::open`] will settle after a kill.
const BLOCK_BYTES: usize = 4 << 20;

/// What an import did to one chain.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ImportedChain {
    /// Whose.
    pub writer: WriterId,
    /// Records that the imported ledger has of it.
    pub records: u64,
    /// Those of them that were not here.
    pub new: u64,
}

/// Takes every chain of the ledger in `from`, with the raw logs that its new records name, into the ledger in `to`, and
/// says what was new. `from` must verify, and each of its chains must continue the one that `to` has of that writer, or be
/// the beginning of it; otherwise nothing is taken.
///
/// # Errors
/// [`Error::SourceInvalid`], [`Error::NoChain`], [`Error::Forked`]; [`Error::Broken`] if `to` has lost records; [`Error::Io`].
pub fn import(from: &Path, to: &Path) -> Result<Vec<ImportedChain>> {
    let report = verify(from)?;
    if let (Verdict::Invalid, Some(first)) = (report.verdict, report.problems.first()) {
        let problems = report.problems.len() as u64 + report.problems_omitted;
        return Err(Error::SourceInvalid { path: from.to_path_buf(), problems, first: first.to_string() });
    }
    let (writers, _) = chains(from)?;
    if writers.is_empty() {
        return Err(Error::NoChain { path: from.to_path_buf() });
    }
    std::fs::create_dir_all(to).map_err(Error::io("create", to))?;
    // Forks are found and logs are stored before any chain grows.
    let mut logs = HashMap::new();
    for writer in &writers {
        for log in new_logs(from, writer, to)? {
            logs.insert(log.sha256, log);
        }
    }
    logs.values().try_for_each(|log| copy_log(from, log, to))?;
    writers.into_iter().map(|writer| import_chain(from, writer, to)).collect()
}

/// The logs that records name which `to` does not hold.
fn new_logs(from: &Path, writer: &WriterId, to: &Path) -> Result<Vec<LogRef>> {
    let Some(source) = snapshot(from, writer)?.0 else { return Ok(Vec::new()) };
    let target = Ledger::of_writer(to, writer);
    let there = chain_path(to, writer).exists() || head_path(to, writer).exists();
    let mut file = if there { Some(target.lock()?) } else { None };
    let tail = match &mut file {
        Some(file) => target.find_tail(file)?.head,
        None => Head { writer: writer.clone(), count: 0, bytes: 0, hash: None },
    };
    let mut logs = Vec::new();
    continue_chain(source, file.as_ref(), tail, |record, _| {
        logs.extend(record.logs);
        Ok(())
    })?;
    Ok(logs)
}

fn copy_log(from: &Path, log: &LogRef, to: &Path) -> Result<()> {
    if check_log(to, log)?.is_none() {
        return Ok(());
    }
    let stored = super::logs::store_log(to, &log.name, open_log(from, log)?)?;
    if stored == *log {
        Ok(())
    } else {
        Err(changed(&log_path(from, &log.sha256), "the log changed while it was imported"))
    }
}

fn import_chain(from: &Path, writer: WriterId, to: &Path) -> Result<ImportedChain> {
    // The source's lock is given back before the target's is taken: they may be one file.
    let Some(source) = snapshot(from, &writer)?.0 else {
        return Ok(ImportedChain { writer, records: 0, new: 0 });
    };
    let target = Ledger::of_writer(to, &writer);
    let mut file = target.lock()?;
    let (mut tail, _) = target.settle(&mut file)?;
    let before = tail.count;
    let (mut block, mut head) = (Vec::new(), tail.clone());
    let records = continue_chain(source, Some(&file), tail.clone(), |record, line| {
        block.extend_from_slice(line);
        block.push(b'\n');
        head = Head {
            count: record.sequence,
            bytes: head.bytes + line.len() as u64 + 1,
            hash: Some(record.hash),
            writer: record.writer,
        };
        if block.len() >= BLOCK_BYTES {
            write_block(to, &file, &tail, &block, &head)?;
            tail = head.clone();
            block.clear();
        }
        Ok(())
    })?;
    if !block.is_empty() {
        write_block(to, &file, &tail, &block, &head)?;
    }
    Ok(ImportedChain { writer, records, new: head.count - before })
}

/// Appends whole lines behind `tail`, then moves the head. The file is locked.
fn write_block(dir: &Path, mut file: &File, tail: &Head, block: &[u8], head: &Head) -> Result<()> {
    let path = chain_path(dir, &tail.writer);
    file.seek(SeekFrom::Start(tail.bytes)).map_err(Error::io("seek in", &path))?;
    if let Err(error) = file.write_all(block).and_then(|()| file.sync_data()) {
        // As in an append: what a full disk left is taken back, or moved aside by the next one.
        let _ = file.set_len(tail.bytes);
        return Err(Error::io("append to", &path)(error));
    }
    write_head(dir, head)
}

/// Reads the source against the chain here, which ends at `tail`, and hands what lies beyond it to `take`, record and line.
/// Returns how many records the source has.
fn continue_chain(
    mut source: Snapshot,
    target: Option<&File>,
    mut tail: Head,
    mut take: impl FnMut(Record, &[u8]) -> Result<()>,
) -> Result<u64> {
    let mut here = match target {
        Some(mut file) => {
            let path = &source.path;
            file.seek(SeekFrom::Start(0)).map_err(Error::io("seek in the chain that continues", path))?;
            Some(BufReader::with_capacity(1 << 18, file.take(tail.bytes)))
        }
        None => None,
    };
    let (known, mut read, mut own) = (tail.count, 0_u64, Vec::new());
    while let Some(Line::Whole(line)) = source.next_line()? {
        if read < known {
            own.clear();
            if let Some(here) = &mut here {
                here.read_until(b'\n', &mut own).map_err(Error::io("read what continues", &source.path))?;
            }
            if own.strip_suffix(b"\n") != Some(line.as_slice()) {
                return Err(forked(&source.path, tail.writer, read + 1, &own, &line));
            }
            read += 1;
            continue;
        }
        let record = match open(&line) {
            Ok(record) if follows(&record, &tail) => record,
            Ok(record) => return Err(not_next(&source.path, &record)),
            // The torn end of the source, which its verification has reported and let pass.
            Err(faults) if is_garbage(&faults) && source.is_at_end()? => break,
            Err(faults) => return Err(changed(&source.path, &describe(&faults))),
        };
        tail = Head { count: record.sequence, hash: Some(record.hash), ..tail };
        read += 1;
        take(record, &line)?;
    }
    Ok(read)
}

fn forked(path: &Path, writer: WriterId, sequence: u64, here: &[u8], there: &[u8]) -> Error {
    let hash = |line| stated_hash(line).map_or_else(|| "none".to_owned(), |hash| hash.short());
    let here = here.strip_suffix(b"\n").unwrap_or(here);
    Error::Forked { path: path.to_path_buf(), writer, sequence, here: hash(here), there: hash(there) }
}

fn not_next(path: &Path, record: &Record) -> Error {
    changed(path, &format!("record {} does not continue the chain", record.sequence))
}

/// What was verified is no longer what is read.
fn changed(path: &Path, detail: &str) -> Error {
    Error::SourceInvalid { path: path.to_path_buf(), problems: 1, first: detail.to_owned() }
}
