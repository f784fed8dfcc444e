//! `assay ledger show`.

use super::LedgerArgs;
use crate::exit::Exit;
use crate::output::{Answer, Format, Table};
use assay_ledgers::Record;
use clap::Args;
use serde::Serialize;
use serde_json::Value;

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
    Ok(Answer::new(record)?
        .line(format!("record    {}", record.hash))
        .line(format!("time      {}", record.time_utc.as_str()))
        .line(format!("kind      {}", record.body.kind()))
        .line(format!("identity  {}", record.identity.hash()?))
        .line(format!("command   {}", record.command.join(" ")))
        .table(verdicts)
        .table(fields("result", &record.body)?)
        .table(fields("identity", &record.identity)?)
        .table(fields("observations", &record.observations)?))
}

/// A value's leaves by their path.
fn fields(title: &str, value: &impl Serialize) -> anyhow::Result<Table> {
    let mut table = Table::new(title, &["field", "value"]);
    leaves(&mut table, String::new(), &serde_json::to_value(value)?);
    Ok(table)
}

fn leaves(table: &mut Table, path: String, value: &Value) {
    let join = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::Object(members) => members.iter().for_each(|(key, value)| leaves(table, join(key), value)),
        Value::Array(items) if items.iter().any(|item| item.is_object()) => {
            items.iter().enumerate().for_each(|(index, value)| leaves(table, join(&index.to_string()), value));
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(plain).collect();
            table.row([path, items.join(", ")]);
        }
        leaf => table.row([path, plain(leaf)]),
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
