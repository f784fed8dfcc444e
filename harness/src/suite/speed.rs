//! Speed suites: prompt and answer lengths, repetitions, and the texts they are cut from.

use crate::corpus::PromptSet;
use assay_engine::file::{self, FileError};
use assay_ledgers::Sha256;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The version of the form that this code reads.
const FORMAT: u32 = 1;
/// With fewer timed repetitions no median carries an interval at 95 %.
const MIN_TIMED: usize = 6;
/// The largest suite that is read, in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// The most repetitions of a length, the most lengths, and the longest: far beyond a day's work.
const MAX_REPETITIONS: usize = 10_000;
const MAX_LENGTHS: usize = 1000;
const MAX_TOKENS: usize = 1 << 27;

/// A speed suite, as in `suites/speed/*.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpeedSuite {
    /// Version of the form.
    pub format: u32,
    /// Name, as in records.
    pub name: String,
    /// Version of the contents: results of different versions do not compare.
    pub version: u32,
    /// The config that is run, where the suite fixes one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// Texts that prompts are cut from, unless the command says otherwise.
    pub prompt_set: PromptSet,
    /// What prefill is timed on.
    pub prefill: PrefillPlan,
    /// What decode is timed on.
    pub decode: DecodePlan,
    /// How often.
    pub repetitions: Repetitions,
}

/// What prefill is timed on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PrefillPlan {
    /// Prompt lengths, rising; none where decode alone is timed.
    pub tokens: Vec<usize>,
}

/// What decode is timed on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DecodePlan {
    /// Lengths of the prompt before it, rising: a number, or a list of them.
    #[serde(deserialize_with = "one_or_more")]
    #[schemars(with = "Lengths")]
    pub prompt_tokens: Vec<usize>,
    /// Tokens generated, rising, none where prefill alone is timed; an end-of-sequence token does not end them.
    pub tokens: Vec<usize>,
}

/// How often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Repetitions {
    /// Thrown away, of each length, on text that is never timed.
    pub warm_up: usize,
    /// Kept, every one.
    pub timed: usize,
}

/// A suite file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SuiteError {
    /// It cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is no suite.
    #[error("suite {}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// Its values do not make one.
    #[error("suite {}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Which, and what was expected.
        reason: String,
    },
}

impl SpeedSuite {
    /// Reads a suite file; the suite, and the SHA-256 of the file's bytes for the identity.
    ///
    /// # Errors
    /// When it cannot be read or is no speed suite.
    pub fn read(path: &Path) -> Result<(Self, Sha256), SuiteError> {
        let text = file::read_text(path, MAX_BYTES)?;
        let suite: SpeedSuite = toml::from_str(&text)
            .map_err(|source| SuiteError::Parse { path: path.to_owned(), source: Box::new(source) })?;
        match suite.problem() {
            None => Ok((suite, Sha256::of(text.as_bytes()))),
            Some(reason) => Err(SuiteError::Invalid { path: path.to_owned(), reason }),
        }
    }

    fn problem(&self) -> Option<String> {
        let rising = |lengths: &[usize]| {
            lengths.len() <= MAX_LENGTHS
                && lengths.iter().all(|length| (1..=MAX_TOKENS).contains(length))
                && lengths.windows(2).all(|pair| pair[0] < pair[1])
        };
        let lengths = |name: &str| {
            format!("{name}.tokens: expected at most {MAX_LENGTHS} lengths from 1 to {MAX_TOKENS} that rise")
        };
        let Repetitions { warm_up, timed } = self.repetitions;
        let checks = [
            (self.format != FORMAT, format!("format is {}, expected {FORMAT}", self.format)),
            (!rising(&self.prefill.tokens), lengths("prefill")),
            (!rising(&self.decode.tokens), lengths("decode")),
            (
                self.prefill.tokens.is_empty() && self.decode.tokens.is_empty(),
                "neither prefill.tokens nor decode.tokens has a length: nothing is timed".to_owned(),
            ),
            (
                !rising(&self.decode.prompt_tokens) || self.decode.prompt_tokens.is_empty(),
                format!(
                    "decode.prompt_tokens is {}, expected a number from 1 to {MAX_TOKENS}, or several that rise",
                    one_or_list(&self.decode.prompt_tokens)
                ),
            ),
            (
                !(MIN_TIMED..=MAX_REPETITIONS).contains(&timed),
                format!("repetitions.timed is {timed}, expected {MIN_TIMED} to {MAX_REPETITIONS}"),
            ),
            (
                warm_up > MAX_REPETITIONS,
                format!("repetitions.warm_up is {warm_up}, expected at most {MAX_REPETITIONS}"),
            ),
        ];
        checks.into_iter().find_map(|(wrong, reason)| wrong.then_some(reason))
    }
}

/// A number, or a list of numbers.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a number of tokens, or a list of them")]
enum Lengths {
    One(usize),
    More(Vec<usize>),
}

fn one_or_more<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<usize>, D::Error> {
    Ok(match Lengths::deserialize(deserializer)? {
        Lengths::One(length) => vec![length],
        Lengths::More(lengths) => lengths,
    })
}

/// As it stands in a file.
fn one_or_list(lengths: &[usize]) -> String {
    match lengths {
        [length] => length.to_string(),
        lengths => format!("{lengths:?}"),
    }
}

/// The prompt lengths that are run: those of the suite up to `cap`, and where any is longer, the cap itself as the
/// last one.
pub fn capped_lengths(suite: &[usize], cap: usize) -> Vec<usize> {
    let mut lengths: Vec<usize> = suite.iter().copied().filter(|&length| length <= cap).collect();
    if lengths.len() < suite.len() && cap > 0 && lengths.last() != Some(&cap) {
        lengths.push(cap);
    }
    lengths
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::repository::Repository;

    #[test]
    fn lengths_above_the_cap_give_way_to_it() {
        let suite = [1000, 5000, 10_000, 20_000, 35_000, 50_000];
        let check = |cap, expected: &[usize]| assert_eq!(capped_lengths(&suite, cap), expected, "cap {cap}");
        check(4096, &[1000, 4096]);
        check(5000, &[1000, 5000]);
        check(39_920, &[1000, 5000, 10_000, 20_000, 35_000, 39_920]);
        check(50_000, &suite);
        check(60_000, &suite);
        check(512, &[512]);
        check(0, &[]);
    }

    #[test]
    fn the_repository_s_suites_are_valid() {
        let repository = Repository::find().unwrap();
        for (name, config) in [("benchmark", None), ("speed-test", Some("tiny-moe"))] {
            let (suite, _) = SpeedSuite::read(&repository.path(format!("suites/speed/{name}.toml"))).unwrap();
            assert_eq!((suite.name.as_str(), suite.config.as_deref()), (name, config));
        }
    }

    #[test]
    fn a_suite_that_cannot_carry_an_interval_is_refused() {
        let path = Repository::find().unwrap().path("suites/speed/benchmark.toml");
        let text = std::fs::read_to_string(path).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let changed = folder.path().join("suite.toml");
        let check = |from: &str, to: &str, part: &str| {
            assert!(text.contains(from), "{from}");
            std::fs::write(&changed, text.replace(from, to)).unwrap();
            let message = SpeedSuite::read(&changed).unwrap_err().to_string();
            assert!(message.contains(part) && message.contains("suite.toml"), "{message}");
        };
        check("timed = 6", "timed = 5", "expected 6 to 10000");
        check("[1000, 5000,", "[5000, 1000,", "prefill.tokens");
        check("format = 1", "format = 2", "format is 2, expected 1");
        check("format = 1", "format = 1\ncolour = 1", "colour");
    }
}
