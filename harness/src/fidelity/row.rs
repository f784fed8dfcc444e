//! What a baseline holds of one position.

use super::distribution::LogProbs;
use super::header::Complaint;
use assay_ledgers::BaselineLogits;

/// Probabilities of a row may add up to this much more than 1: each is an f32.
const SUM_SLACK: f64 = 1e-3;

/// A position's distribution.
#[derive(Debug, Clone, PartialEq)]
pub enum Row {
    /// Every logit.
    Full(Vec<f32>),
    /// The largest, in falling order, ties by id.
    TopK {
        /// Log-probability of the text's next token; 0 where there is none.
        target: f64,
        /// Ids and log-probabilities.
        top: Vec<(u32, f32)>,
    },
}

impl Row {
    /// Of complete logits, as `logits` says. `target` is the text's next token.
    pub fn of(logits: BaselineLogits, values: &[f32], target: Option<u32>) -> Self {
        match logits {
            BaselineLogits::Full => Self::Full(values.to_vec()),
            BaselineLogits::TopK(k) => {
                let probs = LogProbs::of(values);
                let top = probs.top(k as usize).into_iter().map(|id| (id, probs.of_token(id) as f32));
                Self::TopK { target: target.map_or(0.0, |id| probs.of_token(id)), top: top.collect() }
            }
        }
    }

    /// Appends its bytes, little-endian.
    pub(super) fn write(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Full(logits) => logits.iter().for_each(|logit| bytes.extend(logit.to_le_bytes())),
            Self::TopK { target, top } => {
                bytes.extend(target.to_le_bytes());
                for (id, logprob) in top {
                    bytes.extend(id.to_le_bytes());
                    bytes.extend(logprob.to_le_bytes());
                }
            }
        }
    }

    /// From its bytes, of which there are exactly as many as the header says.
    pub(super) fn read(bytes: &[u8], logits: BaselineLogits, vocab_size: u64) -> Result<Self, Complaint> {
        let wrong = |found: String, expected: &str| Err((found, expected.to_owned()));
        let float = |word: &[u8]| f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        if logits == BaselineLogits::Full {
            let values: Vec<f32> = bytes.chunks_exact(4).map(float).collect();
            return match values.iter().position(|value| !value.is_finite()) {
                Some(index) => wrong(format!("logit {index} is {}", values[index]), "a finite number"),
                None => Ok(Self::Full(values)),
            };
        }
        let (first, rest) = bytes.split_at(8.min(bytes.len()));
        let target = first.try_into().map_or(f64::NAN, f64::from_le_bytes);
        if !target.is_finite() || target > 0.0 {
            return wrong(format!("the target's log-probability is {target}"), "a finite number of at most 0");
        }
        let mut top: Vec<(u32, f32)> = Vec::with_capacity(rest.len() / 8);
        let mut sum = 0f64;
        for pair in rest.chunks_exact(8) {
            let (id, logprob) = (u32::from_le_bytes([pair[0], pair[1], pair[2], pair[3]]), float(&pair[4..]));
            if u64::from(id) >= vocab_size {
                return wrong(format!("token {id}"), "less than the vocabulary's size");
            }
            if !logprob.is_finite() || logprob > 0.0 {
                return wrong(format!("a log-probability of {logprob}"), "a finite number of at most 0");
            }
            if let Some(&(before, larger)) = top.last()
                && (logprob > larger || (logprob == larger && id <= before))
            {
                return wrong(format!("token {id} after token {before}"), "falling order, ties by id");
            }
            sum += f64::from(logprob).exp();
            top.push((id, logprob));
        }
        let mut ids: Vec<u32> = top.iter().map(|&(id, _)| id).collect();
        ids.sort_unstable();
        if ids.windows(2).any(|pair| pair[0] == pair[1]) {
            return wrong("a token twice".to_owned(), "each at most once");
        }
        if sum > 1.0 + SUM_SLACK {
            return wrong(format!("probabilities that add up to {sum}"), "at most 1");
        }
        Ok(Self::TopK { target, top })
    }
}
