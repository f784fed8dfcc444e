//! Kept rows on their way to the GPU and back.

use std::sync::Arc;

use assay_engine::device::cuda::CudaDevice;
use assay_engine::device::{Device, DeviceError, FaultPlan, Span, Upload};
use assay_engine::session::{Scope, Sessions, Source, Store, StoreOptions};
use assay_engine::{Engine, EngineError};
use assay_kernels::KvFormat;
use libtest_mimic::{Failed, Trial};

use super::common::{INT4, Model, fixture};
use super::support::{Answer, on_cuda, prompt, resident_arena, same};

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("sessions::copies of any length come back as they were", copies),
        Trial::test("sessions::a failed restoration leaves no half of it", failed_restoration),
    ]
}

/// Bytes that say where they are.
fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 7) as u8).collect()
}

fn copies() -> Result<(), Failed> {
    const GROUPS: [&[usize]; 5] =
        [&[1, 255, 4096], &[], &[262_144, 262_143, 262_145], &[5 << 20, 3], &[64, 9 << 20, 1 << 20]];
    let mut device = CudaDevice::with_arena(0, 64 << 20)?;
    let buffer = device.allocate(48 << 20, "copies of a trial")?;
    for round in 0..20 {
        let (mut at, mut groups, mut expected) = (buffer.address(), Vec::new(), Vec::new());
        for lens in GROUPS {
            let mut uploads = Vec::new();
            for &len in lens {
                let bytes = pattern(round + expected.len(), len + 7);
                let to = Span::<u8>::new(at, len);
                expected.push((to, bytes[3..3 + len].to_vec()));
                uploads.push(Upload { source: Arc::new(bytes), range: 3..3 + len, to });
                at += len.next_multiple_of(256) as u64;
            }
            groups.push(uploads);
        }
        device.begin_uploads(groups)?;
        // In the middle of the rest, a group that has been waited for is there.
        let mut first = expected.iter().take(3).map(|(_, bytes)| vec![0; bytes.len()]).collect::<Vec<_>>();
        device.await_upload(0)?;
        for ((from, bytes), to) in expected.iter().zip(&mut first) {
            device.download(*from, to)?;
            if to != bytes {
                return Err(format!("round {round}: {} bytes of the first group differ", to.len()).into());
            }
        }
        device.await_upload(GROUPS.len() - 1)?;
        let mut found: Vec<Vec<u8>> = expected.iter().map(|(_, bytes)| vec![0; bytes.len()]).collect();
        device.download_all(expected.iter().zip(&mut found).map(|((from, _), to)| (*from, &mut to[..])).collect())?;
        for ((_, bytes), found) in expected.iter().zip(&found) {
            if bytes != found {
                return Err(format!("round {round}: {} bytes differ", bytes.len()).into());
            }
        }
    }
    let wrong = Upload { source: Arc::new(vec![0u8; 8]), range: 4..12, to: Span::new(buffer.address(), 8) };
    match device.begin_uploads(vec![vec![wrong]]) {
        Err(DeviceError::Length { .. }) => {}
        other => return Err(format!("{other:?}, expected a refusal of the range").into()),
    }
    device.free(buffer);
    Ok(())
}

/// What follows tokens that are on the device, or on their way.
fn generate(engine: &mut Engine<CudaDevice>, rest: &[u32]) -> Result<Answer, EngineError> {
    let mut tokens = vec![engine.prefill(rest)?];
    let mut logits = vec![engine.last_logits()?];
    while tokens.len() < 4 {
        tokens.push(engine.decode(tokens[tokens.len() - 1])?);
        logits.push(engine.last_logits()?);
    }
    Ok(Answer { tokens, logits })
}

fn serve(engine: &mut Engine<CudaDevice>, sessions: &mut Sessions, prompt: &[u32]) -> Result<(), Failed> {
    let turn = sessions.begin(engine, &Scope::default(), prompt, usize::MAX)?;
    generate(engine, turn.rest())?;
    sessions.finish(engine, turn)?.commit();
    Ok(())
}

fn failed_restoration() -> Result<(), Failed> {
    let dir = fixture("tiny-moe");
    let model = Model::open(&dir, INT4);
    let options = model.options(KvFormat::Bf16, 500);
    let mut engine = on_cuda(&model, &options, resident_arena(&model, &options))?;
    let text = prompt(&dir, 300);
    let ids = |len: usize, step: usize| -> Vec<u32> { (0..len).map(|i| text[i * step % text.len()]).collect() };
    let (a, b) = (ids(300, 1), ids(140, 3));
    let next = [&a[..], &b[..20]].concat();
    // What the device holds without a restoration.
    let known = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    engine.reset();
    let expected = generate(&mut engine, &next)?;
    let store =
        Arc::new(Store::with_headroom(StoreOptions { limit_bytes: 1 << 30, reserve_bytes: 0 }, Box::new(|| None)));
    let mut sessions = Sessions::new(&engine, "tiny-moe", store);
    serve(&mut engine, &mut sessions, &a)?;
    for copy in 1..=3 * engine.kv_layouts().count() as u64 {
        serve(&mut engine, &mut sessions, &b)?;
        engine.device_mut().inject(FaultPlan { fail_copy: Some(copy), ..FaultPlan::default() });
        let turn = sessions.begin(&mut engine, &Scope::default(), &next, usize::MAX)?;
        match engine.prefill(turn.rest()) {
            Err(EngineError::Device(DeviceError::CopyFailed { .. })) => {}
            other => return Err(format!("copy {copy}: {other:?}, expected that it fails").into()),
        }
        if engine.position() != known {
            return Err(format!("copy {copy}: {} tokens remain, expected {known}", engine.position()).into());
        }
        drop(turn);
        let turn = sessions.begin(&mut engine, &Scope::default(), &next, usize::MAX)?;
        if turn.source != Source::Restored {
            return Err(format!("after copy {copy}: {:?}, expected a restoration", turn.source).into());
        }
        same(&generate(&mut engine, turn.rest())?, &expected)?;
    }
    Ok(())
}
