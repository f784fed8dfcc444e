//! Log-probabilities of one step, in f64 from the complete logits, before temperature and limits.

/// A token's log-probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Logprob {
    /// The token.
    pub id: u32,
    /// Natural logarithm of its probability.
    pub logprob: f64,
}

/// A step: the chosen token and the likeliest ones.
#[derive(Debug, Clone, PartialEq)]
pub struct StepLogprobs {
    /// The token that was chosen, or that the text has there.
    pub chosen: Logprob,
    /// The likeliest, likeliest first, ties to the lowest id.
    pub top: Vec<Logprob>,
}

impl StepLogprobs {
    /// Log-probabilities of `chosen` and of the `count` likeliest, from `logits` `[vocab_size]`. `None` where `chosen` is not
    /// among them.
    pub fn new(logits: &[f32], chosen: u32, count: usize) -> Option<Self> {
        let logit = *logits.get(chosen as usize)?;
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let shifted = |logit: f32| f64::from(logit) - f64::from(largest);
        let log_sum = libm::log(logits.iter().map(|&logit| libm::exp(shifted(logit))).sum::<f64>());
        let logprob = |id: u32, logit: f32| Logprob { id, logprob: shifted(logit) - log_sum };
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let count = count.min(order.len());
        let by_logit = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        if count > 0 && count < order.len() {
            order.select_nth_unstable_by(count, by_logit);
        }
        order.truncate(count);
        order.sort_unstable_by(by_logit);
        let top = order.into_iter().map(|id| logprob(id, logits[id as usize])).collect();
        Some(Self { chosen: logprob(chosen, logit), top })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn log_probabilities_are_normalised_and_ordered() {
        let logits = [0.25f32, 0.5, 0.125, 0.125].map(|p| p.ln() + 3.0);
        let step = StepLogprobs::new(&logits, 2, 3).unwrap();
        let close = |found: f64, p: f64| assert!((found - p.ln()).abs() < 1e-6, "{found} and {}", p.ln());
        close(step.chosen.logprob, 0.125);
        assert_eq!(step.top.iter().map(|top| top.id).collect::<Vec<_>>(), [1, 0, 2]);
        close(step.top[0].logprob, 0.5);
        assert_eq!(StepLogprobs::new(&logits, 0, 0).unwrap().top, []);
        assert_eq!(StepLogprobs::new(&logits, 0, 9).unwrap().top.len(), 4);
        assert_eq!(StepLogprobs::new(&logits, 4, 1), None);
    }
}
