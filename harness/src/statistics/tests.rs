//! Known answers were computed with scipy 1.17 (`quantile_test`, `binom`) and statsmodels 0.15 (`OLS` with clustered
//! covariance and t inference).
#![allow(clippy::unwrap_used)]
use super::*;
use proptest::prelude::*;

fn assert_close(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1.0), "found {found}, expected {expected}");
}

#[test]
fn ranks_of_the_median_interval() {
    let check = |count, rank| assert_eq!(median_rank(count), rank, "{count} samples");
    check(1, None);
    check(5, None);
    check(6, Some(1));
    check(8, Some(1));
    check(9, Some(2));
    check(12, Some(3));
    check(20, Some(6));
    check(59, Some(22));
    check(100, Some(40));
}

#[test]
fn median_of_nine() {
    let found = median(&[3.1, 2.7, 9.9, 3.3, 2.9, 3.0, 3.2, 2.8, 3.05]).unwrap();
    assert_eq!(found, Estimate { value: 3.05, ci95: Some(Interval { low: 2.8, high: 3.3 }) });
}

#[test]
fn few_samples_have_a_median_and_no_interval() {
    assert_eq!(median(&[2.0, 1.0, 4.0, 3.0]).unwrap(), Estimate { value: 2.5, ci95: None });
}

#[test]
fn ratio_of_paired_samples() {
    let left = [3.1, 2.7, 9.9, 3.3, 2.9, 3.0, 3.2, 2.8, 3.05];
    let right = [2.9, 2.8, 9.1, 3.3, 2.5, 3.1, 2.6, 2.7, 2.95];
    let found = paired_ratio(&left, &right).unwrap();
    assert_close(found.value, 1.037037037037037);
    assert_close(found.ci95.unwrap().low, 0.967741935483871);
    assert_close(found.ci95.unwrap().high, 1.16);
}

#[test]
fn mean_clustered_by_document() {
    let sums = [-0.226, -0.282, 0.496, -0.449, -1.091, -0.702, -1.109];
    let counts = [3, 5, 2, 4, 6, 3, 4];
    let clusters: Vec<Cluster> = sums.iter().zip(counts).map(|(&sum, count)| Cluster { sum, count }).collect();
    let found = clustered_mean(&clusters).unwrap();
    assert_close(found.value, -0.12455555555555557);
    assert_close(found.ci95.unwrap().low, -0.23592863316665916);
    assert_close(found.ci95.unwrap().high, -0.013182477944451987);
    assert_eq!(clustered_mean(&clusters[..5]).unwrap().ci95, None);
}

#[test]
fn what_cannot_be_judged_is_refused() {
    assert_eq!(median(&[]), Err(StatisticsError::Empty));
    assert_eq!(clustered_mean(&[Cluster { sum: 0.0, count: 0 }]), Err(StatisticsError::Empty));
    assert_eq!(paired_ratio(&[1.0], &[]), Err(StatisticsError::Unpaired { left: 1, right: 0 }));
    let message = paired_ratio(&[1.0, 0.0], &[1.0, 1.0]).unwrap_err().to_string();
    assert_eq!(message, "sample 1 is 0, expected a finite positive number");
    assert!(median(&[1.0, f64::NAN]).is_err());
}

proptest! {
    #[test]
    fn the_interval_holds_the_median_whatever_the_order(mut samples in prop::collection::vec(-1e9f64..1e9, 6..80)) {
        let found = median(&samples).unwrap();
        prop_assert!(found.ci95.unwrap().contains(found.value));
        samples.reverse();
        prop_assert_eq!(median(&samples).unwrap(), found);
    }

    #[test]
    fn swapping_the_sides_inverts_the_ratio(pairs in prop::collection::vec((0.1f64..10.0, 0.1f64..10.0), 6..40)) {
        let (left, right): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
        let forth = paired_ratio(&left, &right).unwrap();
        let back = paired_ratio(&right, &left).unwrap();
        prop_assert!((forth.value * back.value - 1.0).abs() < 1e-12);
        prop_assert!((forth.ci95.unwrap().low * back.ci95.unwrap().high - 1.0).abs() < 1e-12);
    }
}
