//! `assay ledger verify`.

use crate::exit::{Exit, InvalidEvidence};
use crate::ledger_place::{LedgerPlace, read_anchors};
use crate::output::{Answer, Format, Table};
use crate::repository::Repository;
use assay_ledgers::{Head, Verdict, VerifyReport, verify_anchored};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  assay ledger verify
  assay ledger verify --ledger tracked --output json";

/// Check every record, link, head and raw log.
///
/// PASS when nothing was changed, removed, moved or added behind the ledger's
/// back; INVALID otherwise. An append that was cut short is reported and harms
/// nothing. Without an argument, both local and tracked are checked, as far as
/// they exist; the tracked one must still hold what reports/heads.json names.
/// Exit code 4 where anything was changed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Verify {
    /// local, tracked or a folder
    #[arg(value_name = "LEDGER")]
    ledgers: Vec<LedgerPlace>,
    /// The same, as other commands take it
    #[arg(long = "ledger", value_name = "LEDGER")]
    more: Vec<LedgerPlace>,
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
        let anchors = read_anchors(&repository)?;
        let mut places = self.ledgers;
        places.extend(self.more);
        if places.is_empty() {
            places = vec![LedgerPlace::Local, LedgerPlace::Tracked];
            places.retain(|place| place.folder(&repository).exists());
        }
        let tracked = LedgerPlace::Tracked.folder(&repository);
        if !anchors.is_empty() && !tracked.exists() {
            let gone = format!("reports/heads.json vouches for {}, which is gone", tracked.display());
            return Err(InvalidEvidence(gone).into());
        }
        let mut verified = Vec::new();
        for place in places {
            let folder = place.folder(&repository);
            // The tracked ledger must hold every anchored chain; a copy of it, those that it has.
            let has_chain = |head: &Head| {
                ["jsonl", "head"].iter().any(|end| folder.join(format!("{}.{end}", head.writer)).exists())
            };
            let anchors: Vec<Head> =
                anchors.iter().filter(|head| place == LedgerPlace::Tracked || has_chain(head)).cloned().collect();
            let report = verify_anchored(&folder, &anchors)?;
            verified.push(Verified { ledger: repository.display(&folder).to_owned(), report });
        }
        let exit = Exit::worst(verified.iter().map(|ledger| ledger.report.verdict));
        answer(&verified)?.print(format)?;
        Ok(exit)
    }
}

fn answer(verified: &[Verified]) -> anyhow::Result<Answer> {
    // A problem names its file, so one list serves all ledgers; any of them that is INVALID makes this answer so.
    let invalid = verified.iter().any(|ledger| ledger.report.verdict == Verdict::Invalid);
    let verdict = match (verified.is_empty(), invalid) {
        (true, _) => Verdict::Incomplete,
        (_, true) => Verdict::Invalid,
        (_, false) => Verdict::Pass,
    };
    let records: u64 = verified.iter().map(|ledger| ledger.report.records).sum();
    let problems: Vec<_> = verified.iter().flat_map(|ledger| &ledger.report.problems).collect();
    let json = serde_json::json!({ "records": records, "verdict": verdict, "problems": problems, "ledgers": verified });
    let mut answer = Answer::new(&json)?;
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
