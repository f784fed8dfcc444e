//! Rules as data: a TOML file a comparison, in `suites/gates/`.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::WitnessError;
use crate::file;

/// The version of the form that this code reads.
const FORMAT: u32 = 1;

/// What an answer must satisfy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gate {
    /// Version of the form.
    pub format: u32,
    /// Its name, as in records.
    pub name: String,
    /// Version of the rules: verdicts of different versions do not compare.
    pub version: u32,
    /// Which comparison it is for.
    pub weights: Weights,
    /// Which arithmetic of prefill it is for; absent where it is for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<Prefill>,
    /// The rules.
    pub rules: Rules,
}

/// How the weights that are judged and the witness's compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weights {
    /// They are the same numbers.
    Same,
    /// The witness had BF16 experts; those that are judged are INT4.
    Int4AgainstBf16,
}

/// In what arithmetic the prompt was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prefill {
    /// f32 in one stated order.
    Exact,
    /// Tensor cores, activations rounded to BF16.
    Tensor,
}

/// The rules.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// The token after the prompt.
    pub first_token: Agreement,
    /// The likeliest tokens inside the prompt.
    pub prefill_argmax: Agreement,
    /// The likeliest token at each greedy step, given the witness's tokens before it.
    pub teacher_forced: Agreement,
    /// Whether the witness's greedy token is among the likeliest.
    pub top_k_containment: Agreement,
    /// How many of the likeliest tokens are the witness's.
    pub top_k_overlap: OverlapRule,
    /// How far log-probabilities are from the witness's.
    pub logprobs: LogprobRule,
    /// The share of the places of all prompts that may be strays: outside the overlap's `min_each` or the log-probabilities'
    /// `max_difference`. Where it is absent no place may, and both bounds are judged prompt by prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_stray_share: Option<f64>,
}

/// At least this share of places agree, apart from those where the witness itself was nearly undecided.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agreement {
    /// 0 to 1.
    pub min_share: f64,
    /// A place where the witness's two likeliest tokens are closer than this, in log-probability, counts as agreeing.
    #[serde(default)]
    pub excused_below_margin: f64,
    /// Over which places the share is taken.
    #[serde(default)]
    pub over: Scope,
}

/// Over which places a share is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Those of each prompt.
    #[default]
    Prompt,
    /// Those of all prompts together: a share of the handful of places inside a short prompt says little.
    Artifact,
}

/// How many of the likeliest tokens must be the witness's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverlapRule {
    /// At the place of a prompt with the fewest.
    pub min_each: usize,
    /// On average over the places of a prompt.
    pub min_mean: f64,
}

/// How far the log-probabilities of tokens that both name may be from the witness's, over a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogprobRule {
    /// The largest difference; absent where it is not judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_difference: Option<f64>,
    /// The mean difference.
    pub mean_difference: f64,
}

impl Gate {
    /// Whether it judges such a comparison.
    #[must_use]
    pub fn is_for(&self, weights: Weights, prefill: Prefill) -> bool {
        self.weights == weights && self.prefill.is_none_or(|own| own == prefill)
    }

    /// Reads and checks a gate.
    ///
    /// # Errors
    /// When it cannot be read or is none.
    pub fn read(path: &Path) -> Result<Self, WitnessError> {
        let malformed = |reason: String| WitnessError::Malformed { path: path.to_owned(), reason };
        let text = String::from_utf8(file::read(path)?).map_err(|error| malformed(error.to_string()))?;
        let gate: Self = toml::from_str(&text).map_err(|error| malformed(error.to_string()))?;
        match gate.problem() {
            None => Ok(gate),
            Some(reason) => Err(malformed(reason)),
        }
    }

    fn problem(&self) -> Option<String> {
        let rules = &self.rules;
        let agreements = [
            ("first_token", rules.first_token),
            ("prefill_argmax", rules.prefill_argmax),
            ("teacher_forced", rules.teacher_forced),
            ("top_k_containment", rules.top_k_containment),
        ];
        let not_negative = |value: f64| value >= 0.0 && value.is_finite();
        if self.format != FORMAT {
            return Some(format!("format is {}, expected {FORMAT}", self.format));
        }
        for (name, rule) in agreements {
            if !(0.0..=1.0).contains(&rule.min_share) || !not_negative(rule.excused_below_margin) {
                return Some(format!("rules.{name}: expected min_share from 0 to 1 and a finite margin of 0 or more"));
            }
        }
        if !not_negative(rules.top_k_overlap.min_mean) {
            return Some(format!(
                "rules.top_k_overlap.min_mean is {}, expected a finite number of 0 or more",
                rules.top_k_overlap.min_mean
            ));
        }
        if let Some(share) = rules.max_stray_share.filter(|share| !(0.0..=1.0).contains(share)) {
            return Some(format!("rules.max_stray_share is {share}, expected 0 to 1"));
        }
        let logprobs = rules.logprobs;
        (!logprobs.max_difference.is_none_or(not_negative) || !not_negative(logprobs.mean_difference))
            .then(|| "rules.logprobs: expected finite differences of 0 or more".to_owned())
    }
}
