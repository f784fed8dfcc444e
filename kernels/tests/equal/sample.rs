use super::common::Random;
use assay_kernels::simd::Level;
use assay_kernels::{Choice, KernelError, simd, twin};

/// Bell-shaped, as logits are, of standard deviation `spread`.
fn bell(random: &mut Random, n: usize, spread: f32) -> Vec<f32> {
    let unit = |random: &mut Random| (random.next() >> 40) as f32 / (1u64 << 24) as f32;
    (0..n).map(|_| ((0..4).map(|_| unit(random)).sum::<f32>() - 2.0) * spread * 1.732).collect()
}

fn logits(random: &mut Random, n: usize) -> Vec<Vec<f32>> {
    let mut some = bell(random, n, 3.0);
    (0..n).filter(|i| i % 3 == 0).for_each(|i| some[i] = f32::NEG_INFINITY);
    let mut one = vec![f32::NEG_INFINITY; n];
    one[n / 2] = -2.0;
    let mut infinite = bell(random, n, 3.0);
    infinite[n - 1] = f32::INFINITY;
    infinite[n / 3] = f32::INFINITY;
    let steps = bell(random, n, 2.0).into_iter().map(f32::round).collect();
    let zeros = (0..n).map(|i| if i % 2 == 0 { -0.0 } else { 0.0 }).collect();
    vec![
        bell(random, n, 3.0),
        bell(random, n, 0.01),
        steps,
        vec![1.5; n],
        zeros,
        some,
        one,
        infinite,
        vec![f32::NEG_INFINITY; n],
    ]
}

fn choices(random: &mut Random, n: usize) -> Vec<Choice> {
    let mut choices = Vec::new();
    for temperature in [5e-324, 1e-3, 0.7, 1.0, 100.0, f64::MAX, f64::INFINITY] {
        for top_k in [0, 1, 2, 40, n, n + 1] {
            for (top_p, min_p) in
                [(1.0, 0.0), (0.9, 0.0), (0.5, 0.01), (0.0, 0.0), (1e-300, 0.0), (1.0, 1.0), (1.0, 0.1), (2.0, 9.0)]
            {
                for word in [0, u64::MAX, random.next()] {
                    choices.push(Choice::new(temperature, top_k, top_p, min_p, word).unwrap());
                }
            }
        }
    }
    choices
}

#[test]
fn a_sampled_choice_is_the_twins() {
    let random = &mut Random(12);
    for n in [1, 2, 17, 257, 1000] {
        for logits in logits(random, n) {
            for (index, choice) in choices(random, n).iter().enumerate() {
                let expected = twin::sample(&logits, choice).unwrap();
                // Every level weighs in its own code; all else is the same.
                let level = Level::available()[index % Level::available().len()];
                assert_eq!(level.force(|| simd::sample(&logits, choice)), Ok(expected), "{n}, {choice:?}, {level:?}");
            }
        }
    }
    let large = bell(random, 40_000, 3.0);
    for (top_k, top_p) in [(0, 1.0), (0, 0.9), (0, 0.999), (5000, 0.99)] {
        let choice = Choice::new(1.0, top_k, top_p, 0.0, random.next()).unwrap();
        for &level in Level::available() {
            assert_eq!(level.force(|| simd::sample(&large, &choice)), twin::sample(&large, &choice));
        }
    }
}

/// The tokens that a limit leaves, found by draws at every part of the sum.
fn drawn(logits: &[f32], temperature: f64, top_k: usize, top_p: f64, min_p: f64) -> Vec<u32> {
    let word = |step: u64| step << 56 | step;
    let choice = |step| Choice::new(temperature, top_k, top_p, min_p, word(step)).unwrap();
    let mut drawn: Vec<u32> = (0..256).map(|step| twin::sample(logits, &choice(step)).unwrap()).collect();
    assert!(drawn.is_sorted(), "the draw goes through ascending ids");
    drawn.dedup();
    drawn
}

#[test]
fn limits_keep_what_they_say() {
    // 4 : 2 : 2 : 1 : 1, of which two pairs are ties.
    let ln2 = std::f32::consts::LN_2;
    let logits = [0.0, ln2, 2.0 * ln2, 0.0, ln2];
    let check = |(top_k, top_p, min_p), expected: &[u32]| {
        assert_eq!(drawn(&logits, 1.0, top_k, top_p, min_p), expected, "{top_k} {top_p} {min_p}");
    };
    check((0, 1.0, 0.0), &[0, 1, 2, 3, 4]);
    check((2, 1.0, 0.0), &[1, 2]);
    check((4, 1.0, 0.0), &[0, 1, 2, 4]);
    check((0, 0.39, 0.0), &[2]);
    check((0, 0.41, 0.0), &[1, 2]);
    check((0, 0.61, 0.0), &[1, 2, 4]);
    check((0, 0.81, 0.0), &[0, 1, 2, 4]);
    check((0, 0.0, 0.0), &[2]);
    check((3, 0.51, 0.0), &[1, 2]);
    check((3, 0.76, 0.0), &[1, 2, 4]);
    check((0, 1.0, 0.49), &[1, 2, 4]);
    check((0, 1.0, 0.51), &[2]);
    check((0, 0.5, 0.4), &[1, 2]);
    check((0, 1.0, 5.0), &[2]);
}

#[test]
fn odd_numbers_are_refused() {
    for (temperature, top_p, min_p, what) in [
        (0.0, 1.0, 0.0, "sample: temperature is 0, expected a positive number"),
        (-1.5, 1.0, 0.0, "sample: temperature is -1.5, expected a positive number"),
        (f64::NAN, 1.0, 0.0, "sample: temperature is NaN, expected a positive number"),
        (1.0, f64::NAN, 0.0, "sample: top_p is NaN, expected a number"),
        (1.0, 1.0, f64::NAN, "sample: min_p is NaN, expected a number"),
    ] {
        assert_eq!(Choice::new(temperature, 0, top_p, min_p, 0).unwrap_err().to_string(), what);
    }
    let choice = Choice::new(1.0, 5, 0.9, 0.1, 7).unwrap();
    let refused = |logits: &[f32]| {
        let found = twin::sample(logits, &choice).unwrap_err();
        assert_eq!(simd::sample(logits, &choice).unwrap_err(), found);
        found
    };
    let mut logits = vec![1.0; 50];
    logits[49] = f32::NAN;
    logits[20] = -f32::NAN;
    assert_eq!(refused(&logits), KernelError::NotANumber { kernel: "sample", what: "logit", index: 20 });
    assert!(matches!(refused(&[]), KernelError::Geometry { found: 0, .. }));
    assert!(matches!(refused(&vec![0.0; (1 << 23) + 1]), KernelError::Geometry { .. }));
}
