//! The likeliest tokens at one position.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The likeliest tokens at one position, likeliest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TopK {
    /// Token ids, each once.
    pub ids: Vec<u32>,
    /// Their natural-log probabilities over the whole vocabulary, as many, never rising.
    pub logprobs: Vec<f64>,
}

/// A log-probability may exceed 0 by rounding.
const MAX_LOGPROB: f64 = 1e-6;

impl TopK {
    /// The `k` likeliest tokens by complete logits `[vocab_size]`; ties go to the lowest id. The sum is taken in f64.
    /// `None` where a logit is not a number.
    pub fn from_logits(logits: &[f32], k: usize) -> Option<Self> {
        if logits.iter().any(|logit| logit.is_nan()) {
            return None;
        }
        let mut order: Vec<u32> = (0..u32::try_from(logits.len()).ok()?).collect();
        let by_logit = |&a: &u32, &b: &u32| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b));
        let k = k.min(order.len());
        if k < order.len() {
            order.select_nth_unstable_by(k, by_logit);
            order.truncate(k);
        }
        order.sort_unstable_by(by_logit);
        let largest = f64::from(*logits.get(*order.first()? as usize)?);
        let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
        let log_sum = largest + sum.ln();
        let logprobs = order.iter().map(|&id| f64::from(logits[id as usize]) - log_sum).collect();
        Some(Self { ids: order, logprobs })
    }

    /// The likeliest token.
    pub fn first(&self) -> Option<u32> {
        self.ids.first().copied()
    }

    /// How much likelier the first token is than the second, as a difference of log-probabilities; infinite where there is
    /// no second.
    pub fn margin(&self) -> f64 {
        match self.logprobs.as_slice() {
            [first, second, ..] => first - second,
            _ => f64::INFINITY,
        }
    }

    /// Whether a token is among them.
    pub fn contains(&self, id: u32) -> bool {
        self.ids.contains(&id)
    }

    /// How many tokens are among both.
    pub fn overlap(&self, other: &TopK) -> usize {
        self.ids.iter().filter(|&&id| other.contains(id)).count()
    }

    /// Differences of the log-probabilities, in size, of the tokens that are among both.
    pub fn logprob_differences<'a>(&'a self, other: &'a TopK) -> impl Iterator<Item = f64> + 'a {
        self.ids.iter().zip(&self.logprobs).filter_map(|(&id, &logprob)| {
            let place = other.ids.iter().position(|&found| found == id)?;
            Some((logprob - other.logprobs.get(place)?).abs())
        })
    }

    /// The first thing that is wrong with it: what was found and what was expected.
    pub(crate) fn problem(&self, k: usize, vocab_size: u32) -> Option<(String, String)> {
        let (ids, logprobs) = (self.ids.len(), self.logprobs.len());
        let k = k.min(vocab_size as usize);
        if ids != k || logprobs != k {
            return Some((format!("{ids} ids and {logprobs} log-probabilities"), format!("{k} of each")));
        }
        if let Some(id) = self.ids.iter().find(|&&id| id >= vocab_size) {
            return Some((format!("token id {id}"), format!("ids below vocab_size, {vocab_size}")));
        }
        if let Some((_, id)) = self.ids.iter().enumerate().find(|&(place, id)| self.ids[..place].contains(id)) {
            return Some((format!("token id {id} twice"), "each once".to_owned()));
        }
        if let Some(logprob) = self.logprobs.iter().find(|logprob| !logprob.is_finite() || **logprob > MAX_LOGPROB) {
            return Some((format!("log-probability {logprob}"), "a finite number of at most 0".to_owned()));
        }
        let rises = self.logprobs.windows(2).find(|pair| pair[1] > pair[0]);
        rises.map(|pair| (format!("log-probability {} after {}", pair[1], pair[0]), "likeliest first".to_owned()))
    }
}
