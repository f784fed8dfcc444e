//! Judging a ledger.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::Serialize;

use super::chain::{Chain, Link};
use super::head::{chain_path, head_path};
use super::line::{Fault, LINE_BYTES_MAX, is_garbage, open};
use super::logs::{LogFault, check_log};
use super::read::{Line, Snapshot, chains, snapshot};
use crate::schema::{Head, LogRef, Verdict, WriterId};
use crate::{Error, Result, Sha256};

/// Bytes of lines that are checked side by side.
const BATCH_BYTES: usize = 4 << 20;

/// Problems that a report lists; more are counted.
const PROBLEMS_MAX: usize = 1_000;

/// What [`verify`] found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VerifyReport {
    /// Records whose own hash holds.
    pub records: u64,
    /// PASS, or INVALID if anything was changed. An append that was cut short (`torn`) is listed and changes nothing: it
    /// never became a record.
    pub verdict: Verdict,
    /// What is wrong, in the order of the files.
    pub problems: Vec<Problem>,
    /// Problems beyond the first thousand.
    pub problems_omitted: u64,
    /// Where every chain ends, by its own head.
    pub heads: Vec<Head>,
}

/// One thing that is wrong, or `torn`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// What kind of thing.
    pub kind: ProblemKind,
    /// In which file.
    pub file: PathBuf,
    /// In which line, from 1; absent where it is not about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// What exactly.
    pub detail: String,
}

/// Kinds of problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// A record's content is not what its hash says.
    Edited,
    /// A line is not JSON.
    NotJson,
    /// A record has a field that the schema does not know.
    UnknownField,
    /// A record is of a newer format.
    NewerFormat,
    /// A record does not fit the schema in another way.
    BadSchema,
    /// A line is not in canonical form, though its hash holds.
    NotCanonical,
    /// A published record is not the one that was first written.
    BadOrigin,
    /// Records are missing from inside a chain.
    Removed,
    /// Records are missing from the end of a chain.
    LostRecords,
    /// Records changed places.
    Reordered,
    /// A record is there twice.
    Duplicated,
    /// A record does not name the one before it.
    BrokenLink,
    /// A record lies in another writer's chain.
    ForeignWriter,
    /// A chain and its head do not agree.
    BadHead,
    /// A raw log is not there.
    MissingLog,
    /// A raw log is not what the record names.
    ChangedLog,
    /// A file looks like a chain and is named otherwise.
    StrangeFile,
    /// An append was cut short: the bytes behind the chain's head are no record.
    Torn,
}

impl Problem {
    pub(crate) fn new(kind: ProblemKind, file: &Path, line: Option<u64>, detail: impl Into<String>) -> Self {
        Self { kind, file: file.to_path_buf(), line, detail: detail.into() }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file.display(), self.detail),
            None => write!(f, "{}: {}", self.file.display(), self.detail),
        }
    }
}

/// A bounded list of problems.
#[derive(Default)]
pub(crate) struct Problems {
    list: Vec<Problem>,
    omitted: u64,
    invalid: bool,
}

impl Problems {
    pub(crate) fn push(&mut self, problem: Problem) {
        self.invalid |= problem.kind != ProblemKind::Torn;
        if self.list.len() < PROBLEMS_MAX { self.list.push(problem) } else { self.omitted += 1 }
    }

    /// True if nothing but a torn line was found.
    pub(crate) fn is_empty(&self) -> bool {
        !self.invalid
    }
}

/// Judges the ledger in `dir`: every record's hash, form and schema, every link, every head, every raw log. Appends that
/// run meanwhile are not waited for and not seen.
///
/// # Errors
/// [`Error::Io`] if something cannot be read at all; everything else is a problem in the report.
pub fn verify(dir: &Path) -> Result<VerifyReport> {
    verify_anchored(dir, &[])
}

/// [`verify`], and the ledger must still hold the records that `anchors` (heads written down elsewhere) name.
///
/// # Errors
/// As [`verify`].
pub fn verify_anchored(dir: &Path, anchors: &[Head]) -> Result<VerifyReport> {
    let (mut writers, strangers) = chains(dir)?;
    let mut problems = Problems::default();
    for path in strangers {
        problems.push(Problem::new(
            ProblemKind::StrangeFile,
            &path,
            None,
            "expected a name of 16 lowercase hex digits",
        ));
    }
    writers.extend(anchors.iter().map(|anchor| anchor.writer.clone()));
    writers.sort_unstable();
    writers.dedup();
    let (mut records, mut heads, mut logs) = (0, Vec::new(), Logs::default());
    for writer in &writers {
        let mut here = Problems::default();
        let (count, head) = verify_chain(dir, writer, anchors, &mut logs, &mut here)?;
        records += count;
        heads.extend(head);
        problems.omitted += here.omitted;
        here.list.into_iter().for_each(|problem| problems.push(problem));
    }
    logs.verify(dir, &mut problems)?;
    let verdict = if problems.invalid { Verdict::Invalid } else { Verdict::Pass };
    Ok(VerifyReport { records, verdict, problems: problems.list, problems_omitted: problems.omitted, heads })
}

fn verify_chain(
    dir: &Path,
    writer: &WriterId,
    anchors: &[Head],
    logs: &mut Logs,
    problems: &mut Problems,
) -> Result<(u64, Option<Head>)> {
    let (snapshot, head) = snapshot(dir, writer)?;
    let head = match head {
        Ok(head) => head,
        Err(Error::Broken { path, detail }) => {
            problems.push(Problem::new(ProblemKind::BadHead, &path, None, detail));
            None
        }
        Err(error) => return Err(error),
    };
    let path = chain_path(dir, writer);
    let mut chain = Chain::new(&path, writer, head.clone(), anchors);
    if let Some(mut snapshot) = snapshot {
        let mut number = 0;
        loop {
            let (lines, cut) = batch(&mut snapshot)?;
            let links: Vec<_> = lines.par_iter().map(|line| check(line)).collect();
            let last = lines.len();
            for (index, (line, link)) in lines.iter().zip(links).enumerate() {
                number += 1;
                let at_end = index + 1 == last && cut.is_none() && snapshot.is_at_end()?;
                if at_end && chain.is_behind_head() && link.as_ref().is_err_and(|faults| is_garbage(faults)) {
                    problems.push(torn(&path, number, line.len() + 1));
                    continue;
                }
                let link = link.map(|(link, named)| {
                    logs.add(named, &path, number);
                    link
                });
                chain.line(number, line.len() as u64 + 1, link, problems);
            }
            match cut {
                Some(cut) if cut.len() >= LINE_BYTES_MAX => {
                    let fault =
                        Fault::new(ProblemKind::NotJson, format!("the line is longer than {LINE_BYTES_MAX} bytes"));
                    chain.line(number + 1, cut.len() as u64, Err(vec![fault]), problems);
                    break;
                }
                Some(cut) => {
                    problems.push(torn(&path, number + 1, cut.len()));
                    break;
                }
                None if lines.is_empty() => break,
                None => {}
            }
        }
    } else if head.as_ref().is_some_and(|head| head.count > 0) {
        problems.push(Problem::new(
            ProblemKind::LostRecords,
            &head_path(dir, writer),
            None,
            "the chain of this head is gone",
        ));
    }
    let records = chain.records;
    chain.finish(problems);
    Ok((records, head))
}

fn torn(path: &Path, line: u64, bytes: usize) -> Problem {
    let detail = format!("torn: an append was cut short after {bytes} bytes; the next append moves them aside");
    Problem::new(ProblemKind::Torn, path, Some(line), detail)
}

/// Whole lines, and a cut one.
type Batch = (Vec<Vec<u8>>, Option<Vec<u8>>);

/// The next lines, and a cut line if the chain ends in one.
fn batch(snapshot: &mut Snapshot) -> Result<Batch> {
    let (mut lines, mut bytes) = (Vec::new(), 0);
    while bytes < BATCH_BYTES {
        match snapshot.next_line()? {
            None => break,
            Some(Line::Whole(line)) => {
                bytes += line.len() + 1;
                lines.push(line);
            }
            Some(Line::Cut(line)) => return Ok((lines, Some(line))),
        }
    }
    Ok((lines, None))
}

fn check(line: &[u8]) -> std::result::Result<(Link, Vec<LogRef>), Vec<Fault>> {
    let record = open(line)?;
    let link = Link { writer: record.writer, sequence: record.sequence, previous: record.previous, hash: record.hash };
    Ok((link, record.logs))
}

/// Every log that records name, with the first place that names it.
#[derive(Default)]
struct Logs(HashMap<(Sha256, u64), (LogRef, PathBuf, u64)>);

impl Logs {
    fn add(&mut self, logs: Vec<LogRef>, path: &Path, line: u64) {
        for log in logs {
            self.0.entry((log.sha256, log.bytes)).or_insert_with(|| (log, path.to_path_buf(), line));
        }
    }

    fn verify(self, dir: &Path, problems: &mut Problems) -> Result<()> {
        let mut logs: Vec<_> = self.0.into_values().collect();
        logs.sort_unstable_by(|a, b| (&a.1, a.2, &a.0.name).cmp(&(&b.1, b.2, &b.0.name)));
        let faults: Result<Vec<_>> = logs.par_iter().map(|(log, ..)| check_log(dir, log)).collect();
        for ((log, path, line), fault) in logs.iter().zip(faults?) {
            let (kind, file, what) = match fault {
                None => continue,
                Some(LogFault::Missing(file)) => (ProblemKind::MissingLog, file, "is not there".to_owned()),
                Some(LogFault::Changed(file, detail)) => {
                    (ProblemKind::ChangedLog, file, format!("was changed: {detail}"))
                }
            };
            let detail = format!("log {:?} {what} (named by {}:{line})", log.name, path.display());
            problems.push(Problem::new(kind, &file, None, detail));
        }
        Ok(())
    }
}
