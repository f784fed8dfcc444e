//! Captured tokens on a host device: what is counted of them and when, and what one token ahead changes: nothing.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "common/capturing.rs"]
mod capturing;
mod common;
#[path = "common/script.rs"]
mod script;

use std::time::Duration;

use assay_engine::device::Device;
use assay_engine::device::host::{HostDevice, HostOptions};
use assay_engine::engine::ColdPath;
use assay_engine::residency::{LayerHits, ResidencyCounters};
use assay_engine::{Engine, EngineError, EngineOptions};
use assay_kernels::KvFormat;
use capturing::Capturing;
use common::{INT4, Model, fixture, poisoned};
use script::{Act, CONTEXT, POISONABLE, POISONED, SCRIPTS, Vocabulary, counted, overflowing_ahead, play};

/// Of tiny-moe.
const VOCABULARY: Vocabulary = Vocabulary { size: 4096, absent: u32::MAX };

/// By captured tokens, with this budget or with every expert resident.
fn captured(model: &Model, budget: Option<u64>) -> Engine<Capturing> {
    let options = model.options(KvFormat::Bf16, CONTEXT);
    with(model, budget, EngineOptions { cold_path: Some(ColdPath::Multiprocessors), ..options })
}

fn with(model: &Model, budget: Option<u64>, options: EngineOptions) -> Engine<Capturing> {
    try_with(model, budget, options).unwrap()
}

fn try_with(model: &Model, budget: Option<u64>, options: EngineOptions) -> Result<Engine<Capturing>, EngineError> {
    load(capturing(model, budget, &options), model, options)
}

fn capturing(model: &Model, budget: Option<u64>, options: &EngineOptions) -> Capturing {
    // What a captured token exchanges with the host is no part of a host device's plan.
    let budget = budget.unwrap_or(model.plan(options).resident_budget(options.max_chunk)) + (1 << 20);
    Capturing::new(HostDevice::new(budget, HostOptions::default()).unwrap())
}

fn load(device: Capturing, model: &Model, options: EngineOptions) -> Result<Engine<Capturing>, EngineError> {
    Engine::load(device, &model.folder.checkpoint, model.folder.spec.clone(), model.bank.clone(), None, options)
}

#[test]
fn nothing_is_lost_or_counted_twice() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let (mut late, mut at_once) = (captured(&model, None), model.resident(model.options(KvFormat::Bf16, CONTEXT)));
    let mut ahead = captured(&model, None);
    assert_eq!(late.residents().resident, late.residents().total);
    // Calibration decodes; what it counts is nobody's.
    let nothing = counted(&mut at_once);
    assert_eq!(counted(&mut late), nothing);
    assert_eq!(counted(&mut ahead), nothing);
    for script in SCRIPTS {
        late.reset();
        ahead.reset();
        at_once.reset();
        let expected = play(&mut at_once, (VOCABULARY, script), false, |_, _| ());
        let found = play(&mut late, (VOCABULARY, script), false, |engine, token| {
            let replays = engine.device_mut().replays;
            engine.device_mut().faults_at = [replays + 1].into();
            assert!(engine.decode(token).is_err());
        });
        assert_eq!(found, expected, "{script:?}");
        let found = play(&mut ahead, (VOCABULARY, script), true, |engine, token| {
            let replays = engine.device_mut().replays;
            // Itself, the one ahead of it, itself alone.
            engine.device_mut().faults_at = [replays + 1, replays + 3].into();
            assert!(engine.decode_ahead(token, true).is_err());
        });
        assert_eq!(found, expected, "one token ahead, {script:?}");
    }
}

#[test]
fn what_calibration_decodes_is_nobody_s() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let options = EngineOptions { cold_path: None, ..model.options(KvFormat::Bf16, CONTEXT) };
    let mut engine = with(&model, None, options);
    let (counters, layers, ..) = counted(&mut engine);
    assert_eq!(counters, ResidencyCounters::default());
    assert!(layers.iter().all(|layer| layer.hits == LayerHits::default()), "{layers:?}");
}

#[test]
fn what_overflows_ahead_is_said_of_its_token() {
    for name in POISONABLE {
        for quick in [false, true] {
            overflowing_ahead(name, |model| {
                let mut engine = captured(model, None);
                engine.device_mut().quick = quick;
                engine
            });
        }
    }
}

/// What a device is asked for during `work`.
fn log(engine: &mut Engine<Capturing>, work: impl FnOnce(&mut Engine<Capturing>)) -> String {
    engine.device_mut().log.clear();
    work(engine);
    std::mem::take(&mut engine.device_mut().log)
}

#[test]
fn the_next_token_is_queued_before_this_one_is_waited_for() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let mut engine = captured(&model, None);
    let mut token = engine.prefill(&VOCABULARY.prompt(0, 10)).unwrap();
    let four = log(&mut engine, |engine| (0..4).for_each(|i| token = engine.decode_ahead(token, i < 3).unwrap()));
    assert_eq!(four, "qqwqwqww");
    assert_eq!(log(&mut engine, |engine| token = engine.decode(token).unwrap()), "qw");
    // Who does not want it waits for it, once.
    let unwanted = log(&mut engine, |engine| {
        token = engine.decode_ahead(token, true).unwrap();
        engine.truncate(5);
        engine.prefill(&[1, 2]).unwrap();
        engine.last_logits().unwrap();
    });
    assert_eq!(unwanted, "qqwd");
    // Whose logits it has overwritten is computed again, once.
    token = engine.decode(token).unwrap();
    let asked = log(&mut engine, |engine| {
        engine.decode_ahead(token, true).unwrap();
        assert_eq!(engine.last_logits().unwrap(), engine.last_logits().unwrap());
    });
    assert_eq!(asked, "qqwdqw");
    // Never past the context, nor where there is something to be fetched.
    engine.reset();
    token = engine.prefill(&VOCABULARY.prompt(0, 198)).unwrap();
    assert_eq!(
        log(&mut engine, |engine| (0..2).for_each(|_| token = engine.decode_ahead(token, true).unwrap())),
        "qqww"
    );
    let plan = model.plan(engine.options());
    let mut engine = captured(&model, Some((plan.least_budget(8) + plan.resident_budget(64)) / 2));
    assert!(engine.residents().resident < engine.residents().total);
    assert_eq!(
        log(&mut engine, |engine| (0..2).for_each(|_| token = engine.decode_ahead(token, true).unwrap())),
        "qwqw"
    );
}

#[test]
fn what_is_wrong_with_a_token_ahead_is_said_when_it_is_decoded() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let (mut engine, mut expected) = (captured(&model, None), model.resident(model.options(KvFormat::Bf16, CONTEXT)));
    let first = expected.prefill(&VOCABULARY.prompt(0, 10)).unwrap();
    let mut tokens = vec![first];
    (0..4).for_each(|i| tokens.push(expected.decode(tokens[i]).unwrap()));
    engine.prefill(&VOCABULARY.prompt(0, 10)).unwrap();
    let replays = engine.device_mut().replays;
    // The one ahead; then, when it is decoded, itself and once more alone.
    engine.device_mut().faults_at = [replays + 2, replays + 4, replays + 6].into();
    assert_eq!(engine.decode_ahead(tokens[0], true).unwrap(), tokens[1]);
    assert!(engine.decode_ahead(tokens[1], true).is_err());
    assert_eq!(engine.position(), 11);
    assert_eq!(engine.decode_ahead(tokens[1], true).unwrap(), tokens[2]);
    assert_eq!(engine.decode_ahead(tokens[2], true).unwrap(), tokens[3]);
    // Not wanted: not said.
    let replays = engine.device_mut().replays;
    engine.device_mut().faults_at = [replays + 2].into();
    assert_eq!(engine.decode_ahead(tokens[3], true).unwrap(), tokens[4]);
    engine.truncate(10);
    assert_eq!(engine.decode(first).unwrap(), tokens[1]);
    // Four tokens, and the first of them again.
    assert_eq!(engine.take_counters().hits, expected.take_counters().hits / 4 * 5);
}

#[test]
fn what_is_fetched_is_counted_before_the_next_token() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let options = model.options(KvFormat::Bf16, CONTEXT);
    let half = half(&model, &options);
    let mut engine = captured(&model, Some(half));
    assert!(engine.residents().resident < engine.residents().total);
    let mut resident = model.resident(options);
    engine.record_routes();
    resident.record_routes();
    let tokens = |answers: Vec<String>| answers[..60].to_vec();
    let script = [Act::Prefill(20), Act::Decode(60), Act::Recorded];
    let (found, expected) = (
        play(&mut engine, (VOCABULARY, &script), true, |_, _| ()),
        play(&mut resident, (VOCABULARY, &script), true, |_, _| ()),
    );
    assert_eq!(tokens(found.clone()), tokens(expected.clone()));
    let recorded = |answer: &str| answer.split_once("Recorded {").unwrap().1.to_owned();
    assert_eq!(recorded(&found[60]), recorded(&expected[60]));
}

#[test]
fn families_with_a_token_that_overflows_have_the_same_answers() {
    for name in POISONABLE {
        let (model, _folder) = poisoned(name, POISONED);
        let vocabulary = Vocabulary { size: model.folder.spec.vocab_size as u32, absent: POISONED };
        let mut host = model.resident(model.options(KvFormat::Bf16, CONTEXT));
        let (mut late, mut ahead) = (captured(&model, None), captured(&model, None));
        counted(&mut host);
        let _ = [&mut late, &mut ahead].map(counted);
        for script in SCRIPTS {
            host.reset();
            let expected = play(&mut host, (vocabulary, script), false, |engine, _| {
                assert!(engine.decode(POISONED).is_err());
            });
            for (engine, more) in [(&mut late, false), (&mut ahead, true)] {
                engine.reset();
                let found = play(engine, (vocabulary, script), more, |engine, _| {
                    assert!(engine.decode_ahead(POISONED, more).is_err());
                });
                assert_eq!(found, expected, "{name}, more {more}, {script:?}");
            }
        }
    }
}

/// A budget for some of the experts.
fn half(model: &Model, options: &EngineOptions) -> u64 {
    let plan = model.plan(options);
    (plan.least_budget(options.min_chunk) + plan.resident_budget(options.max_chunk)) / 2
}

/// 60 tokens, and the bits of the logits after them.
fn answered<D: Device>(engine: &mut Engine<D>) -> (Vec<u32>, Vec<u32>) {
    let mut tokens = vec![engine.prefill(&VOCABULARY.prompt(20, 20)).unwrap()];
    (0..60).for_each(|i| tokens.push(engine.decode(tokens[i]).unwrap()));
    (tokens, engine.last_logits().unwrap().into_iter().map(f32::to_bits).collect())
}

#[test]
fn what_the_host_computes_is_half_of_what_is_cold_and_changes_no_bit() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let options = EngineOptions { cold_path: Some(ColdPath::WithHost), ..model.options(KvFormat::Bf16, CONTEXT) };
    let half = half(&model, &options);
    let expected = answered(&mut model.resident(model.options(KvFormat::Bf16, CONTEXT)));
    for (budget, computes) in [(Some(half), true), (None, false)] {
        let mut engine = with(&model, budget, options.clone());
        let (counters, before) = (engine.take_counters(), engine.link().by_host);
        assert_eq!(counters, ResidencyCounters::default());
        assert_eq!(answered(&mut engine), expected);
        let (misses, by_host) = (engine.take_counters().misses, engine.link().by_host - before);
        // Rounded up in each layer.
        assert_eq!((misses > 0, by_host > 0), (computes, computes));
        assert!(2 * by_host >= misses && by_host <= misses, "{by_host} of {misses}");
    }
    let refused = try_with(&model, Some(half), EngineOptions { host_threads: 0, ..options });
    let error = refused.map(|_| ()).unwrap_err().to_string();
    assert_eq!(error, "cold_path is with_host, expected another on this device");
}

#[test]
fn a_team_is_hired_only_where_something_is_cold_and_kept_only_where_it_pays() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let options = EngineOptions { cold_path: None, ..model.options(KvFormat::Bf16, CONTEXT) };
    let half = half(&model, &options);
    for (budget, threads) in [(Some(half), 3), (Some(half), 0), (None, 3)] {
        let mut engine = with(&model, budget, EngineOptions { host_threads: threads, ..options.clone() });
        let hired = engine.device_mut().team.is_some();
        assert_eq!((hired, engine.sharing().is_some()), (hired, hired));
        assert_eq!(hired, engine.cold_path() == ColdPath::WithHost);
        assert!(!hired || (budget.is_some() && threads > 0));
        if let Some(sharing) = engine.sharing() {
            assert!(sharing.token < sharing.without);
            assert_eq!(sharing.by_host.len(), sharing.host.len() + 1);
            assert!(sharing.by_host.iter().enumerate().all(|(cold, &host)| host as usize <= cold));
        }
    }
}

#[test]
fn a_host_that_becomes_slow_is_done_without() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let options = model.options(KvFormat::Bf16, CONTEXT);
    let options = EngineOptions { cold_path: None, host_threads: 3, max_resident_share: 0.0, ..options };
    let expected = answered(&mut model.resident(model.options(KvFormat::Bf16, CONTEXT)));
    // At startup it pays.
    let mut device = capturing(&model, None, &options);
    device.fetch_takes = Duration::from_millis(1);
    let mut engine = load(device, &model, options).unwrap();
    let kept = |engine: &Engine<Capturing>| engine.sharing().is_some_and(|sharing| sharing.given_up.is_none());
    for _ in 0..3 {
        engine.reset();
        assert_eq!(answered(&mut engine), expected);
    }
    assert!(kept(&engine) && engine.cold_path() == ColdPath::WithHost);
    engine.device_mut().host_takes = Duration::from_secs(1);
    let by_host = engine.link().by_host;
    while kept(&engine) {
        engine.reset();
        assert_eq!(answered(&mut engine), expected);
        assert!(engine.link().by_host < by_host + 10_000, "the host is still asked");
    }
    let given_up = engine.sharing().unwrap().given_up.unwrap();
    assert!(
        given_up.tokens.is_multiple_of(32) && given_up.host > given_up.link && given_up.link > Duration::ZERO,
        "{given_up:?}"
    );
    assert_eq!((engine.cold_path(), engine.device_mut().team.is_some()), (ColdPath::Multiprocessors, false));
    let by_host = engine.link().by_host;
    engine.reset();
    assert_eq!(answered(&mut engine), expected);
    assert_eq!(engine.link().by_host, by_host);
}

#[test]
fn a_silent_host_is_said_once_and_done_without() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let options = EngineOptions { cold_path: Some(ColdPath::WithHost), ..model.options(KvFormat::Bf16, CONTEXT) };
    let half = half(&model, &options);
    let expected = answered(&mut model.resident(model.options(KvFormat::Bf16, CONTEXT)));
    let mut engine = with(&model, Some(half), options);
    let first = engine.prefill(&VOCABULARY.prompt(20, 20)).unwrap();
    engine.device_mut().silent = true;
    let error = engine.decode(first).unwrap_err().to_string();
    assert!(error.contains("the host's threads have not computed the experts of MoE layer 0"), "{error}");
    assert_eq!((engine.cold_path(), engine.device_mut().team.is_some()), (ColdPath::Multiprocessors, false));
    assert_eq!(engine.decode(first).unwrap(), expected.0[1]);
    engine.reset();
    let by_host = engine.link().by_host;
    assert_eq!(answered(&mut engine), expected);
    assert_eq!(engine.link().by_host, by_host);
}
