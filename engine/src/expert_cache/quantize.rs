//! Symmetric integers: `w ≈ q * scale`, q within ± `most`, one BF16 scale for each group of 128 neighbouring inputs of an output. `most`
//! is 7 in INT4 and 127 in INT8, which has the first method alone: its steps are too fine for a search to find better ones.
//!
//! Both methods take candidates for the scale and round to the nearest q:
//!
//! - **amax**: `scale = bf16(max|w| / most)`, so the largest weight is `most` steps from zero and nothing is clipped;
//! - **search**: `scale = bf16(max|w| / most * f)` for each f in [`SEARCH_PERCENTS`], keeping the one with the smallest sum of
//!   squared errors of the weights. A smaller scale clips the largest weights and represents the others more finely.
//!
//! Rounding is to nearest, ties to even, everywhere. `max|w| / most` and the factor are f32 arithmetic. The result depends on
//! nothing but the weights: not on threads, and not on the instruction set.

use half::bf16;

/// The factors that `search` tries, in percent and in this order: of equally good ones the first is kept, so `amax` itself
/// wins a tie. They are part of a cache's identity.
pub const SEARCH_PERCENTS: [u8; 31] = [
    100, 99, 98, 97, 96, 95, 94, 93, 92, 91, 90, 89, 88, 87, 86, 85, 84, 83, 82, 81, 80, 79, 78, 77, 76, 75, 74, 73,
    72, 71, 70,
];

/// How a group's scale is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuantizeMethod {
    /// The largest weight decides.
    Amax,
    /// The smallest sum of squared errors over [`SEARCH_PERCENTS`] decides.
    Search,
}

impl QuantizeMethod {
    /// The name used in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amax => "amax",
            Self::Search => "search",
        }
    }
}

/// What a group became.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupFit {
    /// The group's scale: finite, not negative, `+0.0` where every q is 0 for want of anything to scale.
    pub scale: bf16,
    /// Sum of the squared errors of the group's weights.
    pub squared_error: f64,
}

/// Partial sums of squared errors, so that the compiler may keep them in vector registers: element i goes to sum i mod 8.
const LANES: usize = 8;

/// Quantises one group: finite `values` (at most 128 of them, but nothing here depends on that) into `q` of the same length, within
/// ± `most`.
pub fn quantize_group(method: QuantizeMethod, most: i8, values: &[f32], q: &mut [i8]) -> GroupFit {
    debug_assert_eq!(values.len(), q.len());
    let amax = values.iter().fold(0.0_f32, |amax, value| amax.max(value.abs()));
    let most = f32::from(most);
    let base = amax / most;
    let mut best = candidate(most, values, bf16::from_f32(base));
    if method == QuantizeMethod::Search {
        for percent in &SEARCH_PERCENTS[1..] {
            let fit = candidate(most, values, bf16::from_f32(base * (f32::from(*percent) / 100.0)));
            if fit.squared_error < best.squared_error {
                best = fit;
            }
        }
    }
    let scale = best.scale.to_f32();
    for (q, value) in q.iter_mut().zip(values) {
        *q = if scale == 0.0 { 0 } else { nearest(most, *value, scale) as i8 };
    }
    best
}

/// The sum of squared errors with this scale.
fn candidate(most: f32, values: &[f32], scale: bf16) -> GroupFit {
    let step = scale.to_f32();
    let mut sums = [0.0_f64; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    if step == 0.0 {
        // Everything is zero, or so small that no BF16 scale is: every q is 0.
        let squared_error = values.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
        return GroupFit { scale, squared_error };
    }
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            let error = f64::from(*value) - f64::from(nearest(most, *value, step) * step);
            *sum += error * error;
        }
    }
    for (sum, value) in sums.iter_mut().zip(rest) {
        let error = f64::from(*value) - f64::from(nearest(most, *value, step) * step);
        *sum += error * error;
    }
    let [a, b, c, d, e, f, g, h] = sums;
    GroupFit { scale, squared_error: ((a + b) + (c + d)) + ((e + f) + (g + h)) }
}

/// `value / scale` rounded to the nearest whole number within ± `most`, ties to even.
fn nearest(most: f32, value: f32, scale: f32) -> f32 {
    /// At 1.5 * 2^23 the spacing of f32 is 1, so adding it rounds, in the default mode, and every instruction set can do it.
    const ROUND: f32 = 12_582_912.0;
    let steps = (value / scale).clamp(-most, most);
    (steps + ROUND) - ROUND
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use proptest::prelude::*;

    use assay_kernels::layout::{INT4_MAX, INT8_MAX};

    use super::*;

    fn quantize(method: QuantizeMethod, values: &[f32]) -> (Vec<i8>, GroupFit) {
        let mut q = vec![99; values.len()];
        let fit = quantize_group(method, INT4_MAX, values, &mut q);
        (q, fit)
    }

    #[test]
    fn known_answers() {
        let check = |method, values: &[f32], expected: &[i8], scale: f32, error: f64| {
            let (q, fit) = quantize(method, values);
            assert_eq!(q, expected, "{method:?} of {values:?}");
            assert_eq!(fit.scale.to_f32(), scale, "{method:?} of {values:?}");
            assert!((fit.squared_error - error).abs() < 1e-12, "{fit:?}, expected {error}");
        };
        let both = [QuantizeMethod::Amax, QuantizeMethod::Search];
        for method in both {
            check(method, &[7.0, -7.0, 3.0, 0.0, -1.0], &[7, -7, 3, 0, -1], 1.0, 0.0);
            check(method, &[0.0; 9], &[0; 9], 0.0, 0.0);
            check(method, &[-0.0, 0.0], &[0, 0], 0.0, 0.0);
            check(method, &[-3.5], &[-7], 0.5, 0.0);
        }
        // Ties to even: 0.5 and 2.5 go down, 1.5 goes up.
        check(QuantizeMethod::Amax, &[7.0, 0.5, 1.5, 2.5, -0.5], &[7, 0, 2, 2, 0], 1.0, 1.0);
        // One outlier among many halves: 0.5 is a tie of amax's steps, a smaller scale clips 7 and rounds them up.
        let mut outlier = vec![0.55; 127];
        outlier.push(7.0);
        let (_, amax) = quantize(QuantizeMethod::Amax, &outlier);
        let (q, search) = quantize(QuantizeMethod::Search, &outlier);
        assert_eq!(amax.scale.to_f32(), 1.0);
        assert!(search.squared_error < 0.75 * amax.squared_error, "{search:?} {amax:?}");
        assert_eq!((q[0], q[127]), (1, 7));
    }

    #[test]
    fn a_group_too_small_for_any_scale_becomes_zero() {
        let tiny = [f32::from_bits(3), -f32::from_bits(1)];
        for method in [QuantizeMethod::Amax, QuantizeMethod::Search] {
            let (q, fit) = quantize(method, &tiny);
            assert_eq!((q, fit.scale.to_bits()), (vec![0, 0], 0));
            assert!(fit.squared_error > 0.0);
        }
    }

    #[test]
    fn rounding_is_that_of_the_standard_library() {
        for i in -8000..=8000 {
            let value = i as f32 / 1000.0;
            let expected = value.clamp(-7.0, 7.0).round_ties_even();
            assert_eq!(nearest(7.0, value, 1.0), expected, "{value}");
        }
    }

    /// Weights of very different size and shape: bf16 values as in a checkpoint, some of them zero.
    fn weights() -> impl Strategy<Value = Vec<f32>> {
        let element = prop_oneof![
            8 => -1.0_f32..1.0,
            1 => Just(0.0_f32),
            1 => -30.0_f32..30.0,
        ];
        (proptest::collection::vec(element, 1..=128), -30..30_i32).prop_map(|(values, exponent)| {
            let size = 2.0_f32.powi(exponent);
            values.iter().map(|value| bf16::from_f32(value * size).to_f32()).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn amax_is_within_half_a_step(values in weights()) {
            let (q, fit) = quantize(QuantizeMethod::Amax, &values);
            let step = fit.scale.to_f32();
            let amax = values.iter().fold(0.0_f32, |amax, value| amax.max(value.abs()));
            // BF16 keeps 8 bits, so the scale is within 2^-8 of max/7, and 7 steps are within 7 * 2^-8 of one step of max.
            prop_assert!((step - amax / 7.0).abs() <= amax / 7.0 / 256.0 + f32::MIN_POSITIVE);
            for (q, value) in q.iter().zip(&values) {
                prop_assert!((-7..=7).contains(q));
                let error = (f64::from(*value) - f64::from(*q) * f64::from(step)).abs();
                prop_assert!(error <= f64::from(step) / 2.0 * (1.0 + 1e-6), "{} {} {}", value, q, step);
            }
        }

        #[test]
        fn eight_bits_are_within_half_a_step_and_finer_than_four(values in weights()) {
            let mut q = vec![99; values.len()];
            let fit = quantize_group(QuantizeMethod::Amax, INT8_MAX, &values, &mut q);
            let step = f64::from(fit.scale.to_f32());
            for (q, value) in q.iter().zip(&values) {
                prop_assert!(*q >= -INT8_MAX);
                let error = (f64::from(*value) - f64::from(*q) * step).abs();
                prop_assert!(error <= step / 2.0 * (1.0 + 1e-6), "{} {} {}", value, q, step);
            }
            let bound = step * step / 4.0 * values.len() as f64 * (1.0 + 1e-6);
            prop_assert!(fit.squared_error <= bound, "{} of at most {}", fit.squared_error, bound);
        }

        #[test]
        fn search_is_never_worse_and_reports_its_error(values in weights()) {
            let (_, amax) = quantize(QuantizeMethod::Amax, &values);
            let (q, search) = quantize(QuantizeMethod::Search, &values);
            prop_assert!(search.squared_error <= amax.squared_error);
            let step = f64::from(search.scale.to_f32());
            let naive: f64 = q.iter().zip(&values).map(|(q, w)| (f64::from(*w) - f64::from(*q) * step).powi(2)).sum();
            prop_assert!((naive - search.squared_error).abs() <= 1e-9 * naive);
            // Clipped weights are at the end of the range, all others within half a step.
            for (q, value) in q.iter().zip(&values) {
                let error = (f64::from(*value) - f64::from(*q) * step).abs();
                prop_assert!(error <= step / 2.0 * (1.0 + 1e-6) || (q.abs() == 7 && f64::from(value.abs()) > 7.0 * step));
            }
        }

        #[test]
        fn no_listed_factor_is_better(values in weights()) {
            let (_, search) = quantize(QuantizeMethod::Search, &values);
            let amax = values.iter().fold(0.0_f32, |amax, value| amax.max(value.abs()));
            for percent in SEARCH_PERCENTS {
                let scale = bf16::from_f32(amax / 7.0 * (f32::from(percent) / 100.0));
                prop_assert!(search.squared_error <= candidate(7.0, &values, scale).squared_error);
            }
        }
    }
}
