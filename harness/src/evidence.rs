//! From a finished run to a record: the raw log is kept first, then the record that names it.

use crate::ledger_place::LedgerPlace;
use crate::repository::Repository;
use crate::runtime::observations;
use assay_ledgers::{Draft, Ledger, Observation, Sha256, VerdictRow};
use serde::Serialize;
use std::collections::BTreeMap;

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

/// Stores the log, appends the record to the local ledger, and returns the record's hash.
///
/// # Errors
/// When the ledger cannot be written.
pub fn record(
    repository: &Repository,
    draft: Draft,
    verdicts: Vec<VerdictRow>,
    log: &RunLog,
) -> anyhow::Result<Sha256> {
    record_seen(repository, draft, verdicts, log, BTreeMap::new())
}

/// [`record`], with what else was seen.
///
/// # Errors
/// When the ledger cannot be written.
pub fn record_seen(
    repository: &Repository,
    draft: Draft,
    verdicts: Vec<VerdictRow>,
    log: &RunLog,
    seen: BTreeMap<String, Observation>,
) -> anyhow::Result<Sha256> {
    let mut observations = observations();
    observations.other.extend(seen);
    let ledger = Ledger::open(LedgerPlace::Local.folder(repository))?;
    let log = ledger.store_log("run.jsonl", log.lines.as_slice())?;
    let draft = draft.verdicts(verdicts).observations(observations).command(command()).log(log);
    Ok(ledger.append(draft)?.record.hash)
}

/// The command as the user would type it anywhere: where this machine keeps the binary is no evidence.
pub(crate) fn command() -> impl Iterator<Item = String> {
    std::iter::once("assay".to_owned()).chain(std::env::args().skip(1))
}
