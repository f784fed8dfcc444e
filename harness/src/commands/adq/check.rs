//! `assay adq check`

use crate::adq::check::check;
use crate::adq::grade::Bench;
use crate::adq::task::{FOLDER, Task};
use crate::exit::Exit;
use crate::output::{Answer, Format, Table};
use crate::repository::Repository;
use assay_ledgers::{Verdict, VerdictRow};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  assay adq check
  assay adq check ledger history --output json";

/// Whether the tests of tasks tell right from wrong, and each is needed
///
/// The solution passes; the untouched repository fails, its public tests too; a solution of the public tests alone fails hidden ones;
/// each hidden test catches some mutant that no other test catches.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Check {
    /// Tasks, instead of all
    #[arg(value_name = "TASK")]
    tasks: Vec<String>,
    /// Where they lie
    #[arg(long, value_name = "FOLDER")]
    fixtures: Option<PathBuf>,
}

impl Check {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let folder = match self.fixtures {
            Some(folder) => folder,
            None => Repository::find()?.path(FOLDER),
        };
        let tasks = Task::read_all(&folder, &self.tasks)?;
        let bench = Bench::new()?;
        bench.sandbox.probe(&bench.interpreter)?;
        let mut answer = Vec::new();
        let mut verdicts: Vec<Verdict> = Vec::new();
        let mut table = Table::new(format!("tasks of {}", folder.display()), &["task", "verdict", "property", "why"]);
        for task in &tasks {
            let rows = check(&bench, task)?;
            for VerdictRow { row, verdict, reason } in &rows {
                table.row([&task.file.name, verdict.as_str(), row, reason]);
            }
            verdicts.extend(rows.iter().map(|row| row.verdict));
            answer.push(json!({ "task": task.file.name, "digest": task.digest, "rows": rows }));
        }
        let sound = verdicts.iter().filter(|&&verdict| verdict == Verdict::Pass).count();
        Answer::new(&json!({ "tasks": answer, "python": bench.interpreter.version }))?
            .table(table)
            .line(format!("{sound} of {} properties hold", verdicts.len()))
            .print(format)?;
        Ok(Exit::worst(verdicts))
    }
}
