//! Sampled decode: the host device's ids, by either cold path, captured or not, and the same as choosing from the logits.

use std::path::Path;

use assay_engine::device::Device;
use assay_engine::engine::ColdPath;
use assay_engine::sampling::Sampling;
use assay_engine::{Engine, EngineError, EngineOptions};
use assay_kernels::KvFormat;
use libtest_mimic::{Failed, Trial};

use super::common::{INT4, Model, sampled};
use super::support::{models, on_cuda, prompt, resident_arena};

const ANSWER: usize = 24;

pub fn trials() -> Vec<Trial> {
    models().into_iter().map(|(name, dir)| Trial::test(format!("sample::{name}"), move || equals_host(&dir))).collect()
}

fn settings() -> [Sampling; 4] {
    let all = Sampling { temperature: 1.0, seed: 3, ..Sampling::GREEDY };
    [
        all,
        Sampling { temperature: 0.7, top_p: 0.95, seed: 4, ..all },
        Sampling { temperature: 1.3, top_k: 20, top_p: 0.9, min_p: 0.01, seed: 5 },
        Sampling { temperature: 100.0, seed: 6, ..all },
    ]
}

fn equals_host(dir: &Path) -> Result<(), Failed> {
    let model = Model::open(dir, INT4);
    let options = model.options(KvFormat::Bf16, 256);
    let prompt = prompt(dir, 30);
    let expected = answers(&mut model.resident(options.clone()), &prompt)?;
    for path in [ColdPath::CopyEngine, ColdPath::Multiprocessors, ColdPath::WithHost] {
        let options = EngineOptions { cold_path: Some(path), ..options.clone() };
        let mut engine = on_cuda(&model, &options, resident_arena(&model, &options))?;
        let found = answers(&mut engine, &prompt)?;
        if found != expected {
            return Err(format!("{path:?}: {found:?}, expected {expected:?}").into());
        }
    }
    Ok(())
}

fn answers<D: Device>(engine: &mut Engine<D>, prompt: &[u32]) -> Result<Vec<Vec<u32>>, EngineError> {
    settings().iter().map(|sampling| sampled(engine, prompt, sampling, ANSWER)).collect()
}
