//! `assay ledger publish`.

use crate::exit::Exit;
use crate::ledger_place::LedgerPlace;
use crate::output::{Answer, Format, Table};
use crate::repository::Repository;
use assay_ledgers::{Body, Selection, check_counts, publish};
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  assay ledger publish 3f9a1c 88d0e2
  assay ledger publish --all";

/// Copy chosen records of this machine, with their raw logs, into the tracked
/// ledger.
///
/// A published record keeps its links in the ledger that it was first written
/// to, so it cannot be altered on the way. Records that invalidate it, or one
/// that is there, go with it. Those that are there already are left out. Commit
/// ledgers/tracked afterwards.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Publish {
    /// First digits of the records' hashes, six or more each
    #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "HASH")]
    hashes: Vec<String>,
    /// Every record
    #[arg(long)]
    all: bool,
}

impl Publish {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let selection = if self.all { Selection::All } else { Selection::Hashes(self.hashes) };
        let tracked = LedgerPlace::Tracked.folder(&repository);
        let published = publish(&LedgerPlace::Local.folder(&repository), &selection, &tracked)?;
        let mut table = Table::new("published", &["hash", "first written as", "kind"]);
        for record in &published {
            table.row([record.hash.short(), record.original_hash().short(), record.body.kind().to_owned()]);
        }
        let mut answer = Answer::new(&serde_json::json!({ "published": published }))?.table(table);
        if published.is_empty() {
            answer = answer.line("Nothing was new.");
        }
        let known = assay_ledgers::read(tracked)?.collect::<Result<Vec<_>, _>>()?;
        for record in published.iter().filter(|record| !matches!(record.body, Body::Invalidation(_))) {
            if let Err(taken_back) = check_counts(record.original_hash(), &known) {
                answer = answer.line(taken_back.to_string());
            }
        }
        answer.print(format)?;
        Ok(Exit::DONE)
    }
}
