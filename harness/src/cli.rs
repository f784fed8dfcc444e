//! Commands, global flags, and the path from arguments to an exit code.

use crate::commands::Command;
use crate::exit::{Outcome, error_exit_code, is_broken_pipe};
use crate::interrupt;
use crate::output::Format;
use clap::Parser;
use std::process::ExitCode;

/// Text of `--help` is wrapped at this many columns.
const HELP_WIDTH: usize = 80;

const EXIT_CODES: &str = "\
Exit codes: 0 PASS, 1 FAIL, 2 usage or input error, 3 INCOMPLETE (could not be
judged), 4 INVALID (broken evidence), 130 interrupted.
Answers go to stdout, progress and logs to stderr.";

/// Runs mixture-of-experts models whose weights exceed device memory, and measures how fast one exact configuration
/// is and whether it is still right.
#[derive(Debug, Parser)]
#[command(name = "assay", version, max_term_width = HELP_WIDTH, after_help = EXIT_CODES, disable_help_subcommand = true)]
pub struct Cli {
    /// Form of the answer on stdout
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: Format,
    #[command(subcommand)]
    command: Command,
}

/// Runs the command that the process's arguments name; its exit code.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    if let Err(error) = interrupt::install() {
        eprintln!("warning: Ctrl-C ends this run at once: {error}");
    }
    match cli.command.run(cli.output) {
        Ok(outcome) => outcome.exit_code(),
        Err(error) if is_broken_pipe(&error) => Outcome::Pass.exit_code(),
        Err(error) => {
            eprintln!("error: {error:#}");
            error_exit_code(&error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_fits_eighty_columns_and_shows_examples() {
        for command in Cli::command().get_subcommands_mut() {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Examples:"), "{} has no examples", command.get_name());
            for line in help.lines() {
                assert!(line.chars().count() <= HELP_WIDTH, "{}: {line:?}", command.get_name());
            }
        }
    }
}
