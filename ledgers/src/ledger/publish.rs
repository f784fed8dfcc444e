//! Copying chosen records out of one ledger into another, such as the tracked one.
//!
//! A published record is a record of the target's own chain. Its [`Origin`] keeps the links it had where it was first
//! written, so the original can be rebuilt to the byte and its hash checked: publishing cannot alter a result.

use std::collections::HashSet;
use std::path::Path;

use super::append::Ledger;
use super::logs::open_log;
use super::read::read;
use super::verify::verify;
use crate::schema::{Body, Origin, Record, Verdict};
use crate::{Draft, Error, Result, Sha256};

/// Fewest hex digits that may name a record.
const PREFIX_DIGITS_MIN: usize = 6;

/// Which records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// All.
    All,
    /// Those whose hash (the original one, if published) starts so; each must name exactly one.
    Hashes(Vec<String>),
}

/// The records of the ledger in `dir` that `selection` names, in the ledger's order.
fn select(dir: &Path, selection: &Selection) -> Result<Vec<Record>> {
    let Selection::Hashes(prefixes) = selection else { return read(dir)?.collect() };
    let names = |prefix: &&String| {
        prefix.len() >= PREFIX_DIGITS_MIN && prefix.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
    };
    if let Some(prefix) = prefixes.iter().find(|prefix| !names(prefix)) {
        return Err(Error::BadPrefix { prefix: prefix.clone() });
    }
    let mut found = vec![0_usize; prefixes.len()];
    let mut chosen = Vec::new();
    for record in read(dir)? {
        let record = record?;
        let (own, original) = (record.hash.to_string(), record.original_hash().to_string());
        let mut wanted = false;
        for (prefix, count) in prefixes.iter().zip(&mut found) {
            if own.starts_with(prefix.as_str()) || original.starts_with(prefix.as_str()) {
                *count += 1;
                wanted = true;
            }
        }
        if wanted {
            chosen.push(record);
        }
    }
    for (prefix, count) in prefixes.iter().zip(found) {
        let (path, prefix) = (dir.to_path_buf(), prefix.clone());
        match count {
            0 => return Err(Error::NoSuchRecord { path, prefix }),
            1 => {}
            _ => return Err(Error::Ambiguous { path, prefix }),
        }
    }
    Ok(chosen)
}

impl Ledger {
    /// The one record whose hash starts with `prefix` (6 digits or more).
    ///
    /// # Errors
    /// [`Error::BadPrefix`], [`Error::NoSuchRecord`], [`Error::Ambiguous`], and what [`read`] returns.
    pub fn find(dir: &Path, prefix: &str) -> Result<Record> {
        let mut found = select(dir, &Selection::Hashes(vec![prefix.to_owned()]))?;
        found.pop().ok_or_else(|| Error::NoSuchRecord { path: dir.to_path_buf(), prefix: prefix.to_owned() })
    }
}

/// The records of the ledger in `dir` that invalidate one of `held`, or one another; without those that `held` has.
fn judges(dir: &Path, mut held: HashSet<Sha256>) -> Result<Vec<Record>> {
    let is_judge =
        |record: &Result<Record>| !matches!(record, Ok(record) if !matches!(record.body, Body::Invalidation(_)));
    let mut left: Vec<Record> = read(dir)?.filter(is_judge).collect::<Result<_>>()?;
    let mut found = Vec::new();
    loop {
        let (more, others): (Vec<Record>, _) = left.into_iter().partition(|record| match &record.body {
            Body::Invalidation(body) => held.contains(&body.record) && held.insert(record.original_hash()),
            _ => false,
        });
        if more.is_empty() {
            return Ok(found);
        }
        found.extend(more);
        left = others;
    }
}

/// Appends the selected records of the ledger in `from` to the one in `to`, with their logs, and returns them as they
/// stand there. What `from` says against one of them, or against what `to` holds already, goes with them, and first: `to`
/// never shows a record as valid that `from` knows to be invalid. Records that `to` already holds are left out. `from` must
/// verify.
///
/// # Errors
/// [`Error::SourceInvalid`], [`Error::BadPrefix`], [`Error::NoSuchRecord`], [`Error::Ambiguous`], and what
/// [`Ledger::append`] returns.
pub fn publish(from: &Path, selection: &Selection, to: &Path) -> Result<Vec<Record>> {
    let report = verify(from)?;
    if let (Verdict::Invalid, Some(first)) = (report.verdict, report.problems.first()) {
        let (path, problems) = (from.to_path_buf(), report.problems.len() as u64 + report.problems_omitted);
        return Err(Error::SourceInvalid { path, problems, first: first.to_string() });
    }
    let chosen = select(from, selection)?;
    let ledger = Ledger::open(to)?;
    let mut present: HashSet<Sha256> = HashSet::new();
    for record in read(to)? {
        present.insert(record?.original_hash());
    }
    let held = present.iter().copied().chain(chosen.iter().map(Record::original_hash)).collect();
    let (first, then): (Vec<Record>, Vec<Record>) =
        chosen.into_iter().partition(|record| matches!(record.body, Body::Invalidation(_)));
    let mut published = Vec::new();
    for record in judges(from, held)?.into_iter().chain(first).chain(then) {
        if present.insert(record.original_hash()) {
            published.push(publish_one(from, &ledger, record)?);
        }
    }
    Ok(published)
}

fn publish_one(from: &Path, ledger: &Ledger, record: Record) -> Result<Record> {
    for log in &record.logs {
        ledger.store_log(&log.name, open_log(from, log)?)?;
    }
    let origin = record.origin.unwrap_or(Origin {
        format_version: record.format_version,
        writer: record.writer,
        sequence: record.sequence,
        previous: record.previous,
        time_utc: record.time_utc,
        hash: record.hash,
    });
    let draft = Draft {
        evidence_class: record.evidence_class,
        body: record.body,
        identity: record.identity,
        observations: record.observations,
        verdicts: record.verdicts,
        command: record.command,
        logs: record.logs,
    };
    Ok(ledger.append_with(draft, Some(origin))?.record)
}
