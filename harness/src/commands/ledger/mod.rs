//! `assay ledger`: the evidence of earlier runs.

mod add;
mod export;
mod figures;
mod import;
mod invalidate;
mod list;
mod publish;
mod record;
mod show;
mod verify;

use crate::exit::Exit;
use crate::ledger_place::LedgerPlace;
use crate::output::Format;
use crate::repository::Repository;
use assay_ledgers::Record;
use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  assay ledger verify
  assay ledger list --kind speed
  assay ledger show 3f9a1c
  assay ledger publish 3f9a1c";

/// Evidence of earlier runs: check it, read it, keep it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Ledger {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Check every record, link, head and raw log
    Verify(verify::Verify),
    /// One line a record
    List(list::List),
    /// One record in full
    Show(show::Show),
    /// Copy chosen records of this machine into the tracked ledger
    Publish(publish::Publish),
    /// Run a command and keep its outcome
    Record(record::RecordCommand),
    /// Take in the records of another machine's ledger
    Import(import::Import),
    /// Every record, or every figure of every record
    Export(export::Export),
    /// Keep a decision, or a result of somebody else's
    Add(add::Add),
    /// Say why a record no longer counts
    Invalidate(invalidate::Invalidate),
}

/// Which ledger a command reads.
#[derive(Debug, Args)]
struct LedgerArgs {
    /// local (this machine's runs), tracked (in the repository) or a folder
    #[arg(long, default_value = "local", value_name = "LEDGER")]
    ledger: LedgerPlace,
}

impl LedgerArgs {
    fn folder(&self) -> anyhow::Result<std::path::PathBuf> {
        Ok(self.ledger.folder(&Repository::find()?))
    }

    /// Every record in the ledger; none where it does not exist yet.
    fn records(&self) -> anyhow::Result<Vec<Record>> {
        let folder = self.folder()?;
        if !folder.exists() && self.ledger == LedgerPlace::Local {
            return Ok(Vec::new());
        }
        Ok(assay_ledgers::read(folder)?.collect::<Result<_, _>>()?)
    }
}

impl Ledger {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        match self.action {
            Action::Verify(command) => command.run(format),
            Action::List(command) => command.run(format),
            Action::Show(command) => command.run(format),
            Action::Publish(command) => command.run(format),
            Action::Record(command) => command.run(format),
            Action::Import(command) => command.run(format),
            Action::Export(command) => command.run(format),
            Action::Add(command) => command.run(format),
            Action::Invalidate(command) => command.run(format),
        }
    }
}

/// A record's verdicts, counted by kind and never summed up in one.
fn verdict_counts(record: &Record) -> String {
    use assay_ledgers::Verdict::{Fail, Incomplete, Invalid, Pass};
    let counts: Vec<String> = [Pass, Fail, Incomplete, Invalid]
        .into_iter()
        .map(|kind| (kind, record.verdicts.iter().filter(|row| row.verdict == kind).count()))
        .filter(|&(_, count)| count > 0)
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    counts.join(", ")
}

/// What a record is about, in a word or two: the checkpoint, or whatever stands in its place.
fn about(record: &Record) -> String {
    use assay_ledgers::Body;
    match (&record.identity, &record.body) {
        (Some(identity), _) => identity.checkpoint.name.clone(),
        (None, Body::Roofline(body)) => body.device.clone(),
        (None, Body::Task(body)) => body.endpoint.clone(),
        (None, Body::External(body)) => body.subject.clone(),
        (None, Body::Decision(body)) => body.question.clone(),
        (None, Body::Invalidation(body)) => format!("record {}", body.record.short()),
        (None, _) => String::new(),
    }
}
