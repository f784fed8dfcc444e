//! How a command ends: the one place that maps outcomes and errors to exit codes.

use std::process::ExitCode;

/// How a command that ran to its end came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Everything it was to show holds.
    Pass,
    /// It was judged, and does not hold.
    Fail,
    /// It could not be judged.
    Incomplete,
    /// The evidence is broken.
    Invalid,
}

/// Ctrl-C: the command stopped early and left nothing behind.
#[derive(Debug, thiserror::Error)]
#[error("interrupted: nothing was recorded")]
pub struct Interrupted;

/// Evidence that cannot be trusted, found while a command was at work.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidEvidence(pub String);

/// Exit code of a usage or input error, as clap's own.
const INPUT_ERROR: u8 = 2;
/// Exit code after Ctrl-C: 128 + SIGINT.
const INTERRUPTED: u8 = 130;

impl Outcome {
    /// The exit code, the same for every command.
    pub fn exit_code(self) -> ExitCode {
        ExitCode::from(self.number())
    }

    fn number(self) -> u8 {
        match self {
            Outcome::Pass => 0,
            Outcome::Fail => 1,
            Outcome::Incomplete => 3,
            Outcome::Invalid => 4,
        }
    }
}

/// The exit code of a command that stopped with an error.
pub fn error_exit_code(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(error_number(error))
}

fn error_number(error: &anyhow::Error) -> u8 {
    if error.is::<Interrupted>() {
        INTERRUPTED
    } else if error.is::<InvalidEvidence>() {
        Outcome::Invalid.number()
    } else {
        INPUT_ERROR
    }
}

/// Whether the reader of stdout went away (`assay … | head`), which is no error of ours.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_code_under_context() {
        let check = |error: anyhow::Error, number: u8| assert_eq!(error_number(&error.context("while timing")), number);
        check(anyhow::anyhow!("no such file"), 2);
        check(Interrupted.into(), 130);
        check(InvalidEvidence("broken chain".into()).into(), 4);
    }
}
