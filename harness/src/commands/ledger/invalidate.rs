//! `assay ledger invalidate`.

use super::LedgerArgs;
use crate::evidence::command;
use crate::exit::Exit;
use crate::output::{Answer, Format};
use assay_ledgers::Ledger;
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  assay ledger invalidate 3f9a1c --reason 'another process ran meanwhile'
  assay ledger invalidate 3f9a1c --reason 'wrong clock' --replacement 88d0e2";

/// Say why a record no longer counts.
///
/// Nothing is deleted: a new record names the old one and the reason. Reports
/// leave the old one out from then on. A record that invalidates can be
/// invalidated too.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Invalidate {
    /// First digits of its hash, six or more
    hash: String,
    /// Why
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// First digits of the hash of the record that takes its place
    #[arg(long, value_name = "HASH")]
    replacement: Option<String>,
    #[command(flatten)]
    ledger: LedgerArgs,
}

impl Invalidate {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        anyhow::ensure!(!self.reason.trim().is_empty(), "--reason is empty: say why the record no longer counts");
        let ledger = Ledger::open(self.ledger.folder()?)?;
        let appended = ledger.invalidate(&self.hash, &self.reason, self.replacement.as_deref(), command())?;
        let record = appended.record;
        Answer::new(&record)?.line(format!("record {} says so", record.hash.short())).print(format)?;
        Ok(Exit::DONE)
    }
}
