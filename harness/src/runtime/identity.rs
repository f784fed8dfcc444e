//! What exactly is run.

use super::start::Opened;
use super::{machine, source};
use crate::config::{Config, Device, KvFormat, LoadedConfig, PrefillArithmetic, Quantization, WeightFormat};
use crate::corpus::Corpus;
use crate::repository::Repository;
use crate::suite::SpeedSuite;
use anyhow::Context;
use assay_engine::residency::Heatmap;
use assay_ledgers::{
    ArithmeticIdentity, CheckpointIdentity, DeviceIdentity, DeviceKind, ExpertQuantization, Identity, LinkIdentity,
    MemoryIdentity, NumberFormat, PrecisionIdentity, PromptsIdentity, Sampling, Sha256, SuiteIdentity,
};
use assay_server::template::TemplateSource;
use std::collections::BTreeMap;
use std::path::Path;

/// The file of a checkpoint that describes it, and the one that makes text tokens.
const CONFIG_FILE: &str = "config.json";
const TOKENIZER_FILE: &str = "tokenizer.json";

/// The suite of a run.
#[derive(Debug, Clone)]
pub struct SuiteInputs {
    /// Its name.
    pub name: String,
    /// SHA-256 of its file.
    pub sha256: Sha256,
}

/// What a config does not say of a run.
#[derive(Debug, Clone)]
pub struct IdentityInputs {
    /// The suite, where there is one.
    pub suite: Option<SuiteInputs>,
    /// Name of the prompt set.
    pub prompt_set: String,
    /// Hash of every text or token list, by name.
    pub texts: BTreeMap<String, Sha256>,
    /// Whether text goes through the tokenizer.
    pub tokenized: bool,
    /// Whether tokens are chosen.
    pub sampled: bool,
}

impl IdentityInputs {
    /// Those of a speed suite over a corpus.
    pub fn speed(suite: &SpeedSuite, suite_sha256: Sha256, corpus: &Corpus) -> Self {
        let suite = SuiteInputs { name: suite.name.clone(), sha256: suite_sha256 };
        IdentityInputs { suite: Some(suite), ..Self::of_corpus(corpus) }
    }

    /// Those of a command without a suite, over a corpus.
    pub fn of_corpus(corpus: &Corpus) -> Self {
        IdentityInputs {
            suite: None,
            prompt_set: corpus.set.name().to_owned(),
            texts: corpus.books.iter().map(|book| (book.file.clone(), book.canonical_sha256)).collect(),
            tokenized: true,
            sampled: true,
        }
    }
}

impl Opened {
    /// The identity of a run of this config.
    ///
    /// # Errors
    /// When the running executable or the repository cannot be read.
    pub fn identity(
        &self,
        repository: &Repository,
        heatmap: Option<&Heatmap>,
        inputs: IdentityInputs,
    ) -> anyhow::Result<Identity> {
        let config = &self.loaded.config;
        let (checkpoint, tokenizer) = self.checkpoint()?;
        Ok(Identity {
            checkpoint,
            tokenizer: tokenizer.filter(|_| inputs.tokenized),
            template: if inputs.tokenized { self.template()? } else { None },
            source: source::source(repository)?,
            binary: binary()?,
            precision: precision(&self.loaded),
            heatmap: heatmap.map(|heatmap| sha256(&heatmap.sha256)).transpose()?,
            device: device(config)?,
            memory: MemoryIdentity { vram_bytes: config.memory.vram.0, margin_bytes: config.memory.margin.0 },
            context: config.context.tokens as u64,
            prefill_chunk: config.context.max_chunk as u64,
            residency_policy: residency(&self.loaded),
            approximation: None,
            sampling: if inputs.sampled { Sampling::Greedy } else { Sampling::None },
            prompts: PromptsIdentity { set: inputs.prompt_set, texts: inputs.texts },
            suite: inputs.suite.map(|suite| SuiteIdentity { name: suite.name, file: suite.sha256 }),
            tasks: None,
            synthetic: self.folder.synthetic.is_some(),
        })
    }

    /// Hash of the checkpoint's tokenizer, where it has one.
    ///
    /// # Errors
    /// When the checkpoint has no `config.json`.
    pub fn tokenizer_hash(&self) -> anyhow::Result<Option<Sha256>> {
        Ok(self.checkpoint()?.1)
    }

    /// Hash of the chat template that the checkpoint comes with.
    fn template(&self) -> anyhow::Result<Option<Sha256>> {
        let source = TemplateSource::read(self.folder.checkpoint.dir())?;
        Ok(source.template.map(|(_, text)| Sha256::of(text.as_bytes())))
    }

    fn checkpoint(&self) -> anyhow::Result<(CheckpointIdentity, Option<Sha256>)> {
        let mut shards = BTreeMap::new();
        let (mut config, mut tokenizer) = (None, None);
        for file in &self.folder.hashes {
            let hash = sha256(&file.sha256)?;
            match file.name.as_str() {
                CONFIG_FILE => config = Some(hash),
                TOKENIZER_FILE => tokenizer = Some(hash),
                _ => {
                    shards.insert(file.name.clone(), hash);
                }
            }
        }
        let config = config.context("the checkpoint has no config.json")?;
        Ok((CheckpointIdentity { name: self.model_name(), shards, config }, tokenizer))
    }
}

/// The processor, and the GPU where it is the device.
fn device(config: &Config) -> anyhow::Result<DeviceIdentity> {
    let gpu = match config.device {
        Device::Host => None,
        Device::Cuda => Some(assay_engine::device::cuda::describe(0)?),
    };
    let (kind, name) = match &gpu {
        None => (DeviceKind::Host, machine::cpu_name()),
        Some(gpu) => (DeviceKind::Cuda, gpu.name.clone()),
    };
    Ok(DeviceIdentity {
        kind,
        name,
        driver: gpu.as_ref().map(|gpu| gpu.driver.clone()),
        cuda: gpu.map(|gpu| gpu.cuda),
        cpu_features: assay_kernels::simd::Level::current().name().to_owned(),
        threads: u32::try_from(rayon::current_num_threads()).unwrap_or(u32::MAX),
        link: config.link.as_ref().map(|link| LinkIdentity {
            bandwidth_bytes_per_s: link.bandwidth_gb_s * 1e9,
            latency_s: link.latency_us / 1e6,
        }),
        planted_slowdown: config.planted_slowdown,
    })
}

/// Hash of the running executable, even where a build has replaced its file meanwhile.
fn binary() -> anyhow::Result<Sha256> {
    Ok(Sha256::of_file(Path::new("/proc/self/exe"))?)
}

/// A hash that the engine gives as text.
///
/// # Errors
/// When it is not 64 hexadecimal digits.
pub fn sha256(hex: &str) -> anyhow::Result<Sha256> {
    Sha256::from_hex(hex).with_context(|| format!("{hex:?} is no SHA-256, expected 64 hexadecimal digits"))
}

/// The policy with everything that steers it.
fn residency(loaded: &LoadedConfig) -> String {
    let residency = &loaded.config.residency;
    let name = crate::runtime::start::engine_options(&loaded.config).policy.name();
    let host = residency.host_threads.map(|threads| format!(", at most {threads} threads of the host"));
    format!(
        "{name}, at most {} promotions a token, at most {} of the experts{}",
        residency.max_promotions_per_token,
        residency.max_resident_share,
        host.unwrap_or_default()
    )
}

fn precision(loaded: &LoadedConfig) -> PrecisionIdentity {
    let precision = &loaded.config.precision;
    let weights = |format: WeightFormat| match format {
        WeightFormat::Bf16 => NumberFormat::Bf16,
        WeightFormat::Int4 => NumberFormat::Int4,
        WeightFormat::Int8 => NumberFormat::Int8,
    };
    PrecisionIdentity {
        experts: weights(precision.experts),
        expert_quantization: precision.expert_quantization.map(|method| match method {
            Quantization::Amax => ExpertQuantization::Amax,
            Quantization::Search => ExpertQuantization::Search,
        }),
        attention: weights(precision.attention),
        dense: weights(precision.dense),
        head: weights(precision.head),
        kv: match precision.kv {
            KvFormat::F32 => NumberFormat::F32,
            KvFormat::Bf16 => NumberFormat::Bf16,
            KvFormat::Int8 => NumberFormat::Int8,
            KvFormat::Int6 => NumberFormat::Int6,
            KvFormat::Int4 => NumberFormat::Int4,
        },
        prefill: match precision.prefill {
            PrefillArithmetic::Exact => ArithmeticIdentity::Exact,
            PrefillArithmetic::Tensor => ArithmeticIdentity::Tensor,
        },
    }
}
