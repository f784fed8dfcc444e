//! `assay adq`: does a configuration still do useful work?

mod check;
mod new;

use crate::exit::Exit;
use crate::output::Format;
use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  assay adq check
  assay adq new refunds";

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
    /// The files of a new task, to be filled in
    New(new::New),
}

impl Adq {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        match self.action {
            Action::Check(command) => command.run(format),
            Action::New(command) => command.run(format),
        }
    }
}
