//! `assay ledger export`.

use super::LedgerArgs;
use super::figures::figures;
use crate::exit::Exit;
use crate::ledger_place::LedgerPlace;
use crate::output::{Answer, Format, Table};
use assay_ledgers::{Body, Record, Sha256, invalidations};
use clap::Args;
use clap::builder::PossibleValuesParser;
use std::io::{BufWriter, Write};

const EXAMPLES: &str = "\
Examples:
  assay ledger export --output json > records.jsonl
  assay ledger export --output csv --kind speed > figures.csv
  assay ledger export --ledger tracked --output md";

/// Every record, or every figure of every record.
///
/// With --output json: every record whole, one a line, as it stands in the
/// ledger. With csv: the figures of each record, a row each, for a spreadsheet
/// or a plot, and which record invalidates it; as text or md the same in short,
/// without records that no longer count. Records are streamed; a ledger may be of any length.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Export {
    #[command(flatten)]
    ledger: LedgerArgs,
    /// Only records of this kind
    #[arg(long, value_parser = PossibleValuesParser::new(Body::KINDS))]
    kind: Option<String>,
}

const HEADINGS: [&str; 12] = [
    "record",
    "time_utc",
    "kind",
    "class",
    "about",
    "measure",
    "#tokens",
    "unit",
    "#value",
    "#low",
    "#high",
    "invalidated_by",
];

impl Export {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let folder = self.ledger.folder()?;
        let there = folder.exists() || self.ledger.ledger != LedgerPlace::Local;
        let read = || -> anyhow::Result<_> {
            Ok(there.then(|| assay_ledgers::read(&folder)).transpose()?.into_iter().flatten())
        };
        // Few records say so of others: the rest need not be held.
        let judges =
            read()?.filter(|record| !matches!(record, Ok(record) if !matches!(record.body, Body::Invalidation(_))));
        let invalid = invalidations(&judges.collect::<Result<Vec<_>, _>>()?);
        let by = |record: &Record| invalid.get(&record.original_hash());
        let records = read()?;
        let wanted = |record: &Record| self.kind.as_ref().is_none_or(|kind| kind == record.body.kind());
        let records = records.filter(|record| record.as_ref().map_or(true, wanted));
        let mut out = BufWriter::new(std::io::stdout().lock());
        match format {
            Format::Json => {
                for record in records {
                    out.write_all(&assay_ledgers::hash::canonical(&record?)?)?;
                    out.write_all(b"\n")?;
                }
            }
            Format::Csv => {
                let mut csv = csv::Writer::from_writer(&mut out);
                csv.write_record(HEADINGS.map(|heading| heading.trim_start_matches('#')))?;
                for record in records {
                    let record = record?;
                    for row in rows(&record, by(&record)) {
                        csv.write_record(row)?;
                    }
                }
                csv.flush()?;
            }
            Format::Text | Format::Md => {
                let mut table = Table::new("figures", &["record", "about", "measure", "#tokens", "#value", "unit"]);
                for record in records {
                    let record = record?;
                    if by(&record).is_none() {
                        short_rows(&record).into_iter().for_each(|row| table.row(row));
                    }
                }
                out.write_all(Answer::new(&())?.table(table).render(format)?.as_bytes())?;
            }
        }
        out.flush()?;
        Ok(Exit::DONE)
    }
}

/// What fits 80 columns, for a reader.
fn short_rows(record: &Record) -> Vec<[String; 6]> {
    let row = |figure: super::figures::Figure| {
        let tokens = figure.tokens.map(|tokens| tokens.to_string()).unwrap_or_default();
        // An exponent where six digits would hide the figure or be none of it.
        let value = match figure.value {
            value if value.fract() == 0.0 && value.abs() < 1e12 => format!("{value}"),
            value if (1e-3..1e6).contains(&value.abs()) => format!("{value:.4}"),
            value => format!("{value:.4e}"),
        };
        [record.original_hash().short(), super::about(record), figure.measure, tokens, value, figure.unit]
    };
    figures(&record.body).into_iter().map(row).collect()
}

fn rows(record: &Record, invalidated_by: Option<&Sha256>) -> Vec<[String; 12]> {
    let end = |ends: Option<[f64; 2]>, index: usize| ends.map(|ends| ends[index].to_string()).unwrap_or_default();
    let row = |figure: super::figures::Figure| {
        [
            record.hash.to_string(),
            record.time_utc.as_str().to_owned(),
            record.body.kind().to_owned(),
            record.evidence_class.as_str().to_owned(),
            super::about(record),
            figure.measure,
            figure.tokens.map(|tokens| tokens.to_string()).unwrap_or_default(),
            figure.unit,
            figure.value.to_string(),
            end(figure.ci95, 0),
            end(figure.ci95, 1),
            invalidated_by.map(Sha256::to_string).unwrap_or_default(),
        ]
    };
    figures(&record.body).into_iter().map(row).collect()
}
