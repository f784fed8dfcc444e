use crate::common::{Random, Weights, check};
use assay_kernels::layout::MatrixFormat::{self, Bf16, Int4, Int8};
use assay_kernels::{Activation, GateUp, KernelError, Projection, simd, twin};

/// gpt-oss's alpha, and a limit that many of the operands pass.
const CLAMPED: Activation = Activation::ClampedSwiGlu { alpha: 1.702, limit: 2.0 };

/// How tokens choose experts.
#[derive(Debug, Clone, Copy)]
enum Routing {
    Even,
    AllOnOne,
    /// Only the even experts; the odd ones have no weights.
    Half,
}

fn biased<'a>(weights: &'a Weights, bias: Option<&'a [f32]>) -> Projection<'a> {
    Projection { weight: weights.matrix(), bias: bias.map(|bias| &bias[..weights.rows]) }
}

struct Case {
    tokens: usize,
    top_k: usize,
    num_experts: usize,
    hidden: usize,
    intermediate: usize,
}

impl Case {
    fn ids(&self, random: &mut Random, routing: Routing) -> Vec<u32> {
        let mut ids = Vec::new();
        for _ in 0..self.tokens {
            let first = random.below(self.num_experts);
            for rank in 0..self.top_k {
                let expert = match routing {
                    Routing::Even => (first + rank * 7) % self.num_experts,
                    Routing::AllOnOne => self.num_experts - 1,
                    Routing::Half => (first + rank) % self.num_experts / 2 * 2,
                };
                ids.push(expert as u32);
            }
        }
        ids
    }

    fn run(&self, format: MatrixFormat, routing: Routing, activation: Activation) {
        let Case { tokens, top_k, num_experts, hidden, intermediate } = *self;
        let mut random = Random((tokens * 31 + hidden) as u64);
        let slots = tokens * top_k;
        let ids = self.ids(&mut random, routing);
        let (mut order, mut offsets) = (vec![u32::MAX; slots], vec![u32::MAX; num_experts + 1]);
        twin::permute(&ids, num_experts, &mut order, &mut offsets).unwrap();
        let mut bank = |rows, cols| -> Vec<Weights> {
            (0..num_experts).map(|_| Weights::random(&mut random, format, rows, cols)).collect()
        };
        let (gate, up, down) = (bank(intermediate, hidden), bank(intermediate, hidden), bank(hidden, intermediate));
        // The clamped form comes with biases, as in the one family that has both.
        let (inner, outer) = (random.floats(intermediate + 1), random.floats(hidden));
        let with_bias = activation != Activation::SwiGlu;
        let inner = with_bias.then_some(&inner[..]);
        let outer = with_bias.then_some(&outer[..]);
        let here = |expert: usize| !matches!(routing, Routing::Half) || expert.is_multiple_of(2);
        let gate_up: Vec<Option<GateUp<'_>>> = (0..num_experts)
            .map(|e| {
                here(e)
                    .then(|| GateUp { gate: biased(&gate[e], inner), up: biased(&up[e], inner.map(|bias| &bias[1..])) })
            })
            .collect();
        let down: Vec<Option<Projection<'_>>> =
            (0..num_experts).map(|e| here(e).then(|| biased(&down[e], outer))).collect();
        let x = random.floats(tokens * hidden);
        let weights = random.floats(slots);
        let what = format!(
            "{format:?} {routing:?} {activation:?} tokens {tokens} top {top_k} hidden {hidden} inner {intermediate}"
        );

        let mut act = vec![f32::NAN; slots * intermediate];
        twin::grouped_gate_up(&x, top_k, &order, &offsets, &gate_up, activation, &mut act).unwrap();
        check(&format!("grouped_gate_up {what}"), &act, |out| {
            simd::grouped_gate_up(&x, top_k, &order, &offsets, &gate_up, activation, out).unwrap();
        });
        let mut rows = vec![f32::NAN; slots * hidden];
        twin::grouped_down(&act, &order, &offsets, &down, &mut rows).unwrap();
        check(&format!("grouped_down {what}"), &rows, |out| {
            simd::grouped_down(&act, &order, &offsets, &down, out).unwrap();
        });
        let mut sum = vec![f32::NAN; tokens * hidden];
        twin::combine(&rows, &weights, top_k, &mut sum).unwrap();
        check(&format!("combine {what}"), &sum, |out| simd::combine(&rows, &weights, top_k, out).unwrap());
    }
}

#[test]
fn routed_products() {
    for format in MatrixFormat::ALL {
        for routing in [Routing::Even, Routing::AllOnOne, Routing::Half] {
            for (tokens, top_k, num_experts, hidden, intermediate) in [
                (1, 4, 32, 256, 128),
                (1, 1, 2, 1, 31),
                (2, 2, 9, 130, 33),
                (17, 3, 5, 96, 20),
                (33, 8, 8, 127, 48),
                (70, 4, 32, 40, 130),
                (200, 2, 3, 36, 17),
            ] {
                Case { tokens, top_k, num_experts, hidden, intermediate }.run(format, routing, Activation::SwiGlu);
                Case { tokens, top_k, num_experts, hidden, intermediate }.run(format, routing, CLAMPED);
            }
        }
    }
}

#[test]
fn no_tokens_are_no_work() {
    let (order, offsets) = ([], [0, 0, 0]);
    simd::grouped_gate_up(&[], 4, &order, &offsets, &[None, None], CLAMPED, &mut []).unwrap();
    simd::grouped_down(&[], &order, &offsets, &[None, None], &mut []).unwrap();
    simd::combine(&[], &[], 4, &mut []).unwrap();
}

#[test]
fn gate_and_up_may_differ_in_format() {
    let mut random = Random(5);
    for (gate, up, tokens) in [(Int4, Bf16, 1), (Int4, Bf16, 2), (Int8, Int4, 1), (Bf16, Int8, 5)] {
        let gate = Weights::random(&mut random, gate, 40, 130);
        let up = Weights::random(&mut random, up, 40, 130);
        let experts = [Some(GateUp { gate: gate.matrix().into(), up: up.matrix().into() })];
        let x = random.floats(tokens * 130);
        let order: Vec<u32> = (0..tokens as u32).rev().collect();
        let offsets = [0, tokens as u32];
        let mut expected = vec![f32::NAN; tokens * 40];
        twin::grouped_gate_up(&x, 1, &order, &offsets, &experts, CLAMPED, &mut expected).unwrap();
        check("mixed formats", &expected, |out| {
            simd::grouped_gate_up(&x, 1, &order, &offsets, &experts, CLAMPED, out).unwrap();
        });
    }
}

#[test]
fn a_used_expert_without_weights_and_a_broken_order_are_refused() {
    let down = Weights::random(&mut Random(1), Bf16, 16, 8);
    let experts = [Some(down.matrix().into()), None];
    let run = |order: &[u32], offsets: &[u32]| {
        let (act, mut out) = (vec![1.0; 8 * order.len()], vec![0.0; 16 * order.len()]);
        let found = simd::grouped_down(&act, order, offsets, &experts, &mut out).unwrap_err();
        assert_eq!(found, twin::grouped_down(&act, order, offsets, &experts, &mut out).unwrap_err());
        found
    };
    let missing = KernelError::MissingExpert { kernel: "grouped_down", expert: 1, slots: 2 };
    assert_eq!(run(&[0, 2, 1], &[0, 1, 3]), missing);
    assert_eq!(missing.to_string(), "grouped_down: expert 1 has 2 slots but no weights");
    let short = [Some(Projection { weight: down.matrix(), bias: Some(&[0.0; 15]) })];
    let error = simd::grouped_down(&[1.0; 8], &[0], &[0, 1], &short, &mut [0.0; 16]).unwrap_err();
    assert_eq!(error.to_string(), "grouped_down: bias of an expert is 15, expected 16");
    assert!(matches!(run(&[0, 0], &[0, 2, 2]), KernelError::Geometry { found: 0, .. }));
    assert!(matches!(run(&[0, 2], &[0, 2, 2]), KernelError::Index { index: 2, limit: 2, .. }));
    assert!(matches!(run(&[0, 1], &[0, 3, 2]), KernelError::Index { .. }));
    assert!(matches!(run(&[0, 1], &[1, 2, 2]), KernelError::Shape { .. }));
}
