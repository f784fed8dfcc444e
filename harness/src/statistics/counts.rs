//! Proportions, paired outcomes, and what several attempts at one task say.

use super::{Estimate, Interval, MISS, StatisticsError};
use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, Normal};

/// Share of successes with the score interval of Wilson (JASA 22, 1927): 4 of 4 is [0.51, 1], not [1, 1].
///
/// # Errors
/// Without trials, or with more successes than trials.
pub fn wilson(successes: u64, trials: u64) -> Result<Estimate, StatisticsError> {
    if trials == 0 {
        return Err(StatisticsError::Empty);
    }
    if successes > trials {
        return Err(StatisticsError::TooMany { part: successes, whole: trials });
    }
    let (count, share) = (trials as f64, successes as f64 / trials as f64);
    let z = Normal::standard().inverse_cdf(1.0 - MISS / 2.0);
    let centre = share + z * z / (2.0 * count);
    let half = z * (share * (1.0 - share) / count + z * z / (4.0 * count * count)).sqrt();
    let scale = 1.0 + z * z / count;
    // Rounding may leave an end a little outside of what a share can be, or next to an end that is exact.
    let low = if successes == 0 { 0.0 } else { (centre - half) / scale };
    let high = if successes == trials { 1.0 } else { (centre + half) / scale };
    Ok(Estimate { value: share, ci95: Some(Interval { low, high }) })
}

/// Two-sided p of McNemar's test (Psychometrika 12, 1947) in its exact form: of the subjects on which two methods disagree,
/// `only_left` went well for the left one alone and `only_right` for the right one alone. Without any, 1.
pub fn mcnemar(only_left: u64, only_right: u64) -> f64 {
    let Some(count) = only_left.checked_add(only_right) else { return 1.0 };
    match Binomial::new(0.5, count) {
        Ok(fair) if count > 0 => (2.0 * fair.cdf(only_left.min(only_right))).min(1.0),
        _ => 1.0,
    }
}

/// Chance that at least one of `k` attempts succeeds, from `successes` among `attempts`: the unbiased estimator of Chen et
/// al. (Evaluating Large Language Models Trained on Code, 2021), `1 - C(attempts - successes, k) / C(attempts, k)`.
///
/// # Errors
/// When `k` is 0 or more than `attempts`, or there are more successes than attempts.
pub fn pass_at_k(attempts: u64, successes: u64, k: u64) -> Result<f64, StatisticsError> {
    check_attempts(attempts, successes, k)?;
    Ok(1.0 - chosen_share(attempts, attempts - successes, k))
}

/// Chance that all of `k` attempts succeed: `C(successes, k) / C(attempts, k)` (Yao et al., tau-bench, 2024).
///
/// # Errors
/// As [`pass_at_k`].
pub fn pass_hat_k(attempts: u64, successes: u64, k: u64) -> Result<f64, StatisticsError> {
    check_attempts(attempts, successes, k)?;
    Ok(chosen_share(attempts, successes, k))
}

/// `C(part, k) / C(whole, k)`, without a factorial.
fn chosen_share(whole: u64, part: u64, k: u64) -> f64 {
    if part < k {
        return 0.0;
    }
    (0..k).map(|taken| (part - taken) as f64 / (whole - taken) as f64).product()
}

fn check_attempts(attempts: u64, successes: u64, k: u64) -> Result<(), StatisticsError> {
    match () {
        () if k == 0 || attempts == 0 => Err(StatisticsError::Empty),
        () if k > attempts => Err(StatisticsError::TooMany { part: k, whole: attempts }),
        () if successes > attempts => Err(StatisticsError::TooMany { part: successes, whole: attempts }),
        () => Ok(()),
    }
}
