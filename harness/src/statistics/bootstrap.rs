//! Bootstrap intervals of medians and of their ratios: the percentile method of Efron (Annals of Statistics 7, 1979), with
//! a stated seed, so that the same samples give the same interval on every machine.

use super::{Estimate, Interval, MISS, StatisticsError, check, median};

/// Fewer samples than this carry no interval: resamples of so few say more of themselves than of what was measured.
pub const MIN_SAMPLES: usize = 6;

/// How resamples are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bootstrap {
    /// How many.
    pub resamples: u32,
    /// Of the generator.
    pub seed: u64,
}

impl Default for Bootstrap {
    fn default() -> Self {
        Bootstrap { resamples: 10_000, seed: 20_090_103 }
    }
}

impl Bootstrap {
    /// Median with its interval, of samples that are independent of each other.
    ///
    /// # Errors
    /// Without samples, or with one that is not finite.
    pub fn median(self, samples: &[f64]) -> Result<Estimate, StatisticsError> {
        let value = median(samples)?.value;
        if samples.len() < MIN_SAMPLES {
            return Ok(Estimate { value, ci95: None });
        }
        let mut random = fastrand::Rng::with_seed(self.seed);
        let mut drawn = vec![0.0; samples.len()];
        let medians = (0..self.resamples).map(|_| resampled_median(samples, &mut drawn, &mut random)).collect();
        Ok(Estimate { value, ci95: Some(percentiles(medians)) })
    }

    /// Median of the ratios `left[i] / right[i]`, with its interval: pairs are drawn, and logarithms are taken, so that a
    /// ratio and its inverse tell the same story. What is common to both sides of a pair, as a drift of the machine, cancels.
    ///
    /// # Errors
    /// When the sides differ in length, are empty, or hold a sample that is not finite and positive.
    pub fn paired_ratio(self, left: &[f64], right: &[f64]) -> Result<Estimate, StatisticsError> {
        Ok(self.median(&super::log_ratios(left, right)?)?.map(f64::exp))
    }

    /// Ratio of the medians of two sides that do not pair up, with its interval: each side is drawn on its own.
    ///
    /// # Errors
    /// When a side is empty or holds a sample that is not finite and positive.
    pub fn ratio_of_medians(self, left: &[f64], right: &[f64]) -> Result<Estimate, StatisticsError> {
        for side in [left, right] {
            check(side, "positive number", |value| value.is_finite() && value > 0.0)?;
        }
        let value = median(left)?.value / median(right)?.value;
        if left.len().min(right.len()) < MIN_SAMPLES {
            return Ok(Estimate { value, ci95: None });
        }
        let mut random = fastrand::Rng::with_seed(self.seed);
        let (mut of_left, mut of_right) = (vec![0.0; left.len()], vec![0.0; right.len()]);
        let ratio = |_| {
            let left = resampled_median(left, &mut of_left, &mut random);
            left / resampled_median(right, &mut of_right, &mut random)
        };
        Ok(Estimate { value, ci95: Some(percentiles((0..self.resamples).map(ratio).collect())) })
    }
}

/// Median of as many samples, drawn with replacement into `drawn`, which is as long as `samples`.
fn resampled_median(samples: &[f64], drawn: &mut [f64], random: &mut fastrand::Rng) -> f64 {
    for place in drawn.iter_mut() {
        *place = samples[random.usize(..samples.len())];
    }
    drawn.sort_unstable_by(f64::total_cmp);
    middle(drawn)
}

fn middle(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[half] } else { f64::midpoint(sorted[half - 1], sorted[half]) }
}

/// What lies between the two tails, by linear interpolation between order statistics.
fn percentiles(mut values: Vec<f64>) -> Interval {
    values.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| {
        let place = share * (values.len() - 1) as f64;
        let below = place.floor() as usize;
        let above = (below + 1).min(values.len() - 1);
        values[below] + (values[above] - values[below]) * (place - place.floor())
    };
    Interval { low: at(MISS / 2.0), high: at(1.0 - MISS / 2.0) }
}
