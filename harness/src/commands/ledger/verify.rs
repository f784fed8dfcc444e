//! `assay ledger verify`.

use crate::exit::Exit;
use crate::ledger_place::LedgerPlace;
use crate::output::{Answer, Format, Table};
use crate::repository::Repository;
use assay_ledgers::{Verdict, VerifyReport, verify};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  assay ledger verify
  assay ledger verify tracked --output json";

/// Check every record, link, head and raw log.
///
/// PASS when nothing was changed, removed, moved or added behind the ledger's
/// back; INVALID otherwise. An append that was cut short is reported and harms
/// nothing. Without an argument, both local and tracked are checked, as far as
/// they exist.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Verify {
    /// local, tracked or a folder
    #[arg(value_name = "LEDGER")]
    ledgers: Vec<LedgerPlace>,
}

#[derive(Serialize)]
struct Verified {
    ledger: PathBuf,
    #[serde(flatten)]
    report: VerifyReport,
}

impl Verify {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let folders: Vec<PathBuf> = if self.ledgers.is_empty() {
            let both = [LedgerPlace::Local, LedgerPlace::Tracked].map(|place| place.folder(&repository));
            both.into_iter().filter(|folder| folder.exists()).collect()
        } else {
            self.ledgers.iter().map(|place| place.folder(&repository)).collect()
        };
        let mut verified = Vec::new();
        for folder in folders {
            let report = verify(&folder)?;
            verified.push(Verified { ledger: repository.display(&folder).to_owned(), report });
        }
        let exit = Exit::worst(verified.iter().map(|ledger| ledger.report.verdict));
        answer(&verified)?.print(format)?;
        Ok(exit)
    }
}

fn answer(verified: &[Verified]) -> anyhow::Result<Answer> {
    let mut answer = Answer::new(&serde_json::json!({ "ledgers": verified }))?;
    if verified.is_empty() {
        return Ok(answer.line(format!("{}: there is no ledger yet", Verdict::Incomplete)));
    }
    let mut table = Table::new("ledgers", &["ledger", "#records", "#problems", "verdict"]);
    for Verified { ledger, report } in verified {
        let problems = report.problems.len() as u64 + report.problems_omitted;
        table.row([
            &ledger.display().to_string(),
            &report.records.to_string(),
            &problems.to_string(),
            report.verdict.as_str(),
        ]);
    }
    answer = answer.table(table);
    for Verified { report, .. } in verified {
        for problem in &report.problems {
            answer = answer.line(problem.to_string());
        }
        if report.problems_omitted > 0 {
            answer = answer.line(format!("and {} more", report.problems_omitted));
        }
    }
    Ok(answer)
}
