//! `assay adq report`

use super::answer::{answer, task_json};
use crate::adq::evidence::RecordedRun;
use crate::adq::page::page;
use crate::adq::rows::{self, row};
use crate::exit::Exit;
use crate::ledger_place::replace_file;
use crate::output::Format;
use crate::repository::Repository;
use crate::statistics::mcnemar;
use anyhow::ensure;
use assay_ledgers::{Verdict, VerdictRow};
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  assay adq report
  assay adq report 3f9a1c --page run.html
  assay adq report 3f9a1c --against 77b0e2";

/// What a run found; without a name, the latest
///
/// A run that ended early says INCOMPLETE, whatever it had found until then.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Report {
    /// The run, by the start of its name
    #[arg(value_name = "RUN")]
    run: Option<String>,
    /// Write a page with transcripts, changes and test results
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Another run: McNemar's test over the tasks of both, and whose transcripts are equal
    #[arg(long, value_name = "RUN")]
    against: Option<String>,
}

/// The rows of a run: those of its last record, or all INCOMPLETE.
pub(super) fn rows_of(run: &RecordedRun) -> Vec<VerdictRow> {
    if let Some(whole) = &run.whole {
        return whole.verdicts.clone();
    }
    let planned = run.plan.tasks.len() * run.plan.attempts as usize;
    let reason = format!("the run ended after {} of {planned} attempts", run.attempts.len());
    rows::ALL.into_iter().map(|name| row(name, Verdict::Incomplete, reason.clone())).collect()
}

/// What was printed, or would have been as far as the run came.
fn summary(run: &RecordedRun) -> anyhow::Result<Value> {
    if let Some(summary) = run.summary()? {
        return Ok(summary);
    }
    let mut tasks: Vec<Value> = run.attempts.iter().map(|attempt| task_json(&attempt.kept, &attempt.record)).collect();
    for task in run.plan.tasks.keys() {
        let made = run.attempts.iter().filter(|attempt| attempt.kept.task == *task).count();
        tasks.extend((made..run.plan.attempts as usize).map(|number| {
            json!({
                "task": task, "attempt": number + 1, "verdict": Verdict::Incomplete, "public": Verdict::Incomplete,
                "hidden": Verdict::Incomplete, "reason": "not run: the run ended before it",
            })
        }));
    }
    Ok(json!({
        "run": run.plan.run, "subject": run.plan.subject, "suite": run.plan.suite, "tier_tokens": run.plan.tier, "attempts": run.plan.attempts,
        "tasks": tasks, "rows": rows_of(run),
    }))
}

/// Tasks of both runs, and whether their first attempts went the same way, to the last byte that was said and done.
fn equal_transcripts(run: &RecordedRun, other: &RecordedRun) -> BTreeMap<String, bool> {
    let essences = |run: &RecordedRun| -> BTreeMap<String, Vec<String>> {
        let first = run.attempts.iter().filter(|attempt| attempt.kept.attempt == 1);
        first.map(|attempt| (attempt.kept.task.clone(), attempt.transcript.essence())).collect()
    };
    let (own, theirs) = (essences(run), essences(other));
    own.into_iter().filter_map(|(task, essence)| Some((task.clone(), *theirs.get(&task)? == essence))).collect()
}

/// Names in a sentence, the first few of many.
fn named<'a>(names: impl ExactSizeIterator<Item = &'a String>) -> String {
    const MOST: usize = 12;
    let more = names.len().saturating_sub(MOST);
    let first = names.take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{first} and {more} more") } else { first }
}

/// Whether each task was solved by the first attempt at it.
fn solved(run: &RecordedRun) -> BTreeMap<String, bool> {
    let first = run.attempts.iter().filter(|attempt| attempt.kept.attempt == 1);
    first
        .filter_map(|attempt| {
            let verdict = attempt.record.verdicts.first()?.verdict;
            let judged = matches!(verdict, Verdict::Pass | Verdict::Fail);
            judged.then(|| (attempt.kept.task.clone(), verdict == Verdict::Pass))
        })
        .collect()
}

impl Report {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let run = RecordedRun::read(&repository, self.run.as_deref())?;
        let rows = rows_of(&run);
        let mut summary = summary(&run)?;
        if let Some(path) = &self.page {
            replace_file(path, &page(&run, &rows))?;
            eprintln!("wrote {}", path.display());
        }
        let mut words = None;
        if let Some(other) = &self.against {
            let other = RecordedRun::read(&repository, Some(other))?;
            let (left, right) = (solved(&run), solved(&other));
            let both: Vec<(bool, bool)> =
                left.iter().filter_map(|(task, &solved)| Some((solved, *right.get(task)?))).collect();
            let only_left = both.iter().filter(|&&(left, right)| left && !right).count() as u64;
            let only_right = both.iter().filter(|&&(left, right)| right && !left).count() as u64;
            let p = mcnemar(only_left, only_right);
            let transcripts = equal_transcripts(&run, &other);
            ensure!(
                !transcripts.is_empty(),
                "runs {} and {} have no task in common: {} and {}",
                run.plan.run,
                other.plan.run,
                named(run.plan.tasks.keys()),
                named(other.plan.tasks.keys())
            );
            let differing: Vec<&String> =
                transcripts.iter().filter(|(_, equal)| !**equal).map(|(task, _)| task).collect();
            let equal = transcripts.len() - differing.len();
            summary["mcnemar"] = json!({
                "against": other.plan.run, "tasks": both.len(), "only_this": only_left, "only_other": only_right, "p": p,
                "equal_transcripts": equal, "differing_transcripts": differing,
            });
            words = Some(format!(
                "against {}: {} tasks, {only_left} solved here alone, {only_right} there alone, p = {p:.3} (McNemar); {equal} of {} \
                 transcripts are equal{}",
                other.plan.run,
                both.len(),
                transcripts.len(),
                if differing.is_empty() {
                    String::new()
                } else {
                    format!("; others: {}", named(differing.iter().copied()))
                }
            ));
        }
        let mut answer = answer(&summary, &rows, run.whole.as_ref().map(|record| record.hash))?;
        if let Some(words) = words {
            answer = answer.line(words);
        }
        answer.print(format)?;
        Ok(Exit::worst(rows.iter().map(|row| row.verdict)))
    }
}
