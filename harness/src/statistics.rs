//! Medians and means with honest intervals. Every interval is at 95 % (two-sided) and is absent where the samples are
//! too few to carry one: what is not known is not printed.
//!
//! Here: medians by order statistics, means clustered by document. `statistics/bootstrap.rs`: medians and ratios by resampling;
//! `counts.rs`: proportions, paired outcomes, pass@k and pass^k; `ranks.rs`: two groups that do not pair up.

mod bootstrap;
mod counts;
mod ranks;

pub use bootstrap::{Bootstrap, MIN_SAMPLES};
pub use counts::{mcnemar, pass_at_k, pass_hat_k, wilson};
pub use ranks::{MannWhitney, mann_whitney};

use serde::Serialize;
use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, StudentsT};
use statrs::statistics::{Data, OrderStatistics};

/// Probability that an interval is to miss, both sides together.
const MISS: f64 = 0.05;

/// Fewer clusters than this carry no t interval here: its tails would rest on normality alone.
pub const MIN_CLUSTERS: usize = 6;

/// A closed interval, in the unit of what it is about.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// An estimate, with its interval where the samples carry one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The estimate itself.
    pub value: f64,
    /// At 95 %.
    pub ci95: Option<Interval>,
}

impl Interval {
    /// Whether `value` lies in it, ends included.
    pub fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }

    fn map(self, monotone: impl Fn(f64) -> f64) -> Self {
        Interval { low: monotone(self.low), high: monotone(self.high) }
    }
}

impl Estimate {
    /// The estimate seen through a monotonically rising function, as `exp` for one made of logarithms.
    pub fn map(self, monotone: impl Fn(f64) -> f64) -> Self {
        Estimate { value: monotone(self.value), ci95: self.ci95.map(|interval| interval.map(&monotone)) }
    }
}

/// Samples that no statistic can be made of.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StatisticsError {
    /// Nothing was measured.
    #[error("no samples")]
    Empty,
    /// A sample is infinite, not a number, or not positive where a logarithm is taken of it.
    #[error("sample {index} is {value}, expected a finite {expected}")]
    BadSample {
        /// Its place, from 0.
        index: usize,
        /// What it is.
        value: f64,
        /// What was wanted.
        expected: &'static str,
    },
    /// More of something than there can be.
    #[error("{part} of {whole}: expected no more than there are")]
    TooMany {
        /// What was given.
        part: u64,
        /// Of how many.
        whole: u64,
    },
    /// Paired samples do not pair up.
    #[error("{left} samples cannot be paired with {right}")]
    Unpaired {
        /// Samples on the left.
        left: usize,
        /// Samples on the right.
        right: usize,
    },
}

/// Median, with the nonparametric interval between two order statistics: x(k) to x(n+1-k) for the largest k with
/// `2 P(Binomial(n, 1/2) < k) <= 0.05`. It assumes independent samples of one distribution, and nothing of its form.
/// Six samples are the fewest that carry one (from the least to the greatest, at 96.9 %).
///
/// # Errors
/// Without samples, or with one that is not finite.
pub fn median(samples: &[f64]) -> Result<Estimate, StatisticsError> {
    check(samples, "number", |value| value.is_finite())?;
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let ci95 =
        median_rank(sorted.len()).map(|rank| Interval { low: sorted[rank - 1], high: sorted[sorted.len() - rank] });
    Ok(Estimate { value: Data::new(sorted).median(), ci95 })
}

/// The rank k, from 1, of the median interval's lower end among `count` samples.
fn median_rank(count: usize) -> Option<usize> {
    let below = Binomial::new(0.5, count as u64).ok()?;
    (1..=count / 2).take_while(|&rank| 2.0 * below.cdf(rank as u64 - 1) <= MISS).last()
}

/// Median of the ratios `left[i] / right[i]` of paired samples, with its interval: taken of logarithms, so that a
/// ratio and its inverse tell the same story.
///
/// # Errors
/// When the sides differ in length, are empty, or hold a sample that is not finite and positive.
pub fn paired_ratio(left: &[f64], right: &[f64]) -> Result<Estimate, StatisticsError> {
    Ok(median(&log_ratios(left, right)?)?.map(f64::exp))
}

/// Logarithms of the ratios of paired samples.
fn log_ratios(left: &[f64], right: &[f64]) -> Result<Vec<f64>, StatisticsError> {
    if left.len() != right.len() {
        return Err(StatisticsError::Unpaired { left: left.len(), right: right.len() });
    }
    for side in [left, right] {
        check(side, "positive number", |value| value.is_finite() && value > 0.0)?;
    }
    Ok(left.iter().zip(right).map(|(left, right)| (left / right).ln()).collect())
}

/// What one document says about the difference between two models.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cluster {
    /// Sum over the document's targets of (NLL of one model - NLL of the other), in nats.
    pub sum: f64,
    /// How many targets.
    pub count: usize,
}

/// Mean difference per target, `sum(sums) / sum(counts)`, with a t interval clustered by document: targets of one
/// document are not independent of each other, documents are. Variance of the ratio of sums by linearisation,
/// `m / (m - 1) * sum((sum_i - mean * count_i)^2) / sum(counts)^2`, with m - 1 degrees of freedom: the intercept-only
/// case of the cluster-robust variance of Liang and Zeger (Biometrika 73, 1986).
///
/// # Errors
/// Without clusters or targets, or with a sum that is not finite.
pub fn clustered_mean(clusters: &[Cluster]) -> Result<Estimate, StatisticsError> {
    let sums: Vec<f64> = clusters.iter().map(|cluster| cluster.sum).collect();
    check(&sums, "number", |value| value.is_finite())?;
    let targets: f64 = clusters.iter().map(|cluster| cluster.count as f64).sum();
    if targets == 0.0 {
        return Err(StatisticsError::Empty);
    }
    let mean = sums.iter().sum::<f64>() / targets;
    Ok(Estimate { value: mean, ci95: cluster_interval(clusters, mean, targets) })
}

fn cluster_interval(clusters: &[Cluster], mean: f64, targets: f64) -> Option<Interval> {
    if clusters.len() < MIN_CLUSTERS {
        return None;
    }
    let count = clusters.len() as f64;
    let squares: f64 = clusters.iter().map(|cluster| (cluster.sum - mean * cluster.count as f64).powi(2)).sum();
    let standard_error = (count / (count - 1.0) * squares).sqrt() / targets;
    let t = StudentsT::new(0.0, 1.0, count - 1.0).ok()?.inverse_cdf(1.0 - MISS / 2.0);
    Some(Interval { low: mean - t * standard_error, high: mean + t * standard_error })
}

fn check(samples: &[f64], expected: &'static str, good: impl Fn(f64) -> bool) -> Result<(), StatisticsError> {
    if samples.is_empty() {
        return Err(StatisticsError::Empty);
    }
    match samples.iter().position(|&value| !good(value)) {
        Some(index) => Err(StatisticsError::BadSample { index, value: samples[index], expected }),
        None => Ok(()),
    }
}

#[cfg(test)]
pub(crate) mod tests;
