//! How a command ends: the one place that maps verdicts and errors to exit codes.

use assay_ledgers::{Verdict, process_exit_code};
use std::process::ExitCode;

/// The exit code of a command that ran to its end, the same for every command: 0 PASS, 1 FAIL, 3 INCOMPLETE, 4 INVALID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit(u8);

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

impl Exit {
    /// Nothing was to be judged, and it worked.
    pub const DONE: Exit = Exit(0);

    /// The worst of several verdicts; INCOMPLETE without any.
    pub fn worst(verdicts: impl IntoIterator<Item = Verdict>) -> Self {
        Exit(process_exit_code(verdicts))
    }

    /// The code of a command that stopped with an error.
    pub(crate) fn of_error(error: &anyhow::Error) -> Self {
        if error.is::<Interrupted>() {
            Exit(INTERRUPTED)
        } else if error.is::<InvalidEvidence>() || is_invalid_record(error) {
            Verdict::Invalid.into()
        } else if is_broken_pipe(error) {
            Exit::DONE
        } else {
            Exit(INPUT_ERROR)
        }
    }
}

impl From<Verdict> for Exit {
    fn from(verdict: Verdict) -> Self {
        Exit(verdict.exit_code())
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.0)
    }
}

/// Whether a ledger could not be trusted.
fn is_invalid_record(error: &anyhow::Error) -> bool {
    error.downcast_ref::<assay_ledgers::Error>().is_some_and(assay_ledgers::Error::is_invalid_evidence)
}

/// Whether the reader of stdout went away (`assay … | head`), which is no error of ours.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_code_under_context() {
        let check =
            |error: anyhow::Error, code: u8| assert_eq!(Exit::of_error(&error.context("while timing")), Exit(code));
        check(anyhow::anyhow!("no such file"), 2);
        check(Interrupted.into(), 130);
        check(InvalidEvidence("broken chain".into()).into(), 4);
        let broken =
            |path: &str| assay_ledgers::Error::Broken { path: path.into(), detail: "records were lost".to_owned() };
        check(broken("ledgers/local").into(), 4);
        check(assay_ledgers::Error::BadPrefix { prefix: "zz".to_owned() }.into(), 2);
        check(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into(), 0);
        check(std::io::Error::from(std::io::ErrorKind::NotFound).into(), 2);
    }
}
