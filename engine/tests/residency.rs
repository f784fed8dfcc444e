//! Residency never changes a bit: budgets, policies, chunks, heatmaps and schedules move bytes, not answers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::OnceLock;

use assay_engine::device::host::{HostDevice, HostOptions, Schedule};
use assay_engine::expert_cache::Encoding;
use assay_engine::residency::{Heatmap, HeatmapIdentity, PolicyKind};
use assay_engine::{Engine, EngineError, EngineOptions};
use assay_kernels::KvFormat;
use common::{INT4, Model, fixture};
use proptest::prelude::*;

const CONTEXT: usize = 160;
const PROMPT: usize = 97;
const ANSWER: usize = 12;

fn model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| Model::open(&fixture("tiny-moe"), INT4))
}

/// A model of its own for the test that takes the bank's pages away: other tests would find them gone.
fn guarded_model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| Model::open(&fixture("tiny-moe"), INT4))
}

fn prompt() -> Vec<u32> {
    let text = std::fs::read(fixture("tiny-moe").join("reference.json")).unwrap();
    let reference: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let ids = reference["prompts"][0]["input_token_ids"].as_array().unwrap();
    ids.iter().take(PROMPT).map(|id| id.as_u64().unwrap() as u32).collect()
}

fn heatmap() -> Heatmap {
    let sizes = model().plan(&model().options(KvFormat::Bf16, CONTEXT)).sizes;
    let counts = (0..sizes.moe_layers)
        .map(|layer| (0..sizes.num_experts).map(|expert| ((expert * 31 + layer * 7) % 17) as u64).collect())
        .collect();
    let text = |text: &str| text.to_owned();
    let identity = HeatmapIdentity {
        checkpoint_sha256: text("test"),
        experts: text("int4"),
        attention: text("bf16"),
        dense: text("bf16"),
        kv: text("bf16"),
    };
    Heatmap::new(identity, Vec::new(), 1, counts)
}

/// Tokens, and the bits of the complete logits of every prompt position and every step.
#[derive(PartialEq, Eq)]
struct Answer {
    tokens: Vec<u32>,
    logits: Vec<Vec<u32>>,
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// The prompt in the given pieces, then greedy tokens.
fn answer(engine: &mut Engine<HostDevice>, pieces: &[usize]) -> Result<Answer, EngineError> {
    let common::Answer { tokens, logits } = common::answer(engine, &prompt(), pieces, ANSWER)?;
    Ok(Answer { tokens, logits: logits.iter().map(|row| bits(row)).collect() })
}

/// The answer of an engine that holds every expert and takes the prompt at once, for each KV format.
fn expected(kv: KvFormat) -> &'static Answer {
    static ANSWERS: [OnceLock<Answer>; 2] = [OnceLock::new(), OnceLock::new()];
    let index = usize::from(kv == KvFormat::Bf16);
    ANSWERS[index].get_or_init(|| {
        let options = EngineOptions { max_chunk: CONTEXT, ..model().options(kv, CONTEXT) };
        answer(&mut model().resident(options), &[]).unwrap()
    })
}

fn assert_same(found: &Answer, expected: &Answer) {
    assert_eq!(found.tokens, expected.tokens, "tokens");
    assert_eq!(found.logits.len(), expected.logits.len(), "steps");
    for (step, (found, expected)) in found.logits.iter().zip(&expected.logits).enumerate() {
        let differing = found.iter().zip(expected).filter(|(a, b)| a != b).count();
        assert_eq!(differing, 0, "step {step}: logits with other bits");
    }
}

fn schedules() -> impl Strategy<Value = Schedule> {
    prop_oneof![
        Just(Schedule::ProgramOrder),
        Just(Schedule::CopiesLate),
        Just(Schedule::CopiesEarly),
        any::<u64>().prop_map(Schedule::Shuffled),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_budget_policy_chunk_heatmap_or_schedule_changes_a_bit(
        share in 0.0f64..=1.0,
        extra in 0u64..4096,
        max_resident_share in prop_oneof![Just(1.0), 0.0f64..=1.0],
        max_chunk in 8usize..=CONTEXT,
        layers_per_group in 1usize..=5,
        promotions_per_token in 0usize..=8,
        policy in prop::sample::select(PolicyKind::ALL.to_vec()),
        with_heatmap in any::<bool>(),
        schedule in schedules(),
        pieces in prop::collection::vec(1usize..60, 0..5),
        f32_kv in any::<bool>(),
    ) {
        let kv = if f32_kv { KvFormat::F32 } else { KvFormat::Bf16 };
        let options = EngineOptions {
            max_chunk,
            layers_per_group,
            promotions_per_token,
            policy,
            max_resident_share,
            ..model().options(kv, CONTEXT)
        };
        let plan = model().plan(&options);
        let (least, most) = (plan.least_budget(options.min_chunk), plan.resident_budget(max_chunk));
        let budget = least + ((most.saturating_sub(least)) as f64 * share) as u64 + extra;
        let host = HostOptions { schedule, poison_fresh: true, ..HostOptions::default() };
        let heatmap = with_heatmap.then(heatmap);
        let model = guarded_model();
        let mut engine = model.load(budget, host, heatmap.as_ref(), options).unwrap();
        engine.device_mut().guard(model.bank.clone());
        assert_same(&answer(&mut engine, &pieces).unwrap(), expected(kv));
        // A second request finds whatever the first has left.
        assert_same(&answer(&mut engine, &pieces).unwrap(), expected(kv));
    }
}

#[test]
fn token_by_token_equals_the_whole_prompt() {
    let mut engine = model().resident(model().options(KvFormat::Bf16, CONTEXT));
    assert_same(&answer(&mut engine, &[1; PROMPT]).unwrap(), expected(KvFormat::Bf16));
}

#[test]
fn the_least_budget_fits_and_one_byte_less_is_refused() {
    for kv in [KvFormat::F32, KvFormat::Bf16] {
        let options = EngineOptions { margin_bytes: 4321, ..model().options(kv, CONTEXT) };
        let needed = model().plan(&options).least_budget(options.min_chunk);
        let mut engine = model().load(needed, HostOptions::default(), None, options.clone()).unwrap();
        assert_same(&answer(&mut engine, &[]).unwrap(), expected(kv));
        let full: Vec<u32> = prompt().into_iter().cycle().take(CONTEXT).collect();
        engine.reset();
        engine.prefill(&full).unwrap();
        let low_water = engine.low_water();
        assert_eq!(engine.calibration().unwrap().hard_experts, 0);
        assert!(low_water.prefill.unwrap() >= 4321, "{low_water:?}");
        match model().load(needed - 1, HostOptions::default(), None, options) {
            Err(EngineError::BudgetTooSmall { budget, needed: said, .. }) => {
                assert_eq!((budget, said), (needed - 1, needed));
            }
            other => panic!("one byte less gave {:?}", other.err()),
        }
    }
}

#[test]
fn the_margin_is_kept_in_every_phase() {
    let margin = 300_000;
    let options = EngineOptions { margin_bytes: margin, ..model().options(KvFormat::Bf16, CONTEXT) };
    let plan = model().plan(&options);
    let least = plan.least_budget(options.min_chunk);
    for extra in [0, 500_000, 1_500_000, 4_000_000, 9_000_000] {
        let mut engine = model().load(least + extra, HostOptions::default(), None, options.clone()).unwrap();
        answer(&mut engine, &[]).unwrap();
        let marks = engine.low_water();
        for mark in [marks.startup, marks.calibration, marks.prefill, marks.decode, marks.restore] {
            assert!(mark.unwrap() >= margin, "{extra} bytes over the least: {marks:?}");
        }
        let residents = engine.residents();
        if residents.resident < residents.total && extra > 0 {
            // What is not needed is used: less than one expert's slot is left over.
            let unused = marks.restore.unwrap() - margin;
            assert!(unused < plan.slot_bytes(), "{unused} bytes unused: {marks:?} {residents:?}");
        }
    }
}

/// One model of each kind of feed-forward part: plain experts; a gated shared expert; a dense layer, groups and an ungated shared
/// expert; biases and the clamped activation. Each in both formats, resident against hardly anything resident.
#[test]
fn every_kind_of_layer_under_pressure_equals_the_resident_one() {
    for name in ["qwen3_moe-a", "qwen2_moe", "glm4_moe", "gpt_oss-b"] {
        for encoding in [Encoding::Bf16, INT4] {
            let model = Model::open(&fixture("families").join(name), encoding);
            let options = model.options(KvFormat::F32, 200);
            let vocab = model.folder.spec.vocab_size as u32;
            let tokens: Vec<u32> = (0..150).map(|i| (i * 37 + 5) % vocab).collect();
            let run = |engine: &mut Engine<HostDevice>, pieces: &[usize]| {
                let (mut all, mut token, mut rest) = (Vec::new(), 0, tokens.as_slice());
                for &piece in pieces {
                    let (now, later) = rest.split_at(piece);
                    token = engine
                        .prefill_logits(now, 0, &mut |_, row| {
                            all.push(bits(row));
                            Ok(())
                        })
                        .unwrap();
                    rest = later;
                }
                for _ in 0..8 {
                    token = engine.decode(token).unwrap();
                    all.push(bits(&engine.last_logits().unwrap()));
                }
                all
            };
            let expected = run(&mut model.resident(options.clone()), &[150]);
            // Models this small would fit into what prefill gives back, so decode may keep hardly any of it.
            let options = EngineOptions { max_resident_share: 0.1, ..options };
            let least = model.plan(&options).least_budget(options.min_chunk);
            let host = HostOptions { schedule: Schedule::Shuffled(7), poison_fresh: true, ..HostOptions::default() };
            let mut tight = model.load(least, host, None, options).unwrap();
            assert!(run(&mut tight, &[61, 1, 88]) == expected, "{name} in {encoding}");
            assert!(tight.take_counters().misses > 0, "{name} in {encoding}");
        }
    }
}
