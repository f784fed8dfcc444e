//! What exactly is run: one model, its precisions, its memory and its context, as a TOML file.
//!
//! `mod.rs` has the schema, `load.rs` finds, reads and checks a file, `overrides.rs` lets flags replace fields, `size.rs`
//! reads sizes.

mod load;
mod overrides;
mod size;

pub use assay_engine::residency::PolicyKind as Policy;
pub use load::{ConfigError, LoadedConfig};
pub use overrides::{ConfigArgs, ConfigFlags};
pub use size::{ByteSize, SizeError};

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A config file, and after the flags are applied, what is run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Checkpoint folder, relative to the root of the repository that the config lies in.
    pub model: PathBuf,
    /// Where it runs.
    pub device: Device,
    /// Bars the config from quality rows: what it computes is not what the model was trained for.
    #[serde(default)]
    pub mechanics_only: bool,
    /// Formats of weights and KV.
    pub precision: Precision,
    /// Device memory.
    pub memory: Memory,
    /// Sequence length and chunks.
    pub context: Context,
    /// Which experts stay on the device.
    pub residency: Residency,
    /// Limits of benchmarks.
    pub benchmark: Benchmark,
    /// The modelled link between host and device memory; for the host device, and only for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// How a token is chosen.
    pub sampling: Sampling,
    /// Share of its time by which every kernel of the host device is made slower, to see whether that is found. No file
    /// can say it: only a hidden flag does, and the identity names it.
    #[serde(skip)]
    pub planted_slowdown: Option<f64>,
}

impl Config {
    /// What a checkpoint's own figures are checked with: the host device, BF16 weights, F32 KV, chunks of `chunk`, any expert
    /// resident. The budget is 0 until the model is known.
    pub(crate) fn exact(model: PathBuf, context_tokens: usize, chunk: usize) -> Self {
        Config {
            model,
            device: Device::Host,
            mechanics_only: false,
            precision: Precision {
                experts: WeightFormat::Bf16,
                expert_quantization: None,
                attention: WeightFormat::Bf16,
                dense: WeightFormat::Bf16,
                head: WeightFormat::Bf16,
                kv: KvFormat::F32,
                prefill: PrefillArithmetic::Exact,
            },
            memory: Memory { vram: ByteSize(0), margin: ByteSize(0) },
            context: Context { tokens: context_tokens, max_chunk: chunk, min_chunk: chunk },
            residency: Residency {
                policy: Policy::Lru,
                heatmap: None,
                max_promotions_per_token: 0,
                max_resident_share: 1.0,
                host_threads: None,
            },
            benchmark: Benchmark { max_prompt_tokens: context_tokens },
            link: Some(Link { bandwidth_gb_s: 1.0, latency_us: 0.0 }),
            sampling: Sampling { kind: SamplingKind::Greedy },
            planted_slowdown: None,
        }
    }
}

/// Where it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// The CPU, with an arena as device memory and a modelled link
    Host,
    /// The first NVIDIA GPU that the driver shows
    Cuda,
}

/// In what order and precision prefill computes. Decode always has the exact arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum PrefillArithmetic {
    /// The arithmetic contract's: the same bits on every device
    #[default]
    Exact,
    /// Tensor cores: activations rounded to BF16, sums in f32; for the cuda device
    Tensor,
}

impl PrefillArithmetic {
    fn is_exact(&self) -> bool {
        *self == Self::Exact
    }
}

/// Formats of weights and KV.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Precision {
    /// Routed experts.
    pub experts: WeightFormat,
    /// How INT4 scales are found; for INT4 experts, and only for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expert_quantization: Option<Quantization>,
    /// Attention projections.
    pub attention: WeightFormat,
    /// Feed-forward parts of dense layers.
    pub dense: WeightFormat,
    /// Output head.
    pub head: WeightFormat,
    /// Keys and values.
    pub kv: KvFormat,
    /// Arithmetic of prefill.
    #[serde(default, skip_serializing_if = "PrefillArithmetic::is_exact")]
    pub prefill: PrefillArithmetic,
}

/// Formats of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum WeightFormat {
    /// As in the checkpoint
    Bf16,
    /// Symmetric, groups of 128 inputs, BF16 scales
    Int4,
    /// Likewise; scales from the largest magnitude
    Int8,
}

/// How INT4 scales are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Quantization {
    /// The group's largest magnitude over 7
    Amax,
    /// The scale with the least squared error, of several factors on `amax`
    Search,
}

/// Formats of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum KvFormat {
    /// As computed
    F32,
    /// Rounded to nearest, ties to even
    Bf16,
    /// 8-bit codes, a BF16 scale for each 32 dimensions of a token's head
    Int8,
    /// 6-bit codes, likewise
    Int6,
    /// 4-bit codes, likewise
    Int4,
}

/// Device memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// The whole budget.
    pub vram: ByteSize,
    /// Kept free of experts beyond what calibration measured.
    pub margin: ByteSize,
}

/// Sequence length and chunks, in tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// Longest sequence, prompt and answer together.
    pub tokens: usize,
    /// Largest prefill chunk.
    pub max_chunk: usize,
    /// Floor below which a failing chunk is not halved further.
    pub min_chunk: usize,
}

/// Which experts stay on the device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Residency {
    /// Which expert leaves when another is promoted.
    #[schemars(with = "String", extend("enum" = Policy::ALL))]
    pub policy: Policy,
    /// Prior of the first resident set; a path like `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heatmap: Option<PathBuf>,
    /// Most experts promoted between two tokens.
    pub max_promotions_per_token: usize,
    /// Largest share of the experts that may be resident, 0 to 1, whatever the budget allows.
    #[serde(default = "everything")]
    pub max_resident_share: f64,
    /// Most threads of the host that compute cold experts for a GPU, where that is measured to be faster; 0 for none. All processors but one
    /// where this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_threads: Option<usize>,
}

fn everything() -> f64 {
    1.0
}

/// Limits of benchmarks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Benchmark {
    /// Longest prompt that a speed suite gives this config, in tokens.
    pub max_prompt_tokens: usize,
}

/// The modelled link between host and device memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// In 10⁹ bytes a second.
    pub bandwidth_gb_s: f64,
    /// Of each copy, in microseconds.
    pub latency_us: f64,
}

/// How a token is chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    /// By which rule.
    pub kind: SamplingKind,
}

/// Rules for choosing a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SamplingKind {
    /// The largest logit, ties to the lowest id.
    Greedy,
}

#[cfg(test)]
mod tests;
