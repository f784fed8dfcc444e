//! What ran: the stable inputs of a run. Clocks, temperatures and load are observations and are not here.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Sha256;

/// The exact configuration that a result belongs to. Two results compare only where [`crate::diff`] says what differs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The weights.
    pub checkpoint: CheckpointIdentity,
    /// Hash of `tokenizer.json`; absent where a run takes token ids only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<Sha256>,
    /// Hash of the chat template that the checkpoint comes with; absent where it has none, where a run takes token ids only,
    /// and in older records of all but tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Sha256>,
    /// The source that the binary was built from.
    pub source: SourceIdentity,
    /// Hash of the running executable.
    pub binary: Sha256,
    /// Number formats.
    pub precision: PrecisionIdentity,
    /// Hash of the heatmap that seeded residency; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heatmap: Option<Sha256>,
    /// Where it ran.
    pub device: DeviceIdentity,
    /// The memory budget.
    pub memory: MemoryIdentity,
    /// Context, in tokens.
    pub context: u64,
    /// Most tokens that prefill takes at once.
    pub prefill_chunk: u64,
    /// Name of the expert residency policy.
    pub residency_policy: String,
    /// Name and parameters of an approximation, if one is switched on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approximation: Option<String>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// The texts or token lists that were run.
    pub prompts: PromptsIdentity,
    /// The suite file; absent for a command that takes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suite: Option<SuiteIdentity>,
    /// Hash of every task's fixture, by the task's name; absent for a command that runs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<BTreeMap<String, Sha256>>,
    /// True if weights or prompts are made up (random, shrunk), so that quality figures mean nothing.
    pub synthetic: bool,
}

/// The weights and their description.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckpointIdentity {
    /// Name of the checkpoint, as its folder or its publisher calls it.
    pub name: String,
    /// Hash of every shard, by file name.
    pub shards: BTreeMap<String, Sha256>,
    /// Hash of `config.json`.
    pub config: Sha256,
}

/// The source tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceIdentity {
    /// Commit, in hex; `unknown` where the sources lie in no git repository, as in an unpacked archive.
    pub commit: String,
    /// Hash of the difference from the commit; absent for a clean tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty: Option<Sha256>,
    /// Hash over every file that decides what is built and run, as it is: the same for equal sources, whatever the commit
    /// and with or without git. Absent in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<Sha256>,
}

/// A number format that weights or the KV cache are kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NumberFormat {
    /// IEEE single precision.
    F32,
    /// bfloat16.
    Bf16,
    /// 8-bit integers with BF16 scales, in groups of 128; of keys and values in groups of 32.
    Int8,
    /// 6-bit integers with BF16 scales, in groups of 32; keys and values alone.
    Int6,
    /// 4-bit integers with BF16 scales, in groups of 128; of keys and values in groups of 32.
    Int4,
}

/// How the scales of quantised experts were chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExpertQuantization {
    /// From the largest magnitude of a group.
    Amax,
    /// By the least squared error of the weights over stated factors.
    Search,
}

/// Number formats by part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PrecisionIdentity {
    /// Routed experts.
    pub experts: NumberFormat,
    /// How expert scales were chosen; absent for formats without scales.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expert_quantization: Option<ExpertQuantization>,
    /// Attention projections.
    pub attention: NumberFormat,
    /// Dense layers and shared experts.
    pub dense: NumberFormat,
    /// Output head.
    pub head: NumberFormat,
    /// KV cache.
    pub kv: NumberFormat,
    /// Arithmetic of prefill; decode is always exact.
    #[serde(default, skip_serializing_if = "ArithmeticIdentity::is_exact")]
    pub prefill: ArithmeticIdentity,
}

/// The order and precision of sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ArithmeticIdentity {
    /// The arithmetic contract's.
    #[default]
    Exact,
    /// Tensor cores.
    Tensor,
}

impl ArithmeticIdentity {
    fn is_exact(&self) -> bool {
        *self == Self::Exact
    }
}

/// Kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// The host device: CPU kernels under a memory budget and a modelled link.
    Host,
    /// An NVIDIA GPU.
    Cuda,
}

/// The machine, as far as it is an input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceIdentity {
    /// Kind.
    pub kind: DeviceKind,
    /// Model name of the CPU or GPU.
    pub name: String,
    /// Driver version; absent on the host device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// CUDA version; absent on the host device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda: Option<String>,
    /// The level of CPU features that was used, such as `x86-64-v3`.
    pub cpu_features: String,
    /// Worker threads.
    pub threads: u32,
    /// The modelled link; absent where the link is real.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkIdentity>,
    /// Share of its time by which each kernel was made slower on purpose, to see whether that is found; absent in every
    /// run but those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planted_slowdown: Option<f64>,
}

/// The host device's declared link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkIdentity {
    /// Bandwidth, bytes per second.
    pub bandwidth_bytes_per_s: f64,
    /// Latency of one copy, seconds.
    pub latency_s: f64,
}

/// The memory budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryIdentity {
    /// Device memory that may be used, bytes.
    pub vram_bytes: u64,
    /// The part of it that is kept free, bytes.
    pub margin_bytes: u64,
}

/// How tokens are chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Sampling {
    /// No token is chosen: only logits or losses are read.
    None,
    /// The largest logit, ties to the lowest index.
    Greedy,
    /// Random draws.
    Random(RandomSampling),
}

/// Parameters of random sampling.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RandomSampling {
    /// Divisor of the logits.
    pub temperature: f64,
    /// Candidates kept by rank; absent for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// Candidates kept by cumulative probability; absent for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Seed, as a decimal string: JSON numbers hold 53 bits only.
    #[serde(with = "decimal")]
    #[schemars(with = "String", regex(pattern = "^(0|[1-9][0-9]*)$"))]
    pub seed: u64,
}

/// The texts or token lists that were run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PromptsIdentity {
    /// Name of the set.
    pub set: String,
    /// Hash of every text or file, by name.
    pub texts: BTreeMap<String, Sha256>,
}

/// The suite file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SuiteIdentity {
    /// Name of the suite.
    pub name: String,
    /// Hash of its file.
    pub file: Sha256,
}

mod decimal {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.parse::<u64>() {
            Ok(value) if value.to_string() == text => Ok(value),
            _ => Err(D::Error::custom(format!("expected a decimal 64-bit integer, found {text:?}"))),
        }
    }
}
