//! `assay ledger export`.

use super::LedgerArgs;
use crate::exit::Exit;
use crate::output::{Answer, Format, Table};
use assay_ledgers::{Body, Record};
use clap::Args;
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  assay ledger export --output csv > figures.csv
  assay ledger export --ledger tracked --output json";

/// The figures of speed and perplexity records, a row each, for a spreadsheet
/// or a plot. Other kinds are shown by `ledger show`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Export {
    #[command(flatten)]
    ledger: LedgerArgs,
}

#[derive(Debug, PartialEq, Serialize)]
struct Figure {
    record: String,
    time_utc: String,
    checkpoint: String,
    measure: String,
    tokens: u64,
    unit: String,
    value: f64,
    ci95: Option<[f64; 2]>,
}

impl Export {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let figures: Vec<Figure> = self.ledger.records()?.iter().flat_map(figures).collect();
        let headings = ["record", "time_utc", "checkpoint", "measure", "#tokens", "unit", "#value", "#low", "#high"];
        let mut table = Table::new("figures", &headings);
        for figure in &figures {
            let end = |index: usize| figure.ci95.map(|ends| ends[index].to_string()).unwrap_or_default();
            table.row([
                &figure.record,
                &figure.time_utc,
                &figure.checkpoint,
                &figure.measure,
                &figure.tokens.to_string(),
                &figure.unit,
                &figure.value.to_string(),
                &end(0),
                &end(1),
            ]);
        }
        Answer::new(&serde_json::json!({ "figures": figures }))?.table(table).print(format)?;
        Ok(Exit::DONE)
    }
}

fn figures(record: &Record) -> Vec<Figure> {
    let figure = |measure: &str, tokens: u64, unit: &str, value: f64, ci95: Option<[f64; 2]>| Figure {
        record: record.hash.to_string(),
        time_utc: record.time_utc.as_str().to_owned(),
        checkpoint: super::about(record),
        measure: measure.to_owned(),
        tokens,
        unit: unit.to_owned(),
        value,
        ci95,
    };
    match &record.body {
        Body::Speed(speed) => speed
            .rows
            .iter()
            .map(|row| figure(row.measure.as_str(), row.tokens, &row.unit, row.median, row.ci95))
            .collect(),
        Body::Perplexity(body) => {
            let documents = body.documents.iter().map(|row| {
                figure(&format!("perplexity of {}", row.document), row.tokens, "perplexity", row.perplexity, None)
            });
            documents.chain([figure("perplexity", body.tokens, "perplexity", body.perplexity, None)]).collect()
        }
        _ => Vec::new(),
    }
}
