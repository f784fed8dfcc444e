//! The choice of one token.

use assay_kernels::{Choice, KernelError, simd};

use super::philox;

/// What a request says about the choice. Limits apply in this order, each to what the one before it left, and all to
/// probabilities at the stated temperature: top-k, top-p, min-p. The draw goes through what is left in ascending token id.
///
/// The arithmetic is the sampled choice of `assay_kernels`: a token's weight is an integer, `2^40` for the likeliest, so what is at most `2^-41`
/// as likely as that is never drawn, and no answer depends on an order of addition. Every device gives the same one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Logits are divided by it: any positive number. At 0 the largest logit is taken and nothing else applies.
    pub temperature: f64,
    /// How many of the likeliest tokens stay, ties to the lowest id; 0 for all.
    pub top_k: usize,
    /// The likeliest tokens stay until their probabilities add up to this; 1 for all. At least one stays.
    pub top_p: f64,
    /// Tokens stay that have at least this share of the largest probability; 0 for all.
    pub min_p: f64,
    /// Key of the random numbers.
    pub seed: u64,
}

/// Why no token could be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SamplingError {
    /// Nothing to choose from.
    #[error("no logits, expected at least one")]
    Empty,
    /// A logit that is not a number.
    #[error("logit {id} is not a number")]
    NotANumber {
        /// Its token.
        id: usize,
    },
    /// A parameter that means nothing, or too many logits.
    #[error(transparent)]
    Kernel(KernelError),
}

impl From<KernelError> for SamplingError {
    fn from(error: KernelError) -> Self {
        match error {
            KernelError::NotANumber { index, .. } => Self::NotANumber { id: index },
            other => Self::Kernel(other),
        }
    }
}

impl Sampling {
    /// The largest logit, always.
    pub const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };

    /// Whether the largest logit is taken, so that the engine's own choice is the answer.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }

    /// What a kernel is told of step `step`; `None` where the largest logit is taken.
    ///
    /// # Errors
    /// A parameter that means nothing: a negative temperature, a NaN.
    pub fn choice(&self, step: u64) -> Result<Option<Choice>, SamplingError> {
        if self.is_greedy() {
            return Ok(None);
        }
        let word = philox::word(self.seed, step);
        Ok(Some(Choice::new(self.temperature, self.top_k, self.top_p, self.min_p, word)?))
    }

    /// The token of step `step`, from `logits` `[vocab_size]`.
    ///
    /// # Errors
    /// No logits, or more than 2^23; a logit that is not a number; a parameter that means nothing.
    pub fn choose(&self, logits: &[f32], step: u64) -> Result<u32, SamplingError> {
        if logits.is_empty() {
            return Err(SamplingError::Empty);
        }
        Ok(match self.choice(step)? {
            None => simd::argmax(logits)?,
            Some(choice) => simd::sample(logits, &choice)?,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeMap;

    /// Probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625 at temperature 1.
    fn halves() -> Vec<f32> {
        [0.5f32, 0.25, 0.125, 0.0625, 0.0625].map(f32::ln).to_vec()
    }

    fn sampled(temperature: f64) -> Sampling {
        Sampling { temperature, seed: 11, ..Sampling::GREEDY }
    }

    fn shares(sampling: Sampling, logits: &[f32]) -> BTreeMap<u32, f64> {
        let mut counts = BTreeMap::new();
        for step in 0..20_000 {
            *counts.entry(sampling.choose(logits, step).unwrap()).or_insert(0.0) += 1.0 / 20_000.0;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_largest_and_the_lowest_id_of_equals() {
        let check = |logits: &[f32], id| assert_eq!(Sampling::GREEDY.choose(logits, 3), Ok(id));
        check(&[1.0, 3.0, 3.0, 2.0], 1);
        check(&[f32::NEG_INFINITY, f32::NEG_INFINITY], 0);
        check(&[0.0, f32::INFINITY], 1);
        check(&[-0.0, 0.0], 0);
        assert_eq!(Sampling::GREEDY.choose(&[], 0), Err(SamplingError::Empty));
        assert_eq!(sampled(1.0).choose(&[0.0, f32::NAN], 0), Err(SamplingError::NotANumber { id: 1 }));
    }

    #[test]
    fn frequencies_are_the_probabilities() {
        let check = |sampling: Sampling, expected: &[(u32, f64)]| {
            let found = shares(sampling, &halves());
            assert_eq!(found.keys().copied().collect::<Vec<_>>(), expected.iter().map(|e| e.0).collect::<Vec<_>>());
            for (id, share) in expected {
                // Five standard errors at most: 5 · sqrt(0.25 / 20000).
                assert!((found[id] - share).abs() < 0.018, "{sampling:?} {id}: {} and {share}", found[id]);
            }
        };
        let all = [(0, 0.5), (1, 0.25), (2, 0.125), (3, 0.0625), (4, 0.0625)];
        check(sampled(1.0), &all);
        check(Sampling { top_k: 2, ..sampled(1.0) }, &[(0, 2.0 / 3.0), (1, 1.0 / 3.0)]);
        check(
            Sampling { top_k: 4, ..sampled(1.0) },
            &[(0, 8.0 / 15.0), (1, 4.0 / 15.0), (2, 2.0 / 15.0), (3, 1.0 / 15.0)],
        );
        check(Sampling { top_p: 0.5, ..sampled(1.0) }, &[(0, 1.0)]);
        check(Sampling { top_p: 0.7, ..sampled(1.0) }, &[(0, 2.0 / 3.0), (1, 1.0 / 3.0)]);
        check(Sampling { min_p: 0.2, ..sampled(1.0) }, &[(0, 4.0 / 7.0), (1, 2.0 / 7.0), (2, 1.0 / 7.0)]);
        // At temperature 0.5 weights are squared: 64, 16, 4, 1, 1 of 86.
        check(sampled(0.5), &[(0, 64.0 / 86.0), (1, 16.0 / 86.0), (2, 4.0 / 86.0), (3, 1.0 / 86.0), (4, 1.0 / 86.0)]);
        // Top-p is a share of what top-k left.
        check(Sampling { top_k: 2, top_p: 0.66, ..sampled(1.0) }, &[(0, 1.0)]);
    }

    #[test]
    fn any_positive_temperature_has_a_meaning() {
        let logits = [1.0f32, 3.0, 2.999, f32::NEG_INFINITY];
        let check = |temperature, expected: &[u32]| {
            let found = shares(sampled(temperature), &logits);
            assert_eq!(found.keys().copied().collect::<Vec<_>>(), expected, "{temperature}");
        };
        check(1e-300, &[1]);
        check(1e-5, &[1]);
        check(1e-3, &[1, 2]);
        check(1.0, &[0, 1, 2]);
        check(1e300, &[0, 1, 2]);
        let refused = Sampling { temperature: -1.0, ..Sampling::GREEDY }.choose(&logits, 0).unwrap_err();
        assert_eq!(refused.to_string(), "sample: temperature is -1, expected a positive number");
    }

    #[test]
    fn a_nucleus_larger_than_the_first_sort_is_whole() {
        let logits = vec![0.0f32; 5000];
        let sampling = Sampling { top_p: 0.9, ..sampled(1.0) };
        let largest = (0..2000).map(|step| sampling.choose(&logits, step).unwrap()).max().unwrap();
        // Equals go by id, so the nucleus is ids 0 to 4499.
        assert!((4400..4500).contains(&largest), "{largest}");
    }

    #[test]
    fn the_choice_is_a_function_of_seed_and_step() {
        let logits: Vec<f32> = (0..300).map(|id| (id % 17) as f32 / 5.0).collect();
        let run = |seed| -> Vec<u32> {
            let sampling = Sampling { seed, top_p: 0.95, ..sampled(0.8) };
            (0..16).map(|step| sampling.choose(&logits, step).unwrap()).collect()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        // Known answers: a change of them is a change of what a seed means.
        let known = [142, 99, 199, 201, 251, 84, 219, 118, 46, 118, 200, 133, 50, 145, 218, 101];
        assert_eq!(run(42), known);
        let again = Sampling { seed: 42, top_p: 0.95, ..sampled(0.8) };
        assert_eq!(again.choose(&logits, 9), Ok(known[9]), "steps are independent of each other");
    }
}
