//! `assay adq`: does a configuration still do useful work?

mod answer;
mod check;
mod grade;
mod new;
mod report;
mod run;
mod verify;

use crate::exit::Exit;
use crate::output::Format;
use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  assay adq check
  assay adq run --agent oracle
  assay adq run --config tiny-moe
  assay adq report --page run.html";

/// Does a configuration still do useful work? Tasks, controls, evidence.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Adq {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Whether the tests of tasks tell right from wrong, and each is needed
    Check(check::Check),
    /// Qualify a config, an endpoint or a scripted agent
    Run(Box<run::Run>),
    /// Grade a run again from its transcripts, without a model
    Grade(grade::Grade),
    /// What a run found; a page to read it on
    Report(report::Report),
    /// Whether a run's evidence is what was recorded, and complete
    Verify(verify::Verify),
    /// The files of a new task, to be filled in
    New(new::New),
}

impl Adq {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        match self.action {
            Action::Check(command) => command.run(format),
            Action::Run(command) => command.run(format),
            Action::Grade(command) => command.run(format),
            Action::Report(command) => command.run(format),
            Action::Verify(command) => command.run(format),
            Action::New(command) => command.run(format),
        }
    }
}
