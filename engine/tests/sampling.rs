//! Sampled decode: the device's choice is that of the host from the same logits, and no other engine's state.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::BTreeMap;

use assay_engine::EngineError;
use assay_engine::sampling::Sampling;
use assay_engine::trace::Selection;
use assay_kernels::KvFormat;
use common::{INT4, Model, fixture, sampled};

#[test]
fn a_sampled_token_is_chosen_from_its_logits() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let mut engine = model.resident(model.options(KvFormat::F32, 128));
    let prompt: Vec<u32> = (10..40).collect();
    let all = Sampling { temperature: 1.0, seed: 9, ..Sampling::GREEDY };
    let answer = |engine: &mut _, sampling| sampled(engine, &prompt, &sampling, 16).unwrap();
    let first = answer(&mut engine, all);
    for sampling in [
        Sampling { top_k: 12, ..all },
        Sampling { temperature: 0.6, top_p: 0.8, ..all },
        Sampling { min_p: 0.05, ..all },
        Sampling { temperature: 1e9, ..all },
    ] {
        assert_ne!(answer(&mut engine, sampling), first, "{sampling:?}");
    }
    assert_eq!(answer(&mut engine, all), first);
    assert_ne!(answer(&mut engine, Sampling { seed: 10, ..all }), first);

    // Greedy, said in two ways, is `decode`.
    let mut token = {
        engine.reset();
        engine.prefill(&prompt).unwrap()
    };
    let mut greedy = vec![token];
    while greedy.len() < 16 {
        token = engine.decode(token).unwrap();
        greedy.push(token);
    }
    assert_eq!(answer(&mut engine, Sampling::GREEDY), greedy);
    assert_eq!(answer(&mut engine, Sampling { top_k: 1, ..all }), greedy);
}

#[test]
fn a_sampled_step_is_traced() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let mut engine = model.resident(model.options(KvFormat::F32, 128));
    let sampling = Sampling { temperature: 1.0, seed: 9, ..Sampling::GREEDY };
    let prompt: Vec<u32> = (10..40).collect();
    let expected = sampled(&mut engine, &prompt, &sampling, 2).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    engine.start_trace(Box::new(file.reopen().unwrap()), Selection::default(), BTreeMap::new()).unwrap();
    assert_eq!(sampled(&mut engine, &prompt, &sampling, 2).unwrap(), expected);
    engine.finish_trace().unwrap();
    let trace = std::fs::read_to_string(file.path()).unwrap();
    assert_eq!(trace.lines().filter(|line| line.contains("\"component\":\"sample\"")).count(), 2, "{trace}");
}

#[test]
fn what_means_nothing_is_refused_and_changes_nothing() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let mut engine = model.resident(model.options(KvFormat::F32, 128));
    let cold = Sampling { temperature: -1.0, ..Sampling::GREEDY };
    let warm = Sampling { temperature: 1.0, ..Sampling::GREEDY };
    assert!(matches!(engine.sample(&warm, 0), Err(EngineError::EmptyPrompt)));
    engine.prefill(&[1, 2, 3]).unwrap();
    let message = "sample: temperature is -1, expected a positive number";
    assert_eq!(engine.sample(&cold, 0).unwrap_err().to_string(), message);
    assert_eq!(engine.decode_sampled(4, &cold, 0).unwrap_err().to_string(), message);
    assert_eq!(engine.position(), 3);
    engine.decode_sampled(4, &warm, 0).unwrap();
    assert_eq!(engine.position(), 4);
}
