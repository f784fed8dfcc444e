//! Injected faults end in a smaller chunk or a clear error, and the next request works.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use assay_engine::device::FaultPlan;
use assay_engine::device::host::{HostDevice, HostOptions};
use assay_engine::device::{Device, DeviceError};
use assay_engine::{Engine, EngineError};
use assay_kernels::KvFormat;
use common::{INT4, Model, fixture};

const PROMPT: usize = 48;

fn run(engine: &mut Engine<HostDevice>) -> Result<(Vec<u32>, Vec<u32>), EngineError> {
    engine.reset();
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| (i * 97 + 11) % 4096).collect();
    let mut tokens = vec![engine.prefill(&prompt)?];
    for _ in 0..6 {
        tokens.push(engine.decode(tokens[tokens.len() - 1])?);
    }
    let logits = engine.last_logits()?.iter().map(|logit| logit.to_bits()).collect();
    Ok((tokens, logits))
}

/// A model with about half of its experts resident.
fn engine(model: &Model) -> Engine<HostDevice> {
    let options = model.options(KvFormat::Bf16, 96);
    let plan = model.plan(&options);
    let budget = (plan.least_budget(options.min_chunk) + plan.resident_budget(options.max_chunk)) / 2;
    model.load(budget, HostOptions::default(), None, options).unwrap()
}

#[test]
fn every_fault_is_survived() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let expected = run(&mut engine(&model)).unwrap();
    let mut engine = engine(&model);
    run(&mut engine).unwrap();
    let free = engine.device_mut().free_bytes();
    let (mut survived, mut reported) = (0, 0);
    for n in 1..200 {
        for plan in [
            FaultPlan { fail_allocation: Some(n), ..FaultPlan::default() },
            FaultPlan { fail_copy: Some(n), ..FaultPlan::default() },
            FaultPlan { lose_event: Some(n), ..FaultPlan::default() },
        ] {
            if n > 20 && n % 17 != 0 {
                continue;
            }
            engine.device_mut().inject(plan);
            match run(&mut engine) {
                Ok(answer) => {
                    assert!(answer == expected, "{plan:?}");
                    survived += 1;
                }
                Err(EngineError::Device(error)) => {
                    let named = matches!(
                        (plan, &error),
                        (FaultPlan { fail_allocation: Some(_), .. }, DeviceError::OutOfMemory { .. })
                            | (FaultPlan { fail_copy: Some(_), .. }, DeviceError::CopyFailed { .. })
                            | (FaultPlan { lose_event: Some(_), .. }, DeviceError::EventLost { .. })
                    );
                    assert!(named, "{plan:?} gave {error}");
                    reported += 1;
                }
                Err(error) => panic!("{plan:?} gave {error}"),
            }
            engine.device_mut().inject(FaultPlan::default());
            assert!(run(&mut engine).unwrap() == expected, "the request after {plan:?}");
            assert_eq!(engine.device_mut().free_bytes(), free, "bytes leaked after {plan:?}");
        }
    }
    assert!(survived > 0 && reported > 0, "{survived} survived, {reported} reported");
}

#[test]
fn a_failed_allocation_halves_the_chunk() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let mut engine = engine(&model);
    let (chunk, expected) = (engine.chunk(), run(&mut engine).unwrap());
    engine.device_mut().inject(FaultPlan { fail_allocation: Some(2), ..FaultPlan::default() });
    assert!(run(&mut engine).unwrap() == expected);
    assert_eq!(engine.chunk(), chunk / 2);
}

#[test]
fn bad_requests_are_refused_and_change_nothing() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let mut engine = engine(&model);
    let refused = |result: Result<u32, EngineError>| result.unwrap_err().to_string();
    assert_eq!(refused(engine.prefill(&[])), "an empty prompt: at least one token is needed");
    assert_eq!(refused(engine.prefill(&[1, 4096])), "token id 4096 at index 1: the vocabulary has 4096");
    assert_eq!(refused(engine.prefill(&[1; 97])), "97 tokens after 0 exceed the context of 96 tokens");
    engine.prefill(&[1; 96]).unwrap();
    assert_eq!(refused(engine.decode(1)), "1 tokens after 96 exceed the context of 96 tokens");
    assert_eq!(engine.position(), 96);
}
