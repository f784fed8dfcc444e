//! `assay ledger import`.

use crate::exit::Exit;
use crate::ledger_place::LedgerPlace;
use crate::output::{Answer, Format, Table};
use crate::repository::Repository;
use assay_ledgers::import;
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  scp -r gpu:assay/ledgers/local gpu-ledger
  assay ledger import gpu-ledger
  assay ledger publish 3f9a1c";

/// Take in the records of another machine's ledger.
///
/// DIR is a copy of its ledgers/local. Every chain, head, record and raw log in
/// it is checked first; where one was changed, or a chain is not the
/// continuation of what is here of that writer, nothing is taken and the exit
/// code is 4. Records keep their links, and are published like this machine's
/// own. Those that are here already are left out.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Import {
    /// The other machine's ledger
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl Import {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let local = LedgerPlace::Local.folder(&Repository::find()?);
        let chains = import(&self.folder, &local)?;
        let mut table = Table::new("imported", &["writer", "#records", "#new"]);
        for chain in &chains {
            table.row([chain.writer.as_str(), &chain.records.to_string(), &chain.new.to_string()]);
        }
        let new: u64 = chains.iter().map(|chain| chain.new).sum();
        let answer = Answer::new(&serde_json::json!({ "new": new, "chains": chains }))?.table(table);
        let line = match new {
            0 => "Nothing was new.".to_owned(),
            1 => "1 record was new.".to_owned(),
            new => format!("{new} records were new."),
        };
        answer.line(line).print(format)?;
        Ok(Exit::DONE)
    }
}
