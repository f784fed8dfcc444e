//! Two groups that do not pair up.

use super::{StatisticsError, check};
use statrs::stats_tests::Alternative;
use statrs::stats_tests::mannwhitneyu::{MannWhitneyUMethod, mannwhitneyu};

/// What the test of Mann and Whitney (Annals of Mathematical Statistics 18, 1947) says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MannWhitney {
    /// Pairs of one sample of each side in which the left one is larger; half for a tie.
    pub u: f64,
    /// Two-sided p: exact where a side has at most eight samples and none are tied, else by the normal distribution with
    /// corrections for continuity and ties.
    pub p: f64,
}

/// Whether samples of one side tend to be larger than those of the other.
///
/// # Errors
/// When a side is empty or holds a sample that is not a number.
pub fn mann_whitney(left: &[f64], right: &[f64]) -> Result<MannWhitney, StatisticsError> {
    for side in [left, right] {
        check(side, "number", |value| value.is_finite())?;
    }
    let tested = mannwhitneyu(left, right, MannWhitneyUMethod::Automatic, Alternative::TwoSided);
    let (u, p) = tested.map_err(|_| StatisticsError::Empty)?;
    // Where every sample is tied nothing can be told, and the normal distribution has no width.
    Ok(MannWhitney { u, p: if p.is_nan() { 1.0 } else { p } })
}
