//! The families that work row by row.

use crate::common::{Random, Weights, check, same};
use assay_kernels::layout::MatrixFormat::{self, Bf16};
use assay_kernels::simd::Level;
use assay_kernels::{Activation, KernelError, Routing, Scoring, simd, twin};

const LENGTHS: [usize; 10] = [1, 2, 15, 16, 31, 64, 127, 128, 130, 2880];

#[test]
fn embeddings() {
    for format in MatrixFormat::ALL {
        for hidden in LENGTHS {
            let mut random = Random(hidden as u64);
            let table = Weights::random(&mut random, format, 37, hidden);
            let ids: Vec<u32> = (0..50).map(|_| random.below(37) as u32).collect();
            let mut expected = vec![f32::NAN; ids.len() * hidden];
            twin::embed(&ids, table.matrix(), &mut expected).unwrap();
            check(&format!("embed {format:?} {hidden}"), &expected, |out| {
                simd::embed(&ids, table.matrix(), out).unwrap();
            });
        }
    }
    let table = Weights::random(&mut Random(1), Bf16, 3, 2);
    let error = simd::embed(&[2, 3], table.matrix(), &mut [0.0; 4]).unwrap_err();
    assert_eq!(error.to_string(), "embed: token id 3 is out of range, expected less than 3");
}

#[test]
fn norms() {
    for width in LENGTHS {
        for tokens in [1, 3, 129] {
            let mut random = Random((width + tokens) as u64);
            let (x, weight) = (random.floats(tokens * width), random.floats(width));
            let mut expected = vec![f32::NAN; x.len()];
            twin::rms_norm(&x, &weight, 1e-6, &mut expected).unwrap();
            check(&format!("rms_norm {tokens} x {width}"), &expected, |out| {
                simd::rms_norm(&x, &weight, 1e-6, out).unwrap();
            });
        }
    }
}

#[test]
fn ropes() {
    for (head_dim, rotary_dim) in
        [(2, 2), (6, 6), (32, 32), (34, 34), (64, 64), (128, 128), (256, 256), (34, 2), (32, 16), (128, 64), (80, 34)]
    {
        for (tokens, heads, norm) in
            [(1, 4, head_dim), (3, 1, 0), (200, 3, head_dim), (5, 3, 3 * head_dim), (2, 1, head_dim)]
        {
            let mut random = Random((head_dim + tokens) as u64);
            let first = 11;
            let table = (first + tokens) * rotary_dim / 2;
            let (cos, sin) = (random.floats(table), random.floats(table));
            let x = random.floats(tokens * heads * head_dim);
            let norm = random.floats(norm);
            let norm = (!norm.is_empty()).then_some(norm.as_slice());
            let mut expected = x.clone();
            twin::head_norm_rope(&mut expected, heads, head_dim, rotary_dim, norm, 1e-5, &cos, &sin, first).unwrap();
            check(
                &format!(
                    "rope {tokens} x {heads} x {head_dim}, {rotary_dim} turned, norm {:?}",
                    norm.map(<[f32]>::len)
                ),
                &expected,
                |out| {
                    out.copy_from_slice(&x);
                    simd::head_norm_rope(out, heads, head_dim, rotary_dim, norm, 1e-5, &cos, &sin, first).unwrap();
                },
            );
            let past =
                simd::head_norm_rope(&mut expected, heads, head_dim, rotary_dim, norm, 1e-5, &cos, &sin, first + 1);
            assert!(matches!(past, Err(KernelError::Index { .. })));
        }
    }
}

#[test]
fn elementwise() {
    for len in LENGTHS.into_iter().chain([300_001]) {
        let mut random = Random(len as u64);
        let (mut gate, up) = (random.floats(len), random.floats(len));
        // Where exp saturates.
        for (x, extreme) in gate.iter_mut().zip([200.0, -200.0, f32::INFINITY, 88.72, -87.33, -0.0]) {
            *x = extreme;
        }
        let mut expected = vec![f32::NAN; len];
        for activation in [Activation::SwiGlu, Activation::ClampedSwiGlu { alpha: 1.702, limit: 2.0 }] {
            twin::swiglu(&gate, &up, activation, &mut expected).unwrap();
            check(&format!("{activation:?} {len}"), &expected, |out| {
                simd::swiglu(&gate, &up, activation, out).unwrap();
            });
        }
        for factor in [1.0, 0.22] {
            let mut expected = gate.clone();
            twin::add_assign(&mut expected, &up, factor).unwrap();
            check(&format!("add_assign {len}"), &expected, |out| {
                out.copy_from_slice(&gate);
                simd::add_assign(out, &up, factor).unwrap();
            });
            twin::scale(&mut expected, factor).unwrap();
            let before = {
                let mut x = gate.clone();
                twin::add_assign(&mut x, &up, factor).unwrap();
                x
            };
            check(&format!("scale {len}"), &expected, |out| {
                out.copy_from_slice(&before);
                simd::scale(out, factor).unwrap();
            });
        }
    }
}

#[test]
fn gated_sums() {
    for (tokens, width) in [(1, 1), (3, 17), (5, 128), (200, 130)] {
        let mut random = Random((tokens + width) as u64);
        let (x, y, gates) = (random.floats(tokens * width), random.floats(tokens * width), random.floats(tokens));
        let mut expected = x.clone();
        twin::add_gated(&mut expected, &y, &gates).unwrap();
        check(&format!("add_gated {tokens} x {width}"), &expected, |out| {
            out.copy_from_slice(&x);
            simd::add_gated(out, &y, &gates).unwrap();
        });
    }
    assert!(matches!(simd::add_gated(&mut [0.0; 5], &[0.0; 5], &[0.0; 2]), Err(KernelError::Shape { .. })));
    simd::add_gated(&mut [], &[], &[]).unwrap();
}

/// The vectorised exponential through the one family that shows it bare: silu(x) = x / (1 + exp(-x)).
#[test]
fn exponentials_agree_everywhere() {
    let mut gate: Vec<f32> = (0..u32::MAX / 10_007).map(|i| f32::from_bits(i * 10_007)).collect();
    gate.retain(|x| !x.is_nan());
    let up = vec![1.0; gate.len()];
    let mut expected = vec![f32::NAN; gate.len()];
    let swiglu = Activation::SwiGlu;
    twin::swiglu(&gate, &up, swiglu, &mut expected).unwrap();
    check("silu of floats of every size", &expected, |out| simd::swiglu(&gate, &up, swiglu, out).unwrap());
}

fn routings(num_experts: usize, top_k: usize) -> Vec<Routing> {
    let mut routings = Vec::new();
    for scoring in [Scoring::Softmax, Scoring::SoftmaxOfChosen, Scoring::Sigmoid] {
        for norm_topk_prob in [false, true] {
            for (n_group, topk_group, scaling_factor) in [(1, 1, 1.0), (4, 2, 2.5), (8, 3, 0.3)] {
                let size = num_experts / n_group;
                if n_group == 1 || (num_experts.is_multiple_of(n_group) && size > 1 && size * topk_group >= top_k) {
                    routings.push(Routing { scoring, norm_topk_prob, n_group, topk_group, scaling_factor });
                }
            }
        }
    }
    routings
}

#[test]
fn routers() {
    for (tokens, num_experts, top_k) in [(1, 1, 1), (1, 32, 4), (5, 33, 33), (700, 32, 4), (40, 512, 10), (9, 16, 6)] {
        let mut random = Random((tokens + num_experts) as u64);
        let mut logits = random.floats(tokens * num_experts);
        // Ties, which go to the lowest index, and experts that no token can choose before the others.
        for (index, logit) in logits.iter_mut().enumerate() {
            match index % 9 {
                0 => *logit = 2.5,
                4 if num_experts > 1 => *logit = f32::NEG_INFINITY,
                _ => {}
            }
        }
        let bias = random.floats(num_experts);
        for routing in routings(num_experts, top_k) {
            for bias in [None, Some(bias.as_slice())] {
                route(&logits, bias, num_experts, top_k, &routing);
            }
        }
    }
}

fn route(logits: &[f32], bias: Option<&[f32]>, num_experts: usize, top_k: usize, routing: &Routing) {
    let slots = logits.len() / num_experts * top_k;
    let (mut ids, mut weights) = (vec![u32::MAX; slots], vec![f32::NAN; slots]);
    twin::router_topk(logits, bias, num_experts, top_k, routing, &mut ids, &mut weights).unwrap();
    let what = format!("{slots} slots of {num_experts}, bias {}, {routing:?}", bias.is_some());
    for ids in ids.chunks(top_k) {
        assert!((1..top_k).all(|rank| !ids[..rank].contains(&ids[rank])), "{what}: {ids:?}");
    }
    for &level in Level::available() {
        let (mut found, mut found_weights) = (vec![u32::MAX; slots], vec![f32::NAN; slots]);
        level.force(|| {
            simd::router_topk(logits, bias, num_experts, top_k, routing, &mut found, &mut found_weights).unwrap();
        });
        assert_eq!(ids, found, "{what}, {level:?}");
        same(&format!("{what}, {level:?}"), &weights, &found_weights);
    }
}

/// A worked example: groups {0, 1}, {2, 3}, {4, 5}.
#[test]
fn groups_are_judged_by_their_two_best() {
    let routing =
        Routing { scoring: Scoring::Sigmoid, norm_topk_prob: true, n_group: 3, topk_group: 2, scaling_factor: 2.0 };
    // Sigmoids: 0.5 everywhere but for expert 0, whose group is the worst of the three all the same.
    let (logits, bias) = ([4.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0, -1.0, 0.0, 0.0, 0.125, 0.25]);
    let (mut ids, mut weights) = ([9; 3], [9.0; 3]);
    twin::router_topk(&logits, Some(&bias), 6, 3, &routing, &mut ids, &mut weights).unwrap();
    assert_eq!(ids, [5, 4, 2]);
    assert_eq!(weights, [2.0 / 3.0f32; 3]);
    let wrong = |n_group, topk_group, top_k| {
        let routing = Routing { n_group, topk_group, ..routing };
        let (ids, weights) = (&mut vec![0; top_k], &mut vec![0.0; top_k]);
        twin::router_topk(&logits, None, 6, top_k, &routing, ids, weights).unwrap_err().to_string()
    };
    let groups = "router_topk: n_group is 4, expected 1, or a divisor of num_experts that leaves two experts a group";
    assert_eq!(wrong(4, 1, 1), groups);
    assert_eq!(wrong(6, 1, 1), groups.replace('4', "6"));
    let chosen = "router_topk: topk_group is 1, expected 1 to n_group, enough for top_k experts";
    assert_eq!(wrong(3, 1, 3), chosen);
    assert_eq!(wrong(3, 4, 3), chosen.replace("is 1", "is 4"));
}

#[test]
fn a_nan_is_never_a_choice() {
    for &level in Level::available() {
        level.force(|| {
            for at in [0, 7, 16, 40] {
                let mut logits = Random(3).floats(41);
                logits[at] = f32::NAN;
                let expected = twin::argmax(&logits).unwrap_err();
                assert_eq!(expected.to_string(), format!("argmax: logit {at} is NaN"));
                assert_eq!(simd::argmax(&logits).unwrap_err(), expected);
                for routing in routings(41, 2) {
                    let (ids, weights) = (&mut [0; 2], &mut [0.0; 2]);
                    let found = simd::router_topk(&logits, None, 41, 2, &routing, ids, weights).unwrap_err();
                    let expected = twin::router_topk(&logits, None, 41, 2, &routing, ids, weights).unwrap_err();
                    assert_eq!(found, expected, "{routing:?}");
                }
            }
        });
    }
}

#[test]
fn the_largest_logit_and_the_first_of_equals() {
    for &level in Level::available() {
        for (logits, expected) in [
            (vec![1.0], 0),
            (vec![-1.0, 3.0, 3.0], 1),
            (vec![f32::NEG_INFINITY; 40], 0),
            (vec![-0.0, 0.0], 0),
            ([vec![0.0; 500], vec![0.5], vec![0.0; 20], vec![0.5]].concat(), 500),
        ] {
            assert_eq!(twin::argmax(&logits).unwrap(), expected);
            assert_eq!(level.force(|| simd::argmax(&logits)).unwrap(), expected, "{level:?}");
        }
        let logits = Random(8).floats(151_936);
        assert_eq!(level.force(|| simd::argmax(&logits)), twin::argmax(&logits));
    }
    assert!(simd::argmax(&[]).is_err());
}

#[test]
fn slots_are_sorted_by_expert_and_keep_their_order() {
    let ids = [3, 0, 3, 1, 0, 3];
    let (mut order, mut offsets) = ([9; 6], [9; 6]);
    twin::permute(&ids, 5, &mut order, &mut offsets).unwrap();
    assert_eq!(order, [1, 4, 3, 0, 2, 5]);
    assert_eq!(offsets, [0, 2, 3, 3, 6, 6]);
    assert!(matches!(
        simd::permute(&[5], 5, &mut [0], &mut [0; 6]),
        Err(KernelError::Index { index: 5, limit: 5, .. })
    ));
}
