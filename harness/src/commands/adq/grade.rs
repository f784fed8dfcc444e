//! `assay adq grade`

use crate::adq::evidence::RecordedRun;
use crate::adq::grade::Bench;
use crate::adq::regrade::regrade;
use crate::adq::suite;
use crate::adq::task::{FOLDER, Task};
use crate::exit::Exit;
use crate::output::{Answer, Format, Table};
use crate::repository::Repository;
use assay_ledgers::Verdict;
use clap::Args;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  assay adq grade
  assay adq grade 3f9a1c --output json";

/// Grade a run again from its transcripts, without a model
///
/// The calls in a transcript are made again on a fresh repository, and what they changed is graded in a fresh sandbox. A verdict
/// other than the recorded one is INVALID.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Grade {
    /// The run, by the start of its name; the latest without one
    #[arg(value_name = "RUN")]
    run: Option<String>,
}

impl Grade {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let run = RecordedRun::read(&repository, self.run.as_deref())?;
        let bench = Bench::new()?;
        bench.sandbox.probe(&bench.interpreter)?;
        let folder = suite::folder(&repository.path(FOLDER), run.plan.suite.as_deref())?;
        let tasks = Task::read_all(&folder, &[])?;
        let mut table = Table::new(format!("run {}", run.plan.run), &["task", "verdict", "recorded", "why"]);
        let (mut rows, mut verdicts) = (Vec::new(), Vec::new());
        for attempt in &run.attempts {
            let name = &attempt.kept.task;
            let recorded = attempt.record.verdicts.first().map_or(Verdict::Incomplete, |row| row.verdict);
            let task = tasks.iter().find(|task| task.file.name == *name);
            let (verdict, reason) = match task {
                Some(task) if Some(&task.digest) == run.plan.tasks.get(name) => {
                    let found = regrade(&bench, task, &attempt.kept.ending, &attempt.transcript)?;
                    (found.judged.verdict, found.judged.reason)
                }
                _ => (Verdict::Incomplete, "the task is not here as it was: it cannot be graded again".to_owned()),
            };
            let broken = !matches!(verdict, Verdict::Incomplete) && verdict != recorded;
            verdicts.push(if broken { Verdict::Invalid } else { verdict });
            table.row([name.as_str(), verdict.as_str(), recorded.as_str(), &reason]);
            rows.push(json!({
                "task": name, "attempt": attempt.kept.attempt, "verdict": verdict, "recorded": recorded,
                "equal": verdict == recorded, "reason": reason,
            }));
        }
        Answer::new(&json!({ "run": run.plan.run, "tasks": rows }))?.table(table).print(format)?;
        Ok(Exit::worst(verdicts))
    }
}
