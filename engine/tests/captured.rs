//! Captured tokens on a host device: what is counted of them, and when.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "common/capturing.rs"]
mod capturing;
mod common;

use assay_engine::device::Device;
use assay_engine::device::host::{HostDevice, HostOptions};
use assay_engine::engine::ColdPath;
use assay_engine::residency::{LayerUse, Recorded, ResidencyCounters};
use assay_engine::{Engine, EngineOptions};
use assay_kernels::KvFormat;
use capturing::Capturing;
use common::{INT4, Model, fixture};

const CONTEXT: usize = 200;

/// By captured tokens, with this budget or with every expert resident.
fn captured(model: &Model, budget: Option<u64>) -> Engine<Capturing> {
    let options =
        EngineOptions { cold_path: Some(ColdPath::Multiprocessors), ..model.options(KvFormat::Bf16, CONTEXT) };
    // What a captured token exchanges with the host is no part of a host device's plan.
    let budget = budget.unwrap_or(model.plan(&options).resident_budget(options.max_chunk)) + (1 << 20);
    let device = Capturing::new(HostDevice::new(budget, HostOptions::default()).unwrap());
    Engine::load(device, &model.folder.checkpoint, model.folder.spec.clone(), model.bank.clone(), None, options)
        .unwrap()
}

/// Everything that decode feeds.
type Counted = (ResidencyCounters, Vec<LayerUse>, Option<Vec<Vec<u64>>>, Option<Recorded>);

fn counted<D: Device>(engine: &mut Engine<D>) -> Counted {
    let recorded = engine.take_recorded().map(|(_, recorded)| recorded);
    (engine.take_counters(), engine.take_layer_use(), engine.take_observed(), recorded)
}

fn prompt(from: u32, len: u32) -> Vec<u32> {
    (from..from + len).map(|id| (id * 37 + 5) % 4096).collect()
}

/// One part of a script.
#[derive(Debug, Clone, Copy)]
enum Act {
    Prefill(u32),
    Decode(usize),
    /// A token whose kernels find a NaN.
    Fault,
    Refused,
    Truncate(usize),
    Counters,
    Layers,
    Observe,
    Observed,
    Record,
    Recorded,
}

/// What the script's questions were answered.
fn play<D: Device>(engine: &mut Engine<D>, script: &[Act], fail: impl Fn(&mut Engine<D>, u32)) -> Vec<String> {
    let (mut token, mut answers) = (0, Vec::new());
    for act in script {
        match *act {
            Act::Prefill(len) => token = engine.prefill(&prompt(len, len)).unwrap(),
            Act::Decode(tokens) => {
                for _ in 0..tokens {
                    token = engine.decode(token).unwrap();
                    answers.push(token.to_string());
                }
            }
            Act::Fault => fail(engine, token),
            Act::Refused => assert!(engine.decode(4096).is_err()),
            Act::Truncate(len) => engine.truncate(len),
            Act::Counters => answers.push(format!("{:?}", engine.take_counters())),
            Act::Layers => answers.push(format!("{:?}", engine.take_layer_use())),
            Act::Observe => engine.observe_routes(),
            Act::Observed => answers.push(format!("{:?}", engine.take_observed())),
            Act::Record => engine.record_routes(),
            Act::Recorded => answers.push(format!("{:?}", engine.take_recorded())),
        }
    }
    answers.push(format!("{:?}", counted(engine)));
    answers
}

#[test]
fn nothing_is_lost_or_counted_twice() {
    use Act::*;
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let (mut late, mut at_once) = (captured(&model, None), model.resident(model.options(KvFormat::Bf16, CONTEXT)));
    assert_eq!(late.residents().resident, late.residents().total);
    // Calibration decodes; what it counts is nobody's.
    assert_eq!(counted(&mut late), counted(&mut at_once));
    let scripts: [&[Act]; 7] = [
        &[Prefill(10), Decode(3), Counters, Layers, Decode(2)],
        &[Prefill(10), Decode(1), Layers, Counters, Counters, Layers],
        &[Prefill(10), Decode(2), Observe, Decode(2), Observed, Decode(1), Observe, Decode(1), Prefill(3), Observed],
        &[Prefill(10), Decode(2), Record, Decode(2), Prefill(4), Decode(3), Recorded, Decode(1)],
        &[Record, Observe, Prefill(10), Decode(2), Fault, Decode(2), Fault, Fault, Counters, Decode(1), Recorded],
        &[Record, Prefill(10), Decode(2), Refused, Fault, Prefill(2), Decode(1), Refused, Recorded, Layers],
        &[Record, Decode(2), Truncate(1), Decode(2), Truncate(0), Prefill(5), Decode(1)],
    ];
    for script in scripts {
        late.reset();
        at_once.reset();
        let expected = play(&mut at_once, script, |_, _| ());
        let found = play(&mut late, script, |engine, token| {
            let next = engine.device_mut().replays + 1;
            engine.device_mut().faults_at = [next].into();
            assert!(engine.decode(token).is_err());
        });
        assert_eq!(found, expected, "{script:?}");
    }
}

#[test]
fn what_is_fetched_is_counted_before_the_next_token() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let options = model.options(KvFormat::Bf16, CONTEXT);
    let plan = model.plan(&options);
    let half = (plan.least_budget(options.min_chunk) + plan.resident_budget(options.max_chunk)) / 2;
    let mut engine = captured(&model, Some(half));
    assert!(engine.residents().resident < engine.residents().total);
    let mut resident = model.resident(options);
    engine.record_routes();
    resident.record_routes();
    let tokens = |answers: Vec<String>| answers[..60].to_vec();
    let script = [Act::Prefill(20), Act::Decode(60), Act::Recorded];
    let (found, expected) = (play(&mut engine, &script, |_, _| ()), play(&mut resident, &script, |_, _| ()));
    assert_eq!(tokens(found.clone()), tokens(expected.clone()));
    let recorded = |answer: &str| answer.split_once("Recorded {").unwrap().1.to_owned();
    assert_eq!(recorded(&found[60]), recorded(&expected[60]));
}
