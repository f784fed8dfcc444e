//! `assay ledger show`.

use super::LedgerArgs;
use crate::exit::Exit;
use crate::output::{Answer, Format, Table};
use assay_ledgers::Record;
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  assay ledger show 3f9a1c
  assay ledger show 3f9a1c --output json";

/// One record in full.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Show {
    /// First digits of its hash, six or more
    hash: String,
    #[command(flatten)]
    ledger: LedgerArgs,
}

impl Show {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let record = assay_ledgers::Ledger::find(&self.ledger.folder()?, &self.hash)?;
        answer(&record)?.print(format)?;
        Ok(Exit::DONE)
    }
}

fn answer(record: &Record) -> anyhow::Result<Answer> {
    let mut verdicts = Table::new("verdicts", &["row", "verdict", "reason"]);
    for verdict in &record.verdicts {
        verdicts.row([verdict.row.as_str(), verdict.verdict.as_str(), &verdict.reason]);
    }
    let identity =
        record.identity.as_ref().map_or(Ok("none".to_owned()), |it| it.hash().map(|hash| hash.to_string()))?;
    Ok(Answer::new(record)?
        .line(format!("record    {}", record.hash))
        .line(format!("time      {}", record.time_utc.as_str()))
        .line(format!("kind      {}", record.body.kind()))
        .line(format!("class     {}", record.evidence_class.as_str()))
        .line(format!("identity  {identity}"))
        .line(format!("command   {}", record.command.join(" ")))
        .table(verdicts)
        .table(Table::of_fields("result", &record.body)?)
        .table(Table::of_fields("identity", &record.identity)?)
        .table(Table::of_fields("observations", &record.observations)?))
}
