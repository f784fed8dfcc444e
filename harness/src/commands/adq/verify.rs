//! `assay adq verify`

use super::report::rows_of;
use crate::adq::attempt::judge;
use crate::adq::evidence::RecordedRun;
use crate::adq::rows::row;
use crate::adq::sampling::SamplingContract;
use crate::adq::suite;
use crate::adq::task::{FOLDER, Task};
use crate::adq::transcript::Line;
use crate::exit::Exit;
use crate::output::{Answer, Format, Table};
use crate::repository::Repository;
use assay_ledgers::{Verdict, VerdictRow};
use clap::Args;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  assay adq verify
  assay adq verify 3f9a1c --output json";

/// Whether a run's evidence is what was recorded, and whether it is complete
///
/// Every record, link and log of the ledger; every request against the sampling contract; every verdict against what was kept of its
/// attempt; the tasks against their digests.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Verify {
    /// The run, by the start of its name; the latest without one
    #[arg(value_name = "RUN")]
    run: Option<String>,
}

impl Verify {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let run = RecordedRun::read(&repository, self.run.as_deref())?;
        let rows = vec![ledger(&run)?, sampling(&run), verdicts(&run), tasks(&run, &repository), complete(&run)];
        let mut table = Table::new(format!("run {}", run.plan.run), &["row", "verdict", "why"]);
        for VerdictRow { row, verdict, reason } in &rows {
            table.row([row, verdict.as_str(), reason]);
        }
        Answer::new(&json!({ "run": run.plan.run, "rows": rows, "run_rows": rows_of(&run) }))?
            .table(table)
            .print(format)?;
        Ok(Exit::worst(rows.iter().map(|row| row.verdict)))
    }
}

fn ledger(run: &RecordedRun) -> anyhow::Result<VerdictRow> {
    let report = assay_ledgers::verify(&run.folder)?;
    let reason = match report.problems.first() {
        Some(problem) => format!("{} problems; the first: {problem:?}", report.problems.len()),
        None => "every record, link and log is as it was written".to_owned(),
    };
    Ok(row("ledger", report.verdict, reason))
}

fn sampling(run: &RecordedRun) -> VerdictRow {
    let contract = SamplingContract::GREEDY;
    let mut requests = 0;
    for attempt in &run.attempts {
        for line in attempt.transcript.lines() {
            let Line::Exchange { request, response, turn, .. } = line else { continue };
            requests += 1;
            if let Err(reason) = contract.check_sent(request).and_then(|()| contract.check_reported(response)) {
                return row("sampling", Verdict::Invalid, format!("{}, turn {turn}: {reason}", attempt.kept.task));
            }
        }
    }
    row("sampling", Verdict::Pass, format!("{requests} requests are as the contract says"))
}

fn verdicts(run: &RecordedRun) -> VerdictRow {
    for attempt in &run.attempts {
        let kept = &attempt.kept;
        let judged = judge(&kept.ending, &kept.patch, &kept.violations, kept.grade.as_ref());
        let same =
            attempt.record.verdicts.first().is_some_and(|row| {
                row.verdict == judged.verdict && row.reason == judged.reason && row.row == kept.task
            });
        if !same {
            let reason = format!("{}: what was kept says {}: {}", kept.task, judged.verdict, judged.reason);
            return row("verdicts", Verdict::Invalid, reason);
        }
    }
    row("verdicts", Verdict::Pass, format!("{} attempts are judged as recorded", run.attempts.len()))
}

fn tasks(run: &RecordedRun, repository: &Repository) -> VerdictRow {
    let names: Vec<String> = run.plan.tasks.keys().cloned().collect();
    let folder = suite::folder(&repository.path(FOLDER), run.plan.suite.as_deref());
    let now = match folder.and_then(|folder| Task::read_all(&folder, &names)) {
        Ok(tasks) => tasks,
        Err(error) => return row("tasks", Verdict::Incomplete, error.to_string()),
    };
    match now.iter().find(|task| run.plan.tasks.get(&task.file.name) != Some(&task.digest)) {
        Some(task) => row("tasks", Verdict::Incomplete, format!("{} is another one now", task.file.name)),
        None => row("tasks", Verdict::Pass, format!("{} tasks are as they were", now.len())),
    }
}

fn complete(run: &RecordedRun) -> VerdictRow {
    match &run.whole {
        Some(record) => row("complete", Verdict::Pass, format!("its last record is {}", record.hash.short())),
        None => row("complete", Verdict::Incomplete, format!("it ended early, after {} attempts", run.attempts.len())),
    }
}
