//! Engines on both devices, and what they answer.

use std::path::PathBuf;

use assay_engine::device::DeviceKind;
use assay_engine::device::cuda::CudaDevice;
use assay_engine::{Engine, EngineError, EngineOptions};
use libtest_mimic::Failed;

pub use super::common::{Answer, answer};
use super::common::{Model, fixture};

/// Equal tokens and equal bits of every logit.
pub fn same(found: &Answer, expected: &Answer) -> Result<(), Failed> {
    for (step, (found, expected)) in found.logits.iter().zip(&expected.logits).enumerate() {
        let differing = found.iter().zip(expected).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        if differing > 0 {
            let at = found.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits()).unwrap();
            let (a, b) = (found[at], expected[at]);
            let of = found.len();
            return Err(format!("step {step}: {differing} of {of} logits differ; [{at}] is {a}, expected {b}").into());
        }
    }
    if found.logits.len() != expected.logits.len() || found.tokens != expected.tokens {
        return Err(format!("tokens {:?}, expected {:?}", found.tokens, expected.tokens).into());
    }
    Ok(())
}

/// On the GPU, with `arena` bytes.
pub fn on_cuda(model: &Model, options: &EngineOptions, arena: u64) -> Result<Engine<CudaDevice>, EngineError> {
    let options = EngineOptions { device: DeviceKind::Cuda, ..options.clone() };
    let device = CudaDevice::with_arena(0, arena)?;
    Engine::load(device, &model.folder.checkpoint, model.folder.spec.clone(), model.bank.clone(), None, options)
}

/// The budget under which every expert is resident on the GPU.
pub fn resident_arena(model: &Model, options: &EngineOptions) -> u64 {
    let options = EngineOptions { device: DeviceKind::Cuda, ..options.clone() };
    model.plan(&options).resident_budget(options.max_chunk)
}

/// The least budget on the GPU: no expert is resident.
pub fn least_arena(model: &Model, options: &EngineOptions) -> u64 {
    let options = EngineOptions { device: DeviceKind::Cuda, ..options.clone() };
    model.plan(&options).least_budget(options.min_chunk)
}

/// The fixture models, small ones.
pub fn models() -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(fixture("families")).unwrap().map(|entry| entry.unwrap().path());
    let mut models: Vec<(String, PathBuf)> = entries
        .filter(|path| path.is_dir())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), path))
        .collect();
    models.push(("tiny-moe".to_owned(), fixture("tiny-moe")));
    models.sort();
    models
}

/// The longest prompt of a model's reference, at most `most` tokens of it.
pub fn prompt(dir: &std::path::Path, most: usize) -> Vec<u32> {
    let reference: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join("reference.json")).unwrap()).unwrap();
    let prompts = reference["prompts"].as_array().unwrap();
    let ids = |prompt: &serde_json::Value| -> Vec<u32> {
        let ids = prompt["input_token_ids"].as_array().unwrap();
        ids.iter().take(most).map(|id| id.as_u64().unwrap() as u32).collect()
    };
    prompts.iter().map(ids).max_by_key(Vec::len).unwrap()
}
