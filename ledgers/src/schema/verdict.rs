//! Judgements.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One judgement of one row.
///
/// A record holds one a row and never a sum of them: a failure must not hide behind passes, nor the other way round.
/// Only a process has one number to answer with: [`process_exit_code`], which therefore returns a number and not a
/// verdict that somebody could store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// Judged, and good.
    Pass,
    /// Judged, and not good.
    Fail,
    /// Could not be judged.
    Incomplete,
    /// The evidence itself is broken.
    Invalid,
}

impl Verdict {
    /// The exit code that stands for this verdict: 0, 1, 3, 4 (2 is usage and input errors).
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Fail => 1,
            Self::Incomplete => 3,
            Self::Invalid => 4,
        }
    }

    /// As it is written: `PASS`, `FAIL`, `INCOMPLETE`, `INVALID`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::Incomplete => "INCOMPLETE",
            Self::Invalid => "INVALID",
        }
    }

    const fn severity(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Incomplete => 1,
            Self::Fail => 2,
            Self::Invalid => 3,
        }
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// The worst verdict's exit code: INVALID before FAIL before INCOMPLETE before PASS. Where nothing was judged at all the
/// answer is INCOMPLETE's.
pub fn process_exit_code(verdicts: impl IntoIterator<Item = Verdict>) -> u8 {
    verdicts.into_iter().max_by_key(|verdict| verdict.severity()).unwrap_or(Verdict::Incomplete).exit_code()
}

/// The verdict on one row of a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerdictRow {
    /// The row, as the record's body names it.
    pub row: String,
    /// The judgement.
    pub verdict: Verdict,
    /// Why; empty only where the verdict speaks for itself.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_answers_with_the_worst() {
        use Verdict::{Fail, Incomplete, Invalid, Pass};
        for (verdicts, code) in [
            (vec![], 3),
            (vec![Pass], 0),
            (vec![Pass, Incomplete], 3),
            (vec![Incomplete, Fail, Pass], 1),
            (vec![Invalid, Fail], 4),
        ] {
            assert_eq!(process_exit_code(verdicts.iter().copied()), code, "{verdicts:?}");
        }
    }
}
