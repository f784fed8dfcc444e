//! Continued, restored and branched conversations have the bits of fresh ones.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;

use assay_engine::device::host::{HostDevice, HostOptions};
use assay_engine::device::{DeviceError, FaultPlan};
use assay_engine::session::{Pending, Scope, Sessions, Source, Store, StoreOptions};
use assay_engine::{Engine, EngineError};
use assay_kernels::KvFormat;
use common::{INT4, Model, fixture};

const CONTEXT: usize = 700;
const ANSWER: usize = 5;

fn ids(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 97 + seed * 131 + i * i % 61) % 4096).collect()
}

fn store(limit_bytes: u64) -> Arc<Store> {
    Arc::new(Store::with_headroom(StoreOptions { limit_bytes, reserve_bytes: 0 }, Box::new(|| None)))
}

fn engine(model: &Model, kv: KvFormat) -> Engine<HostDevice> {
    let options = model.options(kv, CONTEXT);
    let plan = model.plan(&options);
    let budget = (plan.least_budget(options.min_chunk) + plan.resident_budget(options.max_chunk)) / 2;
    model.load(budget, HostOptions::default(), None, options).unwrap()
}

#[derive(Debug, PartialEq)]
struct Answer {
    tokens: Vec<u32>,
    logits: Vec<Vec<u32>>,
}

fn generate(engine: &mut Engine<HostDevice>, rest: &[u32]) -> Answer {
    let bits = |engine: &mut Engine<HostDevice>| engine.last_logits().unwrap().iter().map(|x| x.to_bits()).collect();
    let mut tokens = vec![engine.prefill(rest).unwrap()];
    let mut logits = vec![bits(engine)];
    while tokens.len() < ANSWER {
        tokens.push(engine.decode(tokens[tokens.len() - 1]).unwrap());
        logits.push(bits(engine));
    }
    Answer { tokens, logits }
}

fn fresh(engine: &mut Engine<HostDevice>, prompt: &[u32]) -> Answer {
    engine.reset();
    generate(engine, prompt)
}

struct Served {
    answer: Answer,
    source: Source,
    reused: usize,
    recomputed: usize,
    pending: Pending,
}

fn serve(engine: &mut Engine<HostDevice>, sessions: &mut Sessions, scope: &Scope, prompt: &[u32]) -> Served {
    let turn = sessions.begin(engine, scope, prompt, usize::MAX).unwrap();
    let (source, reused, recomputed) = (turn.source, turn.reused, turn.recomputed);
    assert_eq!(turn.restored_bytes > 0, source == Source::Restored);
    let answer = generate(engine, turn.rest());
    let pending = sessions.finish(engine, turn).unwrap();
    Served { answer, source, reused, recomputed, pending }
}

/// The next message's prompt.
fn continued(prompt: &[u32], answer: &Answer, message: &[u32]) -> Vec<u32> {
    [prompt, &answer.tokens, message].concat()
}

#[test]
fn every_way_to_continue_has_the_bits_of_a_fresh_start() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    std::thread::scope(|scope| {
        for kv in KvFormat::ALL {
            let model = &model;
            scope.spawn(move || every_way_to_continue(model, kv));
        }
    });
}

fn every_way_to_continue(model: &Model, kv: KvFormat) {
    let (mut engine, mut control) = (engine(model, kv), engine(model, kv));
    let mut sessions = Sessions::new(&engine, "tiny-moe", store(1 << 30));
    let scope = Scope::default();
    for (seed, len) in [1, 2, 15, 127, 128, 129, 300].into_iter().enumerate() {
        let (a, b) = (ids(seed as u32, len), ids(100 + seed as u32, 140));
        let first = serve(&mut engine, &mut sessions, &scope, &a);
        assert_eq!(first.answer, fresh(&mut control, &a), "{len} tokens, fresh");
        let repeat = serve(&mut engine, &mut sessions, &scope, &a);
        assert!(repeat.answer == first.answer && repeat.reused == 0, "nothing was delivered yet");
        drop(repeat.pending);
        first.pending.commit();
        let again = serve(&mut engine, &mut sessions, &scope, &a);
        assert!(again.answer == first.answer && again.reused == len - 1);
        again.pending.commit();
        // On the device, restored, and as a branch of it, whose first message token differs.
        let next = continued(&a, &first.answer, &ids(7, 33));
        let active = serve(&mut engine, &mut sessions, &scope, &next);
        assert_eq!((active.source, active.reused, active.recomputed), (Source::Active, len, ANSWER - 1));
        assert_eq!(active.answer, fresh(&mut control, &next), "{len} tokens, active");
        active.pending.commit();
        serve(&mut engine, &mut sessions, &scope, &b).pending.commit();
        let restored = serve(&mut engine, &mut sessions, &scope, &[&next[..], &[9, 9, 9]].concat());
        assert_eq!((restored.source, restored.reused), (Source::Restored, next.len()));
        assert_eq!(restored.answer, fresh(&mut control, &[&next[..], &[9, 9, 9]].concat()), "{len} tokens, restored");
        restored.pending.commit();
        serve(&mut engine, &mut sessions, &scope, &b).pending.commit();
        let branch = continued(&a, &first.answer, &ids(8, 50));
        let branched = serve(&mut engine, &mut sessions, &scope, &branch);
        assert_eq!(branched.source, Source::Restored);
        assert!(branched.reused >= len);
        assert_eq!(branched.answer, fresh(&mut control, &branch), "{len} tokens, branch");
    }
}

#[test]
fn cancelled_requests_and_other_tenants_change_nothing() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let (mut engine, mut control) = (engine(&model, KvFormat::Bf16), engine(&model, KvFormat::Bf16));
    let mut sessions = Sessions::new(&engine, "tiny-moe", store(1 << 30));
    let (mine, theirs) = (Scope::default(), Scope { tenant: "other".into(), ..Scope::default() });
    let a = ids(1, 200);
    let first = serve(&mut engine, &mut sessions, &mine, &a);
    first.pending.commit();
    let usage = sessions.store().usage();
    let next = continued(&a, &first.answer, &[5, 6, 7]);
    // Cancelled before prefill, in the middle of decode, and while the answer was on its way.
    drop(sessions.begin(&mut engine, &mine, &ids(2, 150), usize::MAX).unwrap());
    let turn = sessions.begin(&mut engine, &mine, &ids(3, 150), usize::MAX).unwrap();
    generate(&mut engine, turn.rest());
    drop(turn);
    let other = serve(&mut engine, &mut sessions, &theirs, &a);
    assert_eq!((other.source, &other.answer), (Source::Fresh, &first.answer), "another tenant's state was used");
    drop(other.pending);
    assert_eq!(sessions.store().usage(), usage);
    let continued = serve(&mut engine, &mut sessions, &mine, &next);
    assert_eq!((continued.source, continued.reused), (Source::Restored, 200));
    assert_eq!(continued.answer, fresh(&mut control, &next));
}

#[test]
fn evicted_state_is_computed_again_and_active_state_needs_no_store() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let (mut engine, mut control) = (engine(&model, KvFormat::Bf16), engine(&model, KvFormat::Bf16));
    let one = engine.split_bytes() as u64 * 2 + 4096;
    let mut sessions = Sessions::new(&engine, "tiny-moe", store(one));
    let scope = Scope::default();
    let (a, b) = (ids(1, 200), ids(2, 200));
    let first = serve(&mut engine, &mut sessions, &scope, &a);
    assert!(first.pending.commit().kept);
    assert!(serve(&mut engine, &mut sessions, &scope, &b).pending.commit().evicted_bytes > 0);
    let again = serve(&mut engine, &mut sessions, &scope, &a);
    assert_eq!((again.source, again.answer), (Source::Fresh, first.answer));
    let (long, message) = (ids(3, 600), [3, 2, 1]);
    let large = serve(&mut engine, &mut sessions, &scope, &long);
    assert!(!large.pending.commit().kept, "more than the limit");
    let next = continued(&long, &large.answer, &message);
    let continued = serve(&mut engine, &mut sessions, &scope, &next);
    assert_eq!((continued.source, continued.reused), (Source::Active, 600));
    assert_eq!(continued.answer, fresh(&mut control, &next));
}

#[test]
fn a_failed_prefill_leaves_what_was_kept() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let (mut engine, mut control) = (engine(&model, KvFormat::Bf16), engine(&model, KvFormat::Bf16));
    let mut sessions = Sessions::new(&engine, "tiny-moe", store(1 << 30));
    let scope = Scope::default();
    let a = ids(1, 200);
    let first = serve(&mut engine, &mut sessions, &scope, &a);
    first.pending.commit();
    let turn = sessions.begin(&mut engine, &scope, &ids(2, 200), usize::MAX).unwrap();
    engine.device_mut().inject(FaultPlan { fail_copy: Some(1), ..FaultPlan::default() });
    engine.prefill(turn.rest()).unwrap_err();
    engine.device_mut().inject(FaultPlan::default());
    let refused = sessions.finish(&mut engine, turn).unwrap_err().to_string();
    assert_eq!(refused, "the engine holds 0 prefilled tokens of the request, expected all 200");
    let next = continued(&a, &first.answer, &[5, 6, 7]);
    let continued = serve(&mut engine, &mut sessions, &scope, &next);
    assert_eq!((continued.source, continued.reused), (Source::Restored, 200));
    assert_eq!(continued.answer, fresh(&mut control, &next));
}

#[test]
fn a_failed_restoration_leaves_no_half_of_it() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let (mut engine, mut control) = (engine(&model, KvFormat::Bf16), engine(&model, KvFormat::Bf16));
    let mut sessions = Sessions::new(&engine, "tiny-moe", store(1 << 30));
    let scope = Scope::default();
    let (a, b) = (ids(1, 300), ids(2, 140));
    let first = serve(&mut engine, &mut sessions, &scope, &a);
    first.pending.commit();
    let next = continued(&a, &first.answer, &ids(7, 33));
    let expected = fresh(&mut control, &next);
    let layers = engine.kv_layouts().count() as u64;
    // Three splits a layer: the first copy, one in the middle of a layer, and the last.
    for copy in [1, 5, 3 * layers] {
        serve(&mut engine, &mut sessions, &scope, &b).pending.commit();
        let usage = sessions.store().usage();
        let turn = sessions.begin(&mut engine, &scope, &next, usize::MAX).unwrap();
        assert_eq!((turn.source, turn.reused), (Source::Restored, 300));
        engine.device_mut().inject(FaultPlan { fail_copy: Some(copy), ..FaultPlan::default() });
        let failed = engine.prefill(turn.rest()).unwrap_err();
        assert!(matches!(failed, EngineError::Device(DeviceError::CopyFailed { .. })), "{failed}");
        assert_eq!((engine.position(), engine.sequence().tokens().len()), (0, 0), "rows that did not all arrive");
        engine.device_mut().inject(FaultPlan::default());
        drop(turn);
        assert_eq!(sessions.store().usage(), usage);
        let again = serve(&mut engine, &mut sessions, &scope, &next);
        assert_eq!((again.source, again.reused), (Source::Restored, 300));
        assert_eq!(again.answer, expected, "after copy {copy} failed");
        drop(again.pending);
    }
}

#[test]
fn a_restoration_that_nobody_waited_for_is_finished_or_forgotten() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let (mut engine, mut control) = (engine(&model, KvFormat::Bf16), engine(&model, KvFormat::Bf16));
    let mut sessions = Sessions::new(&engine, "tiny-moe", store(1 << 30));
    let scope = Scope::default();
    let (a, b) = (ids(1, 300), ids(2, 140));
    serve(&mut engine, &mut sessions, &scope, &a).pending.commit();
    let expected = fresh(&mut control, &[&a[..], &[1, 2]].concat());
    for (fail_copy, source) in [(None, Source::Active), (Some(2), Source::Restored)] {
        serve(&mut engine, &mut sessions, &scope, &b).pending.commit();
        engine.device_mut().inject(FaultPlan { fail_copy, ..FaultPlan::default() });
        // Dropped before its prefill.
        drop(sessions.begin(&mut engine, &scope, &[&a[..], &[9]].concat(), usize::MAX).unwrap());
        let next = [&a[..], &[1, 2]].concat();
        let served = serve(&mut engine, &mut sessions, &scope, &next);
        assert_eq!((served.source, served.reused), (source, 300));
        assert_eq!(served.answer, expected);
        drop(served.pending);
    }
}
