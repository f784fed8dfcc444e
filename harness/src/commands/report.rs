//! `assay report`: published figures, made of the tracked ledger.

use crate::exit::Exit;
use crate::ledger_place::{LedgerPlace, read_anchors, replace_file, write_anchors};
use crate::output::{Answer, Format};
use crate::repository::Repository;
use crate::statistics::mcnemar;
use anyhow::Context;
use assay_engine::file;
use assay_ledgers::{Record, Verdict, heads};
use assay_reports::{
    comparison_table_markdown, fidelity_table_markdown, headline_table_markdown, latest, load, page,
    perplexity_table_markdown, speed_table_markdown, stale_blocks, typed_figures, update_between_markers,
    verdict_table_markdown, work_table_markdown,
};
use clap::Args;
use std::collections::BTreeMap;

/// Documents with generated blocks, under the repository's root.
const RESULTS: &str = "reports/results.md";
const README: &str = "README.md";
/// The page, generated whole.
const PAGE: &str = "reports/index.html";
/// No document or page of ours is larger.
const MAX_BYTES: u64 = 256 << 20;

const EXAMPLES: &str = "\
Examples:
  assay report
  assay report --check";

/// Make the published figures out of the tracked ledger.
///
/// Writes the tables of README.md and reports/results.md, the page
/// reports/index.html with its charts, and where every chain of the ledger ends
/// into reports/heads.json, so that records which vanish later are missed.
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
        let mut stale = Vec::new();
        for (document, tables) in documents(&records)? {
            stale.extend(self.document(&repository, document, &tables)?);
        }
        let page = page(&records, &heads)?;
        let path = repository.path(PAGE);
        if file::read(&path, MAX_BYTES).ok().as_deref() != Some(page.as_bytes()) {
            stale.push(PAGE.to_owned());
        }
        if read_anchors(&repository)? != heads {
            stale.push("heads".to_owned());
        }
        if !self.check {
            replace_file(&path, &page)?;
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

    /// What is stale in one document; it is made fresh unless this is a check.
    fn document(
        &self,
        repository: &Repository,
        name: &str,
        tables: &BTreeMap<String, String>,
    ) -> anyhow::Result<Vec<String>> {
        let path = repository.path(name);
        let text = file::read_text(&path, MAX_BYTES)?;
        let blocks = stale_blocks(&text, tables).with_context(|| name.to_owned())?;
        let mut stale: Vec<String> = blocks.into_iter().map(|block| format!("{name}: {block}")).collect();
        if self.check {
            // A figure outside the blocks is nobody's: writing cannot mend it.
            stale.extend(typed_figures(&text).into_iter().map(|line| format!("{name}: typed: {line}")));
        } else {
            let updated =
                tables.iter().try_fold(text, |text, (name, table)| update_between_markers(&text, name, table))?;
            replace_file(&path, &updated)?;
        }
        Ok(stale)
    }
}

/// Every generated table by document and by the name of its block.
fn documents(records: &[Record]) -> anyhow::Result<[(&'static str, BTreeMap<String, String>); 2]> {
    let latest = latest(records)?;
    let of = |table: String| if records.is_empty() { "No record has been published yet.".to_owned() } else { table };
    let all = || latest.iter().copied();
    let results = BTreeMap::from([
        ("speed".to_owned(), of(speed_table_markdown(all()))),
        ("perplexity".to_owned(), of(perplexity_table_markdown(all()))),
        ("fidelity".to_owned(), of(fidelity_table_markdown(all()))),
        ("comparisons".to_owned(), of(comparison_table_markdown(all()))),
        ("work".to_owned(), of(work_table_markdown(all(), mcnemar))),
        ("verdicts".to_owned(), of(verdict_table_markdown(all()))),
    ]);
    let readme = BTreeMap::from([("headline".to_owned(), of(headline_table_markdown(all())))]);
    Ok([(RESULTS, results), (README, readme)])
}
