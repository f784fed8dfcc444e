//! From a finished run to a record: the raw log is kept first, then the record that names it.

use crate::ledger_place::LedgerPlace;
use crate::repository::Repository;
use crate::runtime::observations;
use anyhow::Context;
use assay_ledgers::{Draft, Ledger, Observation, Sha256, VerdictRow};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// What a run writes down as it goes, one JSON object a line, kept whole beside the record.
#[derive(Debug, Default)]
pub struct RunLog {
    lines: Vec<u8>,
}

impl RunLog {
    /// Adds a line. A value that cannot be written as JSON is written as its error: a log loses nothing silently.
    pub fn line(&mut self, value: &impl Serialize) {
        match serde_json::to_vec(value) {
            Ok(line) => self.lines.extend_from_slice(&line),
            Err(error) => {
                self.lines.extend_from_slice(format!("{{\"unwritable\":{:?}}}", error.to_string()).as_bytes())
            }
        }
        self.lines.push(b'\n');
    }
}

/// Opens the local ledger for [`record`], which takes nothing else: before the work starts, so that none is done whose
/// result could not be kept.
///
/// # Errors
/// When the ledger has lost records or cannot be written.
pub fn open_ledger(repository: &Repository) -> anyhow::Result<Ledger> {
    Ledger::open(LedgerPlace::Local.folder(repository)).context("nothing was run, for its result could not be kept")
}

/// Stores the log, appends the record to the ledger, and returns the record's hash.
///
/// # Errors
/// When the ledger cannot be written.
pub fn record(ledger: &Ledger, draft: Draft, verdicts: Vec<VerdictRow>, log: &RunLog) -> anyhow::Result<Sha256> {
    record_seen(ledger, draft, verdicts, log, BTreeMap::new())
}

/// [`record`], with what else was seen.
///
/// # Errors
/// When the ledger cannot be written.
pub fn record_seen(
    ledger: &Ledger,
    draft: Draft,
    verdicts: Vec<VerdictRow>,
    log: &RunLog,
    seen: BTreeMap<String, Observation>,
) -> anyhow::Result<Sha256> {
    let mut observations = observations();
    observations.other.extend(seen);
    let log = ledger.store_log("run.jsonl", log.lines.as_slice())?;
    let draft = draft.verdicts(verdicts).observations(observations).command(command()).log(log);
    Ok(ledger.append(draft)?.record.hash)
}

/// The command as the user would type it in the repository: where this machine keeps it, or the binary, is no evidence.
pub(crate) fn command() -> impl Iterator<Item = String> {
    let root = Repository::find().ok().map(|repository| repository.root().to_owned());
    let typed = std::env::args().skip(1).map(move |argument| inside(root.as_deref(), argument));
    std::iter::once("assay".to_owned()).chain(typed)
}

/// An absolute path below `root` from there on; anything else as it is.
fn inside(root: Option<&Path>, argument: String) -> String {
    let below = root.and_then(|root| Path::new(&argument).strip_prefix(root).ok());
    let below = below.filter(|path| !path.as_os_str().is_empty()).map(|path| path.display().to_string());
    below.unwrap_or(argument)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_repository_lies_is_no_evidence() {
        let typed = |argument: &str| inside(Some(Path::new("/home/someone/assay")), argument.to_owned());
        assert_eq!(typed("/home/someone/assay/suites/speed/compare.toml"), "suites/speed/compare.toml");
        for other in ["--suite", "tiny-moe", "/home/someone/books", "/home/someone/assay", "suites/x.toml"] {
            assert_eq!(typed(other), other);
        }
    }
}
