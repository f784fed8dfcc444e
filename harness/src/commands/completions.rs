//! `assay completions`: a script that completes commands and flags.

use crate::cli::Cli;
use crate::exit::Exit;
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use std::io::Write;

const EXAMPLES: &str = "\
Examples:
  assay completions bash > ~/.local/share/bash-completion/completions/assay
  assay completions zsh > ~/.zfunc/_assay
  assay completions fish > ~/.config/fish/completions/assay.fish";

/// Print a completion script for a shell.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Completions {
    /// The shell to complete for
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "assay", &mut script);
        std::io::stdout().write_all(&script)?;
        Ok(Exit::DONE)
    }
}
