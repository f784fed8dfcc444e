//! Two distributions of the next token, and how far the one is from the other. All sums are in f64.

use super::row::Row;

/// Likeliest tokens that are compared as a set.
pub const TOP: usize = 10;

/// Log-probabilities of every token.
#[derive(Debug, Clone, PartialEq)]
pub struct LogProbs {
    values: Vec<f64>,
    logits: Vec<f32>,
}

impl LogProbs {
    /// The log-softmax of `logits`.
    pub fn of(logits: &[f32]) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - f64::from(max)).exp()).sum();
        let norm = f64::from(max) + sum.ln();
        Self { values: logits.iter().map(|&logit| f64::from(logit) - norm).collect(), logits: logits.to_vec() }
    }

    /// One token's.
    pub fn of_token(&self, id: u32) -> f64 {
        self.values.get(id as usize).copied().unwrap_or(f64::NEG_INFINITY)
    }

    /// The `count` likeliest, in falling order, ties to the lowest id: as the engine chooses.
    pub fn top(&self, count: usize) -> Vec<u32> {
        let mut ids: Vec<u32> = (0..self.logits.len() as u32).collect();
        let order = |&a: &u32, &b: &u32| self.logits[b as usize].total_cmp(&self.logits[a as usize]).then(a.cmp(&b));
        if count < ids.len() {
            ids.select_nth_unstable_by(count, order);
            ids.truncate(count);
        }
        ids.sort_unstable_by(order);
        ids
    }
}

/// What one position says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Distances {
    /// Kullback–Leibler divergence of the distribution from the baseline, `Σ p ln(p / q)` with p the baseline's, nats.
    pub kl: f64,
    /// Jensen–Shannon divergence, nats: at most ln 2.
    pub js: f64,
    /// Likeliest token of the baseline.
    pub baseline_top: u32,
    /// Likeliest token here.
    pub top: u32,
    /// Whether the baseline's likeliest is among the [`TOP`] here.
    pub contained: bool,
    /// How many of the baseline's [`TOP`] are among the [`TOP`] here, as a share.
    pub overlap: f64,
    /// Loss of the next token here less the baseline's, nats.
    pub nll_difference: Option<f64>,
}

impl Distances {
    /// Of the logits of one position from the baseline's row. Where that is a top k, the divergences are of k + 1 outcomes, all other
    /// tokens being one: by the data processing inequality never more than those of the whole.
    pub fn between(baseline: &Row, logits: &[f32], target: Option<u32>) -> Self {
        let here = LogProbs::of(logits);
        let tops = here.top(TOP);
        let (kl, js, baseline_tops, baseline_target) = match baseline {
            Row::Full(values) => {
                let there = LogProbs::of(values);
                let (kl, js) = divergences(there.values.iter().copied().zip(here.values.iter().copied()));
                (kl, js, there.top(TOP), target.map(|id| there.of_token(id)))
            }
            Row::TopK { target: loss, top } => {
                let pairs = || top.iter().map(|&(id, logprob)| (f64::from(logprob), here.of_token(id)));
                // What is left over may round to nothing.
                let rest = |sum: f64| (1.0 - sum).max(0.0).ln();
                let others = (rest(pairs().map(|(p, _)| p.exp()).sum()), rest(pairs().map(|(_, q)| q.exp()).sum()));
                let (kl, js) = divergences(pairs().chain([others]));
                let ids = top.iter().map(|&(id, _)| id).take(TOP).collect();
                (kl, js, ids, target.map(|_| *loss))
            }
        };
        let shared = baseline_tops.iter().filter(|id| tops.contains(id)).count();
        Distances {
            kl,
            js,
            baseline_top: baseline_tops.first().copied().unwrap_or(0),
            top: tops.first().copied().unwrap_or(0),
            contained: baseline_tops.first().is_some_and(|id| tops.contains(id)),
            overlap: shared as f64 / baseline_tops.len().max(1) as f64,
            nll_difference: target.zip(baseline_target).map(|(id, there)| there - here.of_token(id)),
        }
    }
}

/// Divergences from pairs of log-probabilities, the baseline's first. Rounding may bring a sum of nothing below zero: it is zero then.
fn divergences(pairs: impl Iterator<Item = (f64, f64)>) -> (f64, f64) {
    let (mut kl, mut js) = (0.0, 0.0);
    // Where both say the same there is nothing between them, whatever logarithms round to.
    for (p, q) in pairs.filter(|(p, q)| p != q) {
        let (share_p, share_q) = (p.exp(), q.exp());
        let middle = (0.5 * (share_p + share_q)).ln();
        if share_p > 0.0 {
            kl += share_p * (p - q);
            js += 0.5 * share_p * (p - middle);
        }
        if share_q > 0.0 {
            js += 0.5 * share_q * (q - middle);
        }
    }
    (f64::max(kl, 0.0), f64::max(js, 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use assay_ledgers::BaselineLogits;

    /// Logits whose softmax is `shares`.
    fn logits(shares: &[f64]) -> Vec<f32> {
        shares.iter().map(|share| share.ln() as f32).collect()
    }

    #[test]
    fn divergences_of_known_distributions() {
        // scipy.stats.entropy([.5, .25, .25], [.25, .5, .25]) and the square of scipy.spatial.distance.jensenshannon.
        let found = Distances::between(&Row::Full(logits(&[0.5, 0.25, 0.25])), &logits(&[0.25, 0.5, 0.25]), Some(0));
        assert!((found.kl - 0.173_286_795_139_986_3).abs() < 1e-7, "{}", found.kl);
        assert!((found.js - 0.042_474_752_249_703_41).abs() < 1e-7, "{}", found.js);
        assert_eq!((found.baseline_top, found.top, found.contained, found.overlap), (0, 1, true, 1.0));
        assert!((found.nll_difference.unwrap_or(0.0) - 2f64.ln()).abs() < 1e-7);
    }

    #[test]
    fn nothing_is_far_from_itself() {
        let values: Vec<f32> = (0..300).map(|index| ((index * 37) % 101) as f32 / 7.0).collect();
        let found = Distances::between(&Row::Full(values.clone()), &values, Some(3));
        assert_eq!((found.kl, found.js, found.nll_difference, found.overlap), (0.0, 0.0, Some(0.0), 1.0));
        let row = Row::of(BaselineLogits::TopK(20), &values, Some(3));
        let found = Distances::between(&row, &values, Some(3));
        assert!(found.kl < 1e-6 && found.js < 1e-6 && found.nll_difference == Some(0.0), "{found:?}");
    }

    #[test]
    fn a_top_k_never_says_more_than_the_whole() {
        let a: Vec<f32> = (0..300).map(|index| ((index * 37) % 101) as f32 / 9.0).collect();
        let b: Vec<f32> = (0..300).map(|index| ((index * 41) % 103) as f32 / 11.0).collect();
        let whole = Distances::between(&Row::Full(a.clone()), &b, Some(7));
        let mut last = 0.0;
        for k in [10, 50, 299] {
            let part = Distances::between(&Row::of(BaselineLogits::TopK(k), &a, Some(7)), &b, Some(7));
            assert!(part.kl >= last - 1e-6 && part.kl <= whole.kl + 1e-6, "{k}: {} of {}", part.kl, whole.kl);
            assert_eq!((part.top, part.overlap, part.nll_difference), (whole.top, whole.overlap, whole.nll_difference));
            last = part.kl;
        }
    }

    #[test]
    fn ties_go_to_the_lowest_id() {
        assert_eq!(LogProbs::of(&[1.0, 2.0, 2.0, 0.0]).top(3), [1, 2, 0]);
    }
}
