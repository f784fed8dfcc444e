//! Shared by the engine's tests: the fixture models, and engines over them.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use assay_engine::bank::HostBank;
use assay_engine::device::Device;
use assay_engine::device::host::{HostDevice, HostOptions};
use assay_engine::expert_cache::{BuildOptions, Encoding, QuantizeMethod, build};
use assay_engine::memory::MemoryPlan;
use assay_engine::residency::Heatmap;
use assay_engine::sampling::Sampling;
use assay_engine::{Engine, EngineError, EngineOptions, ModelFolder, Precision};
use assay_kernels::KvFormat;

pub const INT4: Encoding = Encoding::Int4(QuantizeMethod::Amax);

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models").join(name)
}

/// A model with its experts in memory.
pub struct Model {
    pub folder: ModelFolder,
    pub bank: Arc<HostBank>,
    pub encoding: Encoding,
}

impl Model {
    pub fn open(dir: &Path, encoding: Encoding) -> Self {
        Self::of(ModelFolder::open(dir, &|_| {}).unwrap(), encoding)
    }

    /// Packs the experts that the folder's description names.
    pub fn of(folder: ModelFolder, encoding: Encoding) -> Self {
        let cache = tempfile::tempdir().unwrap();
        let path = cache.path().join("experts");
        let identity = folder.cache_identity(encoding).unwrap();
        build(&folder.checkpoint, &folder.spec, &identity, &path, &BuildOptions::default(), |_, _| {}).unwrap();
        let bank = folder.read_bank(&path, encoding, &|_| {}).unwrap();
        Self { folder, bank, encoding }
    }

    /// Small chunks and no margin, so that a test's budget decides everything.
    pub fn options(&self, kv: KvFormat, context_tokens: usize) -> EngineOptions {
        let precision = Precision {
            experts: self.encoding,
            attention: Encoding::Bf16,
            dense: Encoding::Bf16,
            head: Encoding::Bf16,
            kv,
        };
        let defaults = EngineOptions::new(precision, context_tokens);
        // Few threads, so that trials may run side by side, and a number that divides no number of tiles.
        EngineOptions { max_chunk: 64, min_chunk: 8, margin_bytes: 0, host_threads: 3, ..defaults }
    }

    pub fn plan(&self, options: &EngineOptions) -> MemoryPlan {
        MemoryPlan::new(&self.folder.spec, options).unwrap()
    }

    pub fn load(
        &self,
        budget: u64,
        host: HostOptions,
        heatmap: Option<&Heatmap>,
        options: EngineOptions,
    ) -> Result<Engine<HostDevice>, EngineError> {
        let device = HostDevice::new(budget, host)?;
        Engine::load(device, &self.folder.checkpoint, self.folder.spec.clone(), self.bank.clone(), heatmap, options)
    }

    /// With every expert resident.
    pub fn resident(&self, options: EngineOptions) -> Engine<HostDevice> {
        let budget = self.plan(&options).resident_budget(options.max_chunk);
        self.load(budget, HostOptions::default(), None, options).unwrap()
    }
}

/// Tokens, and the complete logits of every prompt position and every step.
pub struct Answer {
    pub tokens: Vec<u32>,
    pub logits: Vec<Vec<f32>>,
}

/// The prompt in the given pieces (a piece of one token goes through decode), then `answer` tokens greedily.
pub fn answer<D: Device>(
    engine: &mut Engine<D>,
    prompt: &[u32],
    pieces: &[usize],
    answer: usize,
) -> Result<Answer, EngineError> {
    let (mut logits, mut token, mut start) = (Vec::new(), 0, 0usize);
    engine.reset();
    for &piece in pieces.iter().chain([&usize::MAX]) {
        let end = prompt.len().min(start.saturating_add(piece));
        match end - start {
            0 => continue,
            1 => {
                token = engine.decode(prompt[start])?;
                logits.push(engine.last_logits()?);
            }
            _ => {
                token = engine.prefill_logits(&prompt[start..end], 0, &mut |_, row| {
                    logits.push(row.to_vec());
                    Ok(())
                })?;
            }
        }
        start = end;
    }
    let mut tokens = vec![token];
    while tokens.len() < answer {
        token = engine.decode(token)?;
        logits.push(engine.last_logits()?);
        tokens.push(token);
    }
    Ok(Answer { tokens, logits })
}

/// `answer` tokens as `sampling` says; each is what it chooses from the downloaded logits.
pub fn sampled<D: Device>(
    engine: &mut Engine<D>,
    prompt: &[u32],
    sampling: &Sampling,
    answer: usize,
) -> Result<Vec<u32>, EngineError> {
    engine.reset();
    engine.prefill(prompt)?;
    let mut tokens = vec![engine.sample(sampling, 0)?];
    for step in 0.. {
        let logits = engine.last_logits()?;
        assert_eq!(tokens.last(), Some(&sampling.choose(&logits, step)?), "step {step} of {sampling:?}");
        if tokens.len() == answer {
            break;
        }
        tokens.push(engine.decode_sampled(tokens[step as usize], sampling, step + 1)?);
    }
    Ok(tokens)
}

/// A model of the families, INT4, whose first router overflows at one token: its embedding has one direction, which no other's has so
/// purely, and the router multiplies by that what just holds any other's part of it. And its folder.
pub fn poisoned(name: &str, token: u32) -> (Model, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixture("families").join(name)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let path = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    // Writes the beginning of a tensor's row.
    let mut write = |tensor: &str, row: usize, values: &[f32]| {
        let tensor = &header[tensor];
        assert_eq!(tensor["dtype"], "BF16");
        let width = tensor["shape"].as_array().unwrap().last().unwrap().as_u64().unwrap() as usize;
        let start = 8 + length + 2 * row * width + tensor["data_offsets"][0].as_u64().unwrap() as usize;
        for (at, value) in (start..).step_by(2).zip(values.iter().take(width)) {
            bytes[at..at + 2]
                .copy_from_slice(&value.to_bits().to_be_bytes()[..2].iter().rev().copied().collect::<Vec<u8>>());
        }
    };
    let mut embedding = [0.0; 1024];
    embedding[0] = 16384.0;
    write("model.embed_tokens.weight", token as usize, &embedding);
    write("model.layers.0.post_attention_layernorm.weight", 0, &[1.0]);
    let gates = ["mlp.gate", "mlp.router", "block_sparse_moe.gate"];
    let gate = gates.map(|gate| format!("model.layers.0.{gate}.weight"));
    let gate = gate.iter().find(|gate| header[gate.as_str()].is_object()).unwrap();
    // Times 9 it is no longer a number.
    write(gate, 0, &[2f32.powi(125)]);
    std::fs::write(&path, bytes).unwrap();
    (Model::open(folder.path(), INT4), folder)
}
