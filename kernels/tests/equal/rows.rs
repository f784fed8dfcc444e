//! The families that work row by row.

use crate::common::{Random, Weights, check, same};
use assay_kernels::layout::MatrixFormat::{Bf16, Int4};
use assay_kernels::simd::Level;
use assay_kernels::{KernelError, simd, twin};

const LENGTHS: [usize; 10] = [1, 2, 15, 16, 31, 64, 127, 128, 130, 2880];

#[test]
fn embeddings() {
    for format in [Bf16, Int4] {
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
    for head_dim in [2, 6, 32, 34, 64, 128, 256] {
        for (tokens, heads, with_norm) in [(1, 4, true), (3, 1, false), (200, 3, true)] {
            let mut random = Random((head_dim + tokens) as u64);
            let first = 11;
            let table = (first + tokens) * head_dim / 2;
            let (cos, sin) = (random.floats(table), random.floats(table));
            let x = random.floats(tokens * heads * head_dim);
            let norm = random.floats(head_dim);
            let norm = with_norm.then_some(norm.as_slice());
            let mut expected = x.clone();
            twin::head_norm_rope(&mut expected, heads, head_dim, norm, 1e-5, &cos, &sin, first).unwrap();
            check(&format!("rope {tokens} x {heads} x {head_dim}"), &expected, |out| {
                out.copy_from_slice(&x);
                simd::head_norm_rope(out, heads, head_dim, norm, 1e-5, &cos, &sin, first).unwrap();
            });
            let past = simd::head_norm_rope(&mut expected, heads, head_dim, norm, 1e-5, &cos, &sin, first + 1);
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
        twin::swiglu(&gate, &up, &mut expected).unwrap();
        check(&format!("swiglu {len}"), &expected, |out| simd::swiglu(&gate, &up, out).unwrap());
        let mut expected = gate.clone();
        twin::add_assign(&mut expected, &up).unwrap();
        check(&format!("add_assign {len}"), &expected, |out| {
            out.copy_from_slice(&gate);
            simd::add_assign(out, &up).unwrap();
        });
    }
}

/// The vectorised exponential through the one family that shows it bare: silu(x) = x / (1 + exp(-x)).
#[test]
fn exponentials_agree_everywhere() {
    let mut gate: Vec<f32> = (0..u32::MAX / 10_007).map(|i| f32::from_bits(i * 10_007)).collect();
    gate.retain(|x| !x.is_nan());
    let up = vec![1.0; gate.len()];
    let mut expected = vec![f32::NAN; gate.len()];
    twin::swiglu(&gate, &up, &mut expected).unwrap();
    check("silu of floats of every size", &expected, |out| simd::swiglu(&gate, &up, out).unwrap());
}

#[test]
fn routers() {
    for (tokens, num_experts, top_k) in [(1, 1, 1), (1, 32, 4), (5, 33, 33), (700, 32, 4), (40, 512, 10)] {
        for norm in [false, true] {
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
            let slots = tokens * top_k;
            let (mut ids, mut weights) = (vec![u32::MAX; slots], vec![f32::NAN; slots]);
            twin::router_topk(&logits, num_experts, top_k, norm, &mut ids, &mut weights).unwrap();
            for &level in Level::available() {
                let (mut found, mut found_weights) = (vec![u32::MAX; slots], vec![f32::NAN; slots]);
                level.force(|| {
                    simd::router_topk(&logits, num_experts, top_k, norm, &mut found, &mut found_weights).unwrap();
                });
                assert_eq!(ids, found, "{tokens} x {num_experts} top {top_k}, {level:?}");
                same(&format!("router {tokens} x {num_experts}, {level:?}"), &weights, &found_weights);
            }
        }
    }
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
                let (mut ids, mut weights) = ([0; 2], [0.0; 2]);
                let expected = twin::router_topk(&logits, 41, 2, true, &mut ids, &mut weights);
                assert!(matches!(expected, Err(KernelError::NotANumber { .. })));
                assert_eq!(simd::router_topk(&logits, 41, 2, true, &mut ids, &mut weights), expected);
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
