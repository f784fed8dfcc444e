//! One file a command.

mod completions;
mod ledger;

use crate::exit::Exit;
use crate::output::Format;
use clap::Subcommand;

/// What `assay` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Evidence of earlier runs: check it, read it, keep it
    Ledger(ledger::Ledger),
    /// Print a completion script for a shell
    Completions(completions::Completions),
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// Whatever stops a command before it has a verdict: usage, input, Ctrl-C, broken evidence.
    pub fn run(self, format: Format) -> anyhow::Result<Exit> {
        match self {
            Command::Ledger(command) => command.run(format),
            Command::Completions(command) => command.run(),
        }
    }
}
