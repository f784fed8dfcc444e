//! Known answers were computed with scipy 1.17 (`quantile_test`, `binom`) and statsmodels 0.15 (`OLS` with clustered
//! covariance and t inference); those of the bootstrap, of counts and of ranks with `known_answers.py`.
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

const LEFT: [f64; 9] = [3.1, 2.7, 9.9, 3.3, 2.9, 3.0, 3.2, 2.8, 3.05];
const RIGHT: [f64; 9] = [2.9, 2.8, 9.1, 3.35, 2.5, 3.15, 2.6, 2.75, 2.95];

fn assert_near(found: Estimate, value: f64, low: f64, high: f64, tolerance: f64) {
    assert_close(found.value, value);
    let interval = found.ci95.unwrap();
    let near = |found: f64, expected: f64| (found - expected).abs() <= tolerance;
    assert!(near(interval.low, low) && near(interval.high, high), "found {interval:?}, expected {low} to {high}");
}

#[test]
fn bootstrap_of_medians() {
    let bootstrap = Bootstrap::default();
    // Medians of an odd number of samples are samples, so the generator does not matter here.
    assert_near(bootstrap.median(&LEFT).unwrap(), 3.05, 2.8, 3.3, 1e-9);
    let ratio = bootstrap.paired_ratio(&LEFT, &RIGHT).unwrap();
    assert_near(ratio, 1.0338983050847457, 0.9642857142857144, 1.16, 1e-9);
    let ratio = bootstrap.ratio_of_medians(&LEFT, &RIGHT).unwrap();
    assert_near(ratio, 1.0517241379310345, 0.9206349206349206, 1.173076923076923, 0.01);
    assert_eq!(bootstrap.median(&LEFT[..5]).unwrap(), Estimate { value: 3.1, ci95: None });
    assert_eq!(bootstrap.ratio_of_medians(&LEFT, &RIGHT[..5]).unwrap().ci95, None);
    assert_eq!(bootstrap.median(&LEFT).unwrap(), bootstrap.median(&LEFT).unwrap(), "one seed, one answer");
}

#[test]
fn intervals_of_shares() {
    let check = |successes, trials, low, high| {
        assert_near(wilson(successes, trials).unwrap(), successes as f64 / trials as f64, low, high, 1e-9);
    };
    check(4, 4, 0.5101091635454025, 1.0);
    check(0, 10, 0.0, 0.27753279986288926);
    check(7, 20, 0.18119182410108203, 0.5671457233147638);
    check(999, 1000, 0.9943574414020421, 0.9998234536293739);
    assert_eq!(wilson(0, 0), Err(StatisticsError::Empty));
    assert_eq!(wilson(2, 1).unwrap_err().to_string(), "2 of 1: expected no more than there are");
}

#[test]
fn paired_outcomes() {
    assert_close(mcnemar(0, 0), 1.0);
    assert_close(mcnemar(1, 9), 0.021484375);
    assert_close(mcnemar(12, 5), 0.143463134765625);
    assert_close(mcnemar(30, 31), 1.0);
}

#[test]
fn groups_that_do_not_pair_up() {
    let check = |left: &[f64], right: &[f64], u, p| {
        let found = mann_whitney(left, right).unwrap();
        assert_close(found.u, u);
        assert_close(found.p, p);
    };
    check(&LEFT[..8], &RIGHT[..7], 33.0, 0.6018748670042249);
    let many: Vec<f64> = (0..20).map(|index| f64::from(7 * index % 31) / 3.0 + f64::from(index) / 7.0).collect();
    let more: Vec<f64> = (0..15).map(|index| f64::from(5 * index % 29) / 3.0 + f64::from(index) / 11.0 + 2.0).collect();
    check(&many, &more, 134.0, 0.6053383365680443);
    let tied = [1.0, 2.0, 2.0, 3.0, 4.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    check(&tied, &[2.0, 3.0, 3.0, 4.0, 5.0, 9.0, 9.0, 10.0, 11.0], 29.5, 0.21782388939294695);
    assert_eq!(mann_whitney(&[1.0; 9], &[1.0; 9]).unwrap().p, 1.0);
    assert_eq!(mann_whitney(&[], &[1.0]), Err(StatisticsError::Empty));
}

#[test]
fn several_attempts_at_one_task() {
    let check = |attempts, successes, k, at_least_one, all| {
        assert_close(pass_at_k(attempts, successes, k).unwrap(), at_least_one);
        assert_close(pass_hat_k(attempts, successes, k).unwrap(), all);
    };
    check(10, 3, 1, 0.3, 0.3);
    check(10, 3, 5, 0.9166666666666666, 0.0);
    check(10, 8, 3, 1.0, 0.4666666666666667);
    check(200, 13, 100, 0.9999194971988055, 0.0);
    assert_eq!(pass_at_k(4, 2, 0), Err(StatisticsError::Empty));
    assert_eq!(pass_hat_k(4, 2, 5), Err(StatisticsError::TooMany { part: 5, whole: 4 }));
    assert_eq!(pass_at_k(4, 5, 1), Err(StatisticsError::TooMany { part: 5, whole: 4 }));
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

/// Numbers for simulations, the same in every run.
pub(crate) struct Draws(fastrand::Rng);

impl Draws {
    pub(crate) fn new(seed: u64) -> Self {
        Draws(fastrand::Rng::with_seed(seed))
    }

    /// Evenly from 0 to 1.
    pub(crate) fn share(&mut self) -> f64 {
        self.0.f64()
    }

    /// From the standard normal distribution, by the method of Box and Muller.
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.share()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.share()).cos()
    }
}
