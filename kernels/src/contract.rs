//! The arithmetic contract's constants and scalar functions (ARCHITECTURE.md, "The arithmetic contract").
//!
//! Twins, vectorised host code and CUDA kernels follow these to the bit. The vectorised forms are in
//! [`crate::simd`]; a test holds them to the functions here.

use std::ops::Range;

use crate::forms::Activation;

/// Elements in one run: the chain of FMAs that nothing may reorder.
pub const RUN: usize = 32;

/// Elements in one group: four runs. Also the columns that share an INT4 scale.
pub const GROUP: usize = 128;

/// Runs in a group.
pub const RUNS: usize = GROUP / RUN;

/// Positions in one attention split.
pub const SPLIT: usize = 128;

/// Below this `exp` is `+0.0`. Just above ln(2^-126), so no result is subnormal.
pub const EXP_MIN: f32 = -87.33;

/// Above this `exp` is `+inf`. Just below ln(f32::MAX).
pub const EXP_MAX: f32 = 88.72;

/// Adding it to a float below 2^22 rounds that float to an integer, which is then in the sum's low mantissa bits.
pub const EXP_ROUND: f32 = 12_582_912.0;

/// `1 / ln 2`.
pub const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// `ln 2`, nearest f32. `fma(n, -LN2_HI, x)` is exact for every `n` that occurs.
pub const LN2_HI: f32 = std::f32::consts::LN_2;

/// `ln 2 - LN2_HI`.
pub const LN2_LO: f32 = -1.904_654_2e-9;

/// `exp(r) = 1 + r + r^2 (c0 + r (c1 + ...))` on |r| <= ln2 / 2: the minimax polynomial for the relative error
/// (Remez, `c0` held at 1/2), whose error before rounding is 4.3e-9.
pub const EXP_POLY: [f32; 5] = [0.5, 0.166_664_88, 0.041_665_554, 0.008_372_288, 0.001_403_560_9];

/// The contract's exponential: within 2 ulp; `exp(0) == 1` exactly; NaN stays NaN.
///
/// Cody and Waite's reduction `x = n ln2 + r`, a polynomial in `r`, then `n` added to the exponent bits.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let rounded = x.mul_add(LOG2_E, EXP_ROUND);
    let n = rounded - EXP_ROUND;
    let r = n.mul_add(-LN2_LO, n.mul_add(-LN2_HI, x));
    let [c0, c1, c2, c3, c4] = EXP_POLY;
    let q = c4.mul_add(r, c3).mul_add(r, c2).mul_add(r, c1).mul_add(r, c0);
    let p = (q * r).mul_add(r, r) + 1.0;
    // The low bits of `rounded` are n; the shift drops all others.
    let scaled = f32::from_bits(p.to_bits().wrapping_add(rounded.to_bits() << 23));
    let low = if x < EXP_MIN { 0.0 } else { scaled };
    let high = if x > EXP_MAX { f32::INFINITY } else { low };
    if x.is_nan() { x } else { high }
}

/// Bits after the point of [`sample_weight`]: the likeliest token weighs `2^40`.
pub const WEIGHT_BITS: u32 = 40;

/// Most tokens that a sampled choice takes: so many weights add up to at most `2^63`, so no sum of them overflows a u64.
pub const MAX_WEIGHTS: usize = 1 << 23;

const _: () = assert!((MAX_WEIGHTS as u64).checked_mul(1 << WEIGHT_BITS).is_some());

/// Adding it to a double below 2^51 in magnitude rounds that double to an integer, whose low 12 bits are then the sum's.
pub const EXP2_ROUND: f64 = 6_755_399_441_055_744.0;

/// `exp(r)` on |r| <= ln2 / 2, highest power first: Taylor's series to `r^11`, whose error is 6.3e-15.
pub const EXP2_POLY: [f64; 12] = [
    1.0 / 39_916_800.0,
    1.0 / 3_628_800.0,
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    0.5,
    1.0,
    1.0,
];

/// What a token weighs in a sampled choice: `2^(40 + (logit - largest) * scale)`, rounded to an integer. `scale` is
/// `log2(e) / temperature`, positive and finite.
///
/// `2^40` for the largest logit exactly; 0 for whatever is at most `2^-41` as likely, for `-inf` and for NaN. Within 0.52 of the exact
/// value. An integer, so that sums of weights depend on no order of addition.
#[inline(always)]
pub fn sample_weight(logit: f32, largest: f32, scale: f64) -> u64 {
    // Adding 2^52 rounds to an integer, nearest, ties to even, which is then in the sum's mantissa.
    const INTEGER: f64 = (1u64 << 52) as f64;
    let y = (f64::from(logit) - f64::from(largest)) * scale;
    let rounded = y + EXP2_ROUND;
    let r = (y - (rounded - EXP2_ROUND)) * std::f64::consts::LN_2;
    let mut p = EXP2_POLY[0];
    for &c in &EXP2_POLY[1..] {
        p = p.mul_add(r, c);
    }
    let power = f64::from_bits(p.to_bits().wrapping_add(rounded.to_bits() << 52));
    let weight = power.mul_add((1u64 << WEIGHT_BITS) as f64, INTEGER).to_bits() & ((1 << 52) - 1);
    // Not so for NaN, which -inf times a vanishing scale is too.
    if y > -f64::from(WEIGHT_BITS + 1) { weight } else { 0 }
}

/// Logits in descending order: a smaller number for a larger logit, the same for both zeros. NaN has no place.
#[inline(always)]
pub fn descending(logit: f32) -> u32 {
    // Adding zero makes -0.0 of it +0.0.
    let bits = (logit + 0.0).to_bits();
    if bits >> 31 == 0 { bits ^ 0x7fff_ffff } else { bits }
}

/// `1 / (1 + exp(-x))`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x / (1 + exp(-x))`.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// The nonlinearity of a gated network on one pair.
#[inline(always)]
pub fn activate(activation: Activation, gate: f32, up: f32) -> f32 {
    match activation {
        Activation::SwiGlu => silu(gate) * up,
        Activation::ClampedSwiGlu { alpha, limit } => {
            // Written so that a NaN passes.
            let gate = if gate > limit { limit } else { gate };
            let up = if up > limit { limit } else { up };
            let up = if up < -limit { -limit } else { up };
            (up + 1.0) * (gate / (1.0 + exp(-(alpha * gate))))
        }
    }
}

/// One group in the contract's order: four chains of `step` from `+0.0`, then `(run0 + run1) + (run2 + run3)`.
///
/// `range` holds at most [`GROUP`] indices; `step(acc, k)` adds element `k`.
#[inline(always)]
pub fn group(range: Range<usize>, step: impl FnMut(f32, usize) -> f32) -> f32 {
    group_part(range.clone(), range, step)
}

/// [`group`] of which only the elements of `part`, which lies within it, take part.
#[inline(always)]
pub fn group_part(range: Range<usize>, part: Range<usize>, mut step: impl FnMut(f32, usize) -> f32) -> f32 {
    let mut runs = [0.0f32; RUNS];
    for (index, run) in runs.iter_mut().enumerate() {
        let start = range.start + index * RUN;
        for k in start.max(part.start)..(start + RUN).min(part.end) {
            *run = step(*run, k);
        }
    }
    (runs[0] + runs[1]) + (runs[2] + runs[3])
}

/// A sum over `0..len` in the contract's order; `step(acc, k)` adds element `k` to a run.
#[inline(always)]
pub fn group_sum(len: usize, mut step: impl FnMut(f32, usize) -> f32) -> f32 {
    let mut total = 0.0f32;
    for start in (0..len).step_by(GROUP) {
        total += group(start..(start + GROUP).min(len), &mut step);
    }
    total
}

/// Dot product in the contract's order, over the shorter of the two lengths.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    group_sum(a.len().min(b.len()), |acc, k| a[k].mul_add(b[k], acc))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance from the exact value in units of the last place of the nearest f32.
    fn ulps(got: f32, exact: f64) -> f64 {
        let nearest = exact as f32;
        let ulp = f64::from(f32::from_bits(nearest.to_bits() + 1)) - f64::from(nearest);
        (f64::from(got) - exact).abs() / ulp
    }

    #[test]
    fn exp_is_within_two_ulp_of_f64() {
        let mut worst = (0.0f64, 0.0f32);
        // Every 97th float of both signs, inside the range that neither underflows nor overflows.
        for bits in (0..EXP_MAX.to_bits()).step_by(97) {
            for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
                if x >= EXP_MIN {
                    let error = ulps(exp(x), f64::from(x).exp());
                    if error > worst.0 {
                        worst = (error, x);
                    }
                }
            }
        }
        assert!(worst.0 <= 2.0, "exp({}) is {} ulp off", worst.1, worst.0);
    }

    #[test]
    fn exp_at_its_edges() {
        for (x, expected) in [
            (0.0, 1.0),
            (-0.0, 1.0),
            (f32::from_bits(1), 1.0),
            (-87.331, 0.0),
            (f32::NEG_INFINITY, 0.0),
            (f32::MIN, 0.0),
            (88.721, f32::INFINITY),
            (f32::MAX, f32::INFINITY),
            (f32::INFINITY, f32::INFINITY),
        ] {
            assert_eq!(exp(x).to_bits(), f32::to_bits(expected), "exp({x})");
        }
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(EXP_MIN).is_normal() && exp(EXP_MAX).is_finite());
    }

    #[test]
    fn weights_are_the_probabilities_relative_to_the_largest() {
        let one = (1u64 << WEIGHT_BITS) as f64;
        for temperature in [1e-3, 0.1, 0.7, 1.0, 1.5, 100.0] {
            let scale = std::f64::consts::LOG2_E / temperature;
            for step in 0..40_000 {
                let (largest, logit) = (7.25f32, 7.25 - (step as f32 / 1000.0) * temperature as f32);
                let exact = one * ((f64::from(logit) - f64::from(largest)) / temperature).exp();
                let found = sample_weight(logit, largest, scale);
                assert!((found as f64 - exact).abs() <= 0.52, "{logit} at {temperature}: {found}, expected {exact}");
            }
        }
    }

    #[test]
    fn weights_at_their_edges() {
        let one = 1u64 << WEIGHT_BITS;
        let check = |logit, largest, scale, expected| assert_eq!(sample_weight(logit, largest, scale), expected);
        for scale in [f64::MIN_POSITIVE / 1e10, 1e-3, 1.0, f64::MAX] {
            check(3.0, 3.0, scale, one);
            check(-0.0, 0.0, scale, one);
            check(f32::MIN, f32::MIN, scale, one);
            check(f32::NEG_INFINITY, 3.0, scale, 0);
            check(f32::NAN, 3.0, scale, 0);
        }
        // A vanishing temperature leaves the largest alone, an endless one makes all finite logits equal.
        check(f32::from_bits(1), f32::from_bits(2), f64::MAX, 0);
        check(f32::MIN, f32::MAX, f64::MIN_POSITIVE / 1e10, one);
        check(-1.0, 0.0, 1.0, one / 2);
        check(-40.0, 0.0, 1.0, 1);
        check(-40.9, 0.0, 1.0, 1);
        check(-41.0, 0.0, 1.0, 0);
    }

    #[test]
    fn descending_orders_logits() {
        let sorted = [f32::INFINITY, f32::MAX, 1.5, 1.0, 1e-41, 0.0, -1e-41, -1.0, f32::MIN, f32::NEG_INFINITY];
        assert!(sorted.windows(2).all(|pair| descending(pair[0]) < descending(pair[1])));
        assert_eq!(descending(-0.0), descending(0.0));
    }

    #[test]
    fn sigmoid_and_silu_saturate() {
        assert_eq!(sigmoid(0.0), 0.5);
        assert_eq!(sigmoid(200.0), 1.0);
        assert_eq!(sigmoid(-200.0), 0.0);
        assert_eq!(silu(200.0), 200.0);
        assert_eq!(silu(-200.0), 0.0);
    }

    #[test]
    fn a_group_is_four_chains_added_in_pairs() {
        // 2^24 absorbs ones added to it singly, so the result says which elements shared a chain.
        let mut x = [1.0f32; 130];
        x[0] = 16_777_216.0;
        // run0 stays 2^24; run0 + run1 = 2^24 + 32; + 64; then the group of the last two ones.
        assert_eq!(group_sum(130, |acc, k| acc + x[k]), 16_777_216.0 + 96.0 + 2.0);
        assert_eq!(group_sum(33, |acc, k| acc + x[k]), 16_777_216.0);
        assert_eq!(group_sum(0, |acc, _| acc + 1.0).to_bits(), 0);
    }
}
