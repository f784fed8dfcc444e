//! `assay ledger list`.

use super::{LedgerArgs, verdict_counts};
use crate::exit::Exit;
use crate::output::{Answer, Format, Table};
use assay_ledgers::{Body, EvidenceClass, Record, Sha256, invalidations};
use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  assay ledger list
  assay ledger list --kind perplexity --ledger tracked --output csv";

/// One line a record, by when it was first written, newest last.
///
/// The hash is the one that it was first written under, which publishing keeps.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct List {
    #[command(flatten)]
    ledger: LedgerArgs,
    /// Only records of this kind
    #[arg(long, value_parser = PossibleValuesParser::new(Body::KINDS))]
    kind: Option<String>,
    /// Only records of this evidence class
    #[arg(long, value_parser = PossibleValuesParser::new(EvidenceClass::ALL.map(EvidenceClass::as_str)))]
    class: Option<String>,
}

#[derive(Serialize)]
struct Line {
    hash: String,
    first_written_as: String,
    time_utc: String,
    kind: &'static str,
    checkpoint: String,
    class: &'static str,
    verdicts: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    invalidated_by: Option<String>,
}

impl List {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let mut records = self.ledger.records()?;
        let invalid = invalidations(&records);
        records.retain(|record| self.kind.as_ref().is_none_or(|kind| kind == record.body.kind()));
        records.retain(|record| self.class.as_ref().is_none_or(|class| class == record.evidence_class.as_str()));
        records.sort_by(|a, b| first_written(a).cmp(first_written(b)));
        let lines: Vec<Line> = records
            .iter()
            .map(|record| Line {
                hash: record.hash.to_string(),
                first_written_as: record.original_hash().to_string(),
                time_utc: first_written(record).to_owned(),
                kind: record.body.kind(),
                checkpoint: super::about(record),
                class: record.evidence_class.as_str(),
                verdicts: verdict_counts(record),
                invalidated_by: invalid.get(&record.original_hash()).map(Sha256::short),
            })
            .collect();
        let mut table = Table::new("records", &["hash", "time (UTC)", "kind", "checkpoint", "verdicts"]);
        for (line, record) in lines.iter().zip(&records) {
            // A reader is spared the year and the seconds.
            let time = match format {
                Format::Csv => line.time_utc.clone(),
                _ => line.time_utc.get(5..16).unwrap_or_default().replace('T', " "),
            };
            let verdicts = match &line.invalidated_by {
                None => line.verdicts.clone(),
                Some(by) => format!("invalidated by {by}"),
            };
            table.row([&record.original_hash().short(), &time, line.kind, &line.checkpoint, &verdicts]);
        }
        Answer::new(&serde_json::json!({ "records": lines }))?.table(table).print(format)?;
        Ok(Exit::DONE)
    }
}

fn first_written(record: &Record) -> &str {
    record.origin.as_ref().map_or(&record.time_utc, |origin| &origin.time_utc).as_str()
}
