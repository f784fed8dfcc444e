//! Commands, global flags, and the path from arguments to an exit code.

use crate::commands::Command;
use crate::exit::{Exit, is_broken_pipe};
use crate::interrupt;
use crate::output::{Format, wrap};
use assay_engine::checkpoint::tokenizer;
use clap::Parser;
use std::io::IsTerminal;
use std::process::ExitCode;

/// Text of `--help` is wrapped at this many columns.
const HELP_WIDTH: usize = 80;
/// Longer lines of an error are cut here, in characters.
const MAX_LINE_CHARS: usize = 1000;

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
    quiet_guarded_panics();
    let cli = Cli::parse();
    if let Err(error) = interrupt::install() {
        eprintln!("warning: Ctrl-C ends this run at once: {error}");
    }
    // Inside the pool: kernels then hand work to their neighbours without waking a thread that waits outside.
    let exit = rayon::scope(|_| cli.command.run(cli.output)).unwrap_or_else(|error| {
        if !is_broken_pipe(&error) {
            eprintln!("{}", error_text(&error));
        }
        Exit::of_error(&error)
    });
    exit.into()
}

/// A panic that becomes an error is not printed as well.
fn quiet_guarded_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !tokenizer::is_guarded() {
            print(info);
        }
    }));
}

/// A line as far as anybody reads it: some errors quote a line of a file, which may have megabytes.
fn cut(line: &str) -> String {
    let shown = match line.char_indices().nth(MAX_LINE_CHARS) {
        None => line.to_owned(),
        Some((end, _)) => format!("{} ...", &line[..end]),
    };
    // A name in a file must not steer the terminal.
    let controlled = |c: char| c.is_control() && c != '\t';
    if !shown.contains(controlled) {
        return shown;
    }
    shown.chars().map(|c| if controlled(c) { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// The error and its causes. Most errors already say what caused them: that is not said twice.
fn error_text(error: &anyhow::Error) -> String {
    let mut text = format!("error: {error}");
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    let text = text.lines().map(cut).collect::<Vec<_>>().join("\n");
    if std::io::stderr().is_terminal() { wrap(&text) } else { text }
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
    fn a_cause_is_said_once() {
        let io = || std::io::Error::other("disk on fire");
        let check = |error: anyhow::Error, text: &str| assert_eq!(error_text(&error), text);
        check(anyhow::Error::new(io()).context("cannot read x"), "error: cannot read x: disk on fire");
        check(anyhow::Error::new(io()).context("cannot read x: disk on fire"), "error: cannot read x: disk on fire");
    }

    #[test]
    fn what_a_file_says_neither_floods_nor_steers_the_terminal() {
        let text = error_text(&anyhow::anyhow!("tensor \u{1b}[2Ja\u{7f}: {}\nexpected\tb", "x".repeat(2000)));
        assert!(
            text.starts_with("error: tensor \\u{1b}[2Ja\\u{7f}: xxx") && text.ends_with("xxx ...\nexpected\tb"),
            "{text}"
        );
        assert!(text.chars().count() < MAX_LINE_CHARS + 50);
    }

    #[test]
    fn help_fits_eighty_columns_and_shows_examples() {
        let mut command = Cli::command();
        command.build();
        command.get_subcommands_mut().for_each(check_help);
    }

    fn check_help(command: &mut clap::Command) {
        let help = command.render_long_help().to_string();
        assert!(help.contains("Examples:"), "{} has no examples", command.get_name());
        for line in help.lines() {
            assert!(line.chars().count() <= HELP_WIDTH, "{}: {line:?}", command.get_name());
        }
        command.get_subcommands_mut().for_each(check_help);
    }
}
