//! `assay report`: published figures, made of the tracked ledger.

use crate::exit::Exit;
use crate::ledger_place::{LedgerPlace, read_anchors, replace_file, write_anchors};
use crate::output::{Answer, Format};
use crate::repository::Repository;
use anyhow::Context;
use assay_ledgers::{Record, Verdict, heads};
use assay_reports::{
    latest, load, perplexity_table_markdown, speed_table_markdown, stale_blocks, update_between_markers,
};
use clap::Args;
use std::collections::BTreeMap;

/// The document whose blocks are generated, under the repository's root.
const DOCUMENT: &str = "reports/results.md";

const EXAMPLES: &str = "\
Examples:
  assay report
  assay report --check";

/// Make the published figures out of the tracked ledger.
///
/// Writes the tables of reports/results.md, and where every chain of the ledger
/// ends into reports/heads.json, so that records which vanish later are missed.
/// Nobody types a number.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Report {
    /// Write nothing; FAIL if the files are not what the ledger says
    #[arg(long)]
    check: bool,
}

impl Report {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let ledger = LedgerPlace::Tracked.folder(&repository);
        let (records, heads) =
            if ledger.exists() { (load(&ledger)?, heads(&ledger)?) } else { (Vec::new(), Vec::new()) };
        let tables = tables(&records)?;
        let path = repository.path(DOCUMENT);
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut stale = stale_blocks(&text, &tables)?;
        if read_anchors(&repository)? != heads {
            stale.push("heads".to_owned());
        }
        if !self.check {
            let updated =
                tables.iter().try_fold(text, |text, (name, table)| update_between_markers(&text, name, table))?;
            replace_file(&path, &updated)?;
            write_anchors(&repository, &heads)?;
        }
        let verdict = if self.check && !stale.is_empty() { Verdict::Fail } else { Verdict::Pass };
        let (action, records) = (if self.check { "stale" } else { "updated" }, records.len());
        let list = if stale.is_empty() { "nothing".to_owned() } else { stale.join(", ") };
        Answer::new(&serde_json::json!({ "records": records, "stale": stale, "verdict": verdict }))?
            .line(format!("{verdict}: {action}: {list} ({records} records in the tracked ledger)"))
            .print(format)?;
        Ok(verdict.into())
    }
}

/// Every generated table by the name of its block.
fn tables(records: &[Record]) -> anyhow::Result<BTreeMap<String, String>> {
    let latest = latest(records)?;
    let of = |table: String| if records.is_empty() { "No record has been published yet.".to_owned() } else { table };
    Ok(BTreeMap::from([
        ("speed".to_owned(), of(speed_table_markdown(latest.iter().copied()))),
        ("perplexity".to_owned(), of(perplexity_table_markdown(latest.iter().copied()))),
    ]))
}
