//! `assay ledger verify`.

use crate::exit::{Exit, InvalidEvidence};
use crate::ledger_place::{LedgerPlace, read_anchors};
use crate::output::{Answer, Format, Table};
use crate::repository::Repository;
use assay_ledgers::{Head, Verdict, VerifyReport, WriterId, verify_anchored};
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
/// they exist; the tracked one must still hold what reports/heads.json names,
/// and is INCOMPLETE while that names no end for one of its chains: `assay
/// report` writes it. Exit code 4 where anything was changed.
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
    /// Chains of the tracked ledger whose end nothing else vouches for: records removed there with their head would not show.
    unanchored: Vec<WriterId>,
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
            let is_tracked = place == LedgerPlace::Tracked
                || matches!((folder.canonicalize(), tracked.canonicalize()), (Ok(one), Ok(other)) if one == other);
            // The tracked ledger must hold every anchored chain; a copy of it, those that it has.
            let has_chain = |head: &Head| {
                ["jsonl", "head"].iter().any(|end| folder.join(format!("{}.{end}", head.writer)).exists())
            };
            let here: Vec<Head> = anchors.iter().filter(|head| is_tracked || has_chain(head)).cloned().collect();
            let mut report = verify_anchored(&folder, &here)?;
            let is_anchored = |head: &&Head| here.iter().any(|anchor| anchor.writer == head.writer);
            let open_ended = report.heads.iter().filter(|head| is_tracked && !is_anchored(head));
            let unanchored: Vec<WriterId> =
                open_ended.filter(|head| head.count > 0).map(|head| head.writer.clone()).collect();
            if report.verdict == Verdict::Pass && !unanchored.is_empty() {
                report.verdict = Verdict::Incomplete;
            }
            verified.push(Verified { ledger: repository.display(&folder).to_owned(), report, unanchored });
        }
        let exit = Exit::worst(verified.iter().map(|ledger| ledger.report.verdict));
        answer(&verified)?.print(format)?;
        Ok(exit)
    }
}

fn answer(verified: &[Verified]) -> anyhow::Result<Answer> {
    // A problem names its file, so one list serves all ledgers; the worst of them is this answer's verdict.
    let any = |verdict| verified.iter().any(|ledger| ledger.report.verdict == verdict);
    let verdict = match (verified.is_empty(), any(Verdict::Invalid), any(Verdict::Incomplete)) {
        (true, ..) => Verdict::Incomplete,
        (_, true, _) => Verdict::Invalid,
        (.., true) => Verdict::Incomplete,
        _ => Verdict::Pass,
    };
    let records: u64 = verified.iter().map(|ledger| ledger.report.records).sum();
    let problems: Vec<_> = verified.iter().flat_map(|ledger| &ledger.report.problems).collect();
    let json = serde_json::json!({ "records": records, "verdict": verdict, "problems": problems, "ledgers": verified });
    let mut table = Table::new("ledgers", &["ledger", "#records", "#problems", "verdict"]);
    for Verified { ledger, report, .. } in verified {
        let problems = report.problems.len() as u64 + report.problems_omitted;
        table.row([
            &ledger.display().to_string(),
            &report.records.to_string(),
            &problems.to_string(),
            report.verdict.as_str(),
        ]);
    }
    let mut answer = Answer::new(&json)?.table(table);
    if verified.is_empty() {
        answer = answer.line(format!("{}: there is no ledger yet", Verdict::Incomplete));
    }
    for Verified { ledger, report, unanchored } in verified {
        for writer in unanchored {
            answer = answer.line(format!(
                "{}  anchors: reports/heads.json does not say where {}/{writer}.jsonl ends: `assay report` writes it",
                Verdict::Incomplete,
                ledger.display()
            ));
        }
        for problem in &report.problems {
            answer = answer.line(problem.to_string());
        }
        if report.problems_omitted > 0 {
            answer = answer.line(format!("and {} more", report.problems_omitted));
        }
    }
    Ok(answer)
}
