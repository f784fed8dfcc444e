//! Running synthetic models: a config without a file, and random prompts.

use crate::config::{Config, Device, LoadedConfig, Precision, Quantization, Residency, WeightFormat};
use crate::interrupt;
use crate::progress::Progress;
use crate::repository::Repository;
use crate::runtime::Opened;
use anyhow::Context as _;
use assay_engine::Engine;
use assay_engine::checkpoint::MAX_CONFIG_BYTES;
use assay_engine::device::cuda::CONTEXT_BYTES;
use assay_engine::device::{Device as EngineDevice, DeviceKind};
use assay_engine::expert_cache::Encoding;
use assay_engine::file;
use assay_engine::memory::MemoryPlan;
use assay_engine::synth::SyntheticRecord;
use assay_engine::synth::routing::{Counted, random_ids};
use std::path::Path;

/// Tokens of a prefill chunk.
const CHUNK: usize = 512;

/// Opens a synthetic model as its recipe has it: BF16 but for the experts, exact arithmetic, under the least budget.
///
/// # Errors
/// A folder that is no synthetic model's, or whose experts are missing.
pub fn open(
    dir: &Path,
    device: Device,
    context_tokens: usize,
    repository: &Repository,
) -> anyhow::Result<(Opened, SyntheticRecord)> {
    let model = std::path::absolute(dir)?;
    let config_bytes = file::read(&model.join("config.json"), MAX_CONFIG_BYTES)
        .with_context(|| format!("opening {}", dir.display()))?;
    let record = SyntheticRecord::read(&config_bytes, &model.join("config.json"))?
        .with_context(|| format!("{} is no synthetic model: its config.json has no recipe", dir.display()))?;
    let config = config(model, device, record.experts, context_tokens);
    let mut opened = Opened::new(LoadedConfig::of("synthetic", config, repository))?;
    // Residents would only take memory from the machine that checks: prefill streams what is not on the device.
    let plan = MemoryPlan::new(&opened.folder.spec, &opened.options)?;
    let context = match opened.options.device {
        DeviceKind::Host => 0,
        DeviceKind::Cuda => CONTEXT_BYTES,
    };
    opened.set_vram(plan.least_budget(opened.options.min_chunk) + context);
    Ok((opened, record))
}

fn config(model: std::path::PathBuf, device: Device, experts: Encoding, context_tokens: usize) -> Config {
    let chunk = CHUNK.min(context_tokens);
    let (experts, expert_quantization) = match experts {
        Encoding::Bf16 => (WeightFormat::Bf16, None),
        Encoding::Int4(_) => (WeightFormat::Int4, Some(Quantization::Amax)),
        Encoding::Int8 => (WeightFormat::Int8, None),
    };
    let exact = Config::exact(model, context_tokens, chunk);
    Config {
        device,
        mechanics_only: true,
        precision: Precision { experts, expert_quantization, ..exact.precision },
        residency: Residency { max_resident_share: 0.0, ..exact.residency },
        link: exact.link.filter(|_| device == Device::Host),
        ..exact
    }
}

/// How much is run for a check of routing.
#[derive(Debug, Clone, Copy)]
pub struct CheckPlan {
    /// Prompts of random ids.
    pub prompts: usize,
    /// Tokens of each.
    pub prompt_tokens: usize,
    /// Tokens decoded greedily after the last.
    pub decode_tokens: usize,
}

/// Prefills random prompts, counting routes, and decodes after the last.
///
/// # Errors
/// When the engine fails or the user interrupts.
pub fn count<D: EngineDevice>(
    engine: &mut Engine<D>,
    plan: CheckPlan,
    checkpoint_sha256: String,
    record: &SyntheticRecord,
) -> anyhow::Result<Counted> {
    let (vocab_size, top_k) = (engine.spec().vocab_size, engine.plan().sizes.top_k);
    let steps = plan.prompts * plan.prompt_tokens + plan.decode_tokens;
    let progress = Progress::start("counting routes", steps as u64, "tokens");
    engine.observe_routes();
    let mut token = 0;
    for index in 0..plan.prompts {
        interrupt::check()?;
        engine.reset();
        token = engine.prefill(&random_ids(index, plan.prompt_tokens, vocab_size))?;
        progress.advance(plan.prompt_tokens as u64);
    }
    let counts = engine.take_observed().context("no routes were counted")?;
    let mut decoded = Vec::with_capacity(plan.decode_tokens);
    for _ in 0..plan.decode_tokens {
        interrupt::check()?;
        decoded.push(token);
        token = engine.decode(token)?;
        progress.advance(1);
    }
    let prefill_tokens = (plan.prompts * plan.prompt_tokens) as u64;
    Ok(Counted { checkpoint_sha256, skew: record.skew, top_k, prefill_tokens, counts, decoded })
}
