//! `assay ledger show`.

use super::LedgerArgs;
use crate::exit::Exit;
use crate::output::{Answer, Format, Table};
use anyhow::Context;
use assay_ledgers::{Error, Ledger, Record, Verdict, check_counts};
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  assay ledger show 3f9a1c
  assay ledger show 3f9a1c --output json
  assay ledger show 3f9a1c --log run.jsonl";

/// One record in full.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Show {
    /// First digits of its hash, six or more
    hash: String,
    /// Print this raw log of it instead, as it was written
    #[arg(long, value_name = "NAME")]
    log: Option<String>,
    #[command(flatten)]
    ledger: LedgerArgs,
}

impl Show {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let folder = self.ledger.folder()?;
        let record = Ledger::find(&folder, &self.hash)?;
        if let Some(name) = &self.log {
            let log = record.logs.iter().find(|log| log.name == *name);
            let log = log.with_context(|| format!("record {} has no log {name:?}", record.hash.short()))?;
            std::io::copy(&mut Ledger::read_log(&folder, log)?, &mut std::io::stdout().lock())?;
            return Ok(Exit::DONE);
        }
        let known = assay_ledgers::read(&folder)?.collect::<Result<Vec<_>, _>>()?;
        answer(&record, check_counts(record.original_hash(), &known).err())?.print(format)?;
        Ok(Exit::DONE)
    }
}

/// `taken_back` says why it no longer counts.
fn answer(record: &Record, taken_back: Option<Error>) -> anyhow::Result<Answer> {
    let mut verdicts = Table::new("verdicts", &["row", "verdict", "reason"]);
    for verdict in &record.verdicts {
        verdicts.row([verdict.row.as_str(), verdict.verdict.as_str(), &verdict.reason]);
    }
    let mut logs = Table::new("raw logs", &["name", "#bytes", "SHA-256"]);
    for log in &record.logs {
        logs.row([log.name.clone(), log.bytes.to_string(), log.sha256.short()]);
    }
    let identity =
        record.identity.as_ref().map_or(Ok("none".to_owned()), |it| it.hash().map(|hash| hash.to_string()))?;
    let mut answer = Answer::new(record)?
        .line(format!("record    {}", record.hash))
        .line(format!("time      {}", record.time_utc.as_str()));
    if let Some(origin) = &record.origin {
        answer =
            answer.line(format!("first     {}", origin.hash)).line(format!("          {}", origin.time_utc.as_str()));
    }
    if let Some(taken_back) = taken_back {
        answer = answer.line(format!("{}   {taken_back}", Verdict::Invalid));
    }
    Ok(answer
        .line(format!("kind      {}", record.body.kind()))
        .line(format!("class     {}", record.evidence_class.as_str()))
        .line(format!("identity  {identity}"))
        .line(format!("command   {}", record.command.join(" ")))
        .table(verdicts)
        .table(logs)
        .table(Table::of_fields("result", &record.body)?)
        .table(Table::of_fields("identity", &record.identity)?)
        .table(Table::of_fields("observations", &record.observations)?))
}
