//! One file a command.

mod completions;

use crate::exit::Outcome;
use crate::output::Format;
use clap::Subcommand;

/// What `assay` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print a completion script for a shell
    Completions(completions::Completions),
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// Whatever stops a command before it has an outcome: usage, input, Ctrl-C, broken evidence.
    pub fn run(self, _format: Format) -> anyhow::Result<Outcome> {
        match self {
            Command::Completions(command) => command.run(),
        }
    }
}
