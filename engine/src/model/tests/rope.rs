//! Rope tables against an independent implementation.
//!
//! The YaRN values come from transformers 5.24: the source of its `_compute_yarn_parameters`, run unchanged with float64 in place of
//! its float32 (`head_dim`, `rope_theta` and the parameters as below).

use crate::model::ModelError;
use crate::model::rope::{RopeTable, inverse_frequencies, yarn_attention_factor};
use crate::model::spec::{RopeScaling, RopeSpec};

fn yarn(theta: f64, factor: f64, context: usize, beta: (f64, f64), attention_factor: f64, truncate: bool) -> RopeSpec {
    let scaling = RopeScaling::Yarn {
        factor,
        original_max_position_embeddings: context,
        beta_fast: beta.0,
        beta_slow: beta.1,
        attention_factor,
        truncate,
    };
    RopeSpec { theta, scaling }
}

/// Rope, `head_dim`, and the frequencies of some pairs.
type Known = (RopeSpec, usize, &'static [(usize, f64)]);

#[test]
fn yarn_frequencies_are_those_of_transformers() {
    let cases: [Known; 6] = [
        // Qwen3's own recipe for 128K.
        (
            yarn(1e6, 4.0, 32768, (32.0, 1.0), 1.0, true),
            128,
            &[
                (0, 1.0),
                (20, 0.01333521432163324),
                (24, 0.005375321490790102),
                (32, 0.0006029411764705882),
                (36, 0.00017984115587395423),
                (40, 4.445698525097307e-05),
                (60, 5.928434264154139e-07),
            ],
        ),
        // gpt-oss: no rounding of the range.
        (
            yarn(150000.0, 32.0, 4096, (32.0, 1.0), 1.0, false),
            64,
            &[
                (8, 0.050813274815461475),
                (10, 0.019335001126540362),
                (16, 0.00045648391922324086),
                (18, 3.8308812373753384e-05),
                (30, 4.387978250864396e-07),
            ],
        ),
        // DeepSeek-V2's parameters.
        (
            yarn(10000.0, 40.0, 4096, (32.0, 1.0), 1.0, true),
            64,
            &[(10, 0.056234132519034905), (12, 0.026879360111431223), (22, 0.0001778279410038922), (24, 2.5e-05)],
        ),
        // A context so short that the range starts below pair 0.
        (
            yarn(10000.0, 8.0, 64, (32.0, 1.0), 1.0, true),
            32,
            &[(0, 1.0), (1, 0.46393159328203804), (4, 0.03), (5, 0.007029266564879363), (15, 2.2228492625486534e-05)],
        ),
        // A range of no width.
        (
            yarn(10000.0, 2.0, 4096, (8.0, 8.0), 1.0, false),
            32,
            &[(7, 0.01778279410038923), (8, 0.005), (15, 8.891397050194613e-05)],
        ),
        // What a config without a factor gives: 16384 / 8192.
        (
            yarn(500000.0, 2.0, 8192, (32.0, 1.0), 1.0, true),
            64,
            &[
                (8, 0.03760603093086393),
                (10, 0.01564041563205031),
                (20, 0.00013712408783810365),
                (30, 2.2708352403039348e-06),
            ],
        ),
    ];
    for (rope, head_dim, known) in cases {
        let frequencies = inverse_frequencies(&rope, head_dim);
        assert_eq!(frequencies.len(), head_dim / 2);
        for &(pair, expected) in known {
            let error = (frequencies[pair] / expected - 1.0).abs();
            assert!(error < 1e-12, "{rope:?}: pair {pair} is {}, expected {expected}", frequencies[pair]);
        }
    }
}

#[test]
fn yarn_attention_factors_are_those_of_transformers() {
    for (factor, mscale, mscale_all_dim, expected) in [
        (4.0, None, None, 1.138629436111989),
        (32.0, None, None, 1.3465735902799727),
        (40.0, Some(0.707), Some(1.0), 0.9210423553163399),
        (2.0, Some(0.707), None, 1.0693147180559945),
        (1.0, None, None, 1.0),
        (0.5, Some(2.0), Some(1.0), 1.0),
    ] {
        let found: f64 = yarn_attention_factor(factor, mscale, mscale_all_dim);
        assert!(
            (found - expected).abs() < 1e-15,
            "{factor} {mscale:?} {mscale_all_dim:?}: {found}, expected {expected}"
        );
    }
}

/// Angles known in closed form: with theta 10^4 and head_dim 4 the pairs turn by 1 and by 1/100.
#[test]
fn default_table_holds_cosines_and_sines_rounded_once() {
    let rope = RopeSpec { theta: 1e4, scaling: RopeScaling::Default };
    let table = RopeTable::new(&rope, 4, 50_001).unwrap();
    assert_eq!((table.positions(), table.cos.len(), table.sin.len()), (50_001, 100_002, 100_002));
    assert_eq!((&table.cos[..2], &table.sin[..2]), ([1.0, 1.0].as_slice(), [0.0, 0.0].as_slice()));
    // cos 1, sin 1, cos 0.01, sin 0.01; cos and sin of 50000 and of 500, to 10 digits.
    let near = |found: f32, expected: f64| {
        assert!((f64::from(found) - expected).abs() < 3.1e-8, "{found}, expected {expected}")
    };
    for (position, cos, sin) in [
        (1, [0.5403023059, 0.9999500004], [0.8414709848, 0.0099998333]),
        (50_000, [-0.0178772560, -0.8838492734], [-0.9998401891, -0.4677718053]),
    ] {
        for pair in 0..2 {
            near(table.cos[position * 2 + pair], cos[pair]);
            near(table.sin[position * 2 + pair], sin[pair]);
        }
    }
}

#[test]
fn yarn_table_is_scaled_by_the_attention_factor() {
    let rope = yarn(1e4, 2.0, 4096, (32.0, 1.0), 1.25, true);
    let table = RopeTable::new(&rope, 32, 3).unwrap();
    let frequencies = inverse_frequencies(&rope, 32);
    assert_eq!((table.cos[0], table.sin[0]), (1.25, 0.0));
    for (pair, frequency) in frequencies.iter().enumerate() {
        assert_eq!(table.cos[2 * 16 + pair], (1.25 * (2.0 * frequency).cos()) as f32);
        assert_eq!(table.sin[2 * 16 + pair], (1.25 * (2.0 * frequency).sin()) as f32);
    }
}

#[test]
fn impossible_tables_are_errors() {
    let rope = RopeSpec { theta: 1e4, scaling: RopeScaling::Default };
    for (head_dim, positions) in [(0, 1), (7, 1), (64, usize::MAX), (64, usize::MAX / 64)] {
        let error = RopeTable::new(&rope, head_dim, positions).unwrap_err();
        assert!(matches!(error, ModelError::RopeTable { .. }), "{error}");
    }
}
