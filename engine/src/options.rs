//! What a caller decides about an engine.

use assay_kernels::KvFormat;

use crate::device::{Arithmetic, DeviceKind};
use crate::engine::ColdPath;
use crate::error::EngineError;
use crate::expert_cache::Encoding;
use crate::model::spec::ModelSpec;
use crate::residency::PolicyKind;

/// How each kind of tensor is stored on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Precision {
    /// Routed experts; the host bank must be of this format.
    pub experts: Encoding,
    /// q, k, v and o projections.
    pub attention: Encoding,
    /// Dense feed-forward layers and shared experts. Routers and gates are always BF16.
    pub dense: Encoding,
    /// Output head. The embedding is always BF16; a tied head is a second copy if it is not.
    pub head: Encoding,
    /// Keys and values.
    pub kv: KvFormat,
}

/// Options of an engine; [`EngineOptions::new`] gives every one but the context a default.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineOptions {
    /// Storage formats.
    pub precision: Precision,
    /// The device that it is for.
    pub device: DeviceKind,
    /// Arithmetic of prefill; decode is always exact.
    pub prefill: Arithmetic,
    /// Longest sequence, prompt and answer together, in tokens.
    pub context_tokens: usize,
    /// Most tokens in a prefill chunk.
    pub max_chunk: usize,
    /// Fewest tokens to which a failing chunk is halved.
    pub min_chunk: usize,
    /// Bytes that must stay free in every phase.
    pub margin_bytes: u64,
    /// MoE layers streamed as one group in prefill.
    pub layers_per_group: usize,
    /// Residency policy.
    pub policy: PolicyKind,
    /// Cold experts that may become resident for each token decoded.
    pub promotions_per_token: usize,
    /// How decode brings cold experts in; `None` takes what is measured to be faster at startup.
    pub cold_path: Option<ColdPath>,
    /// Most threads of the host that may compute cold experts during decode.
    pub host_threads: usize,
    /// Largest share of the experts that may be resident, 0 to 1, whatever the budget allows.
    pub max_resident_share: f64,
}

impl EngineOptions {
    /// The white paper's margin of 600 MiB and otherwise moderate values.
    pub fn new(precision: Precision, context_tokens: usize) -> Self {
        Self {
            precision,
            device: DeviceKind::Host,
            prefill: Arithmetic::Exact,
            context_tokens,
            max_chunk: 2048,
            min_chunk: 32,
            margin_bytes: 600 << 20,
            layers_per_group: 1,
            policy: PolicyKind::default(),
            promotions_per_token: 4,
            cold_path: None,
            host_threads: host_threads(),
            max_resident_share: 1.0,
        }
    }
    /// Refuses what no engine could be built from.
    pub(crate) fn check(&self, spec: &ModelSpec) -> Result<(), EngineError> {
        let refuse = |option, found: &dyn ToString, expected| {
            Err(EngineError::Option { option, found: found.to_string(), expected })
        };
        if self.device == DeviceKind::Host && self.prefill != Arithmetic::Exact {
            return refuse("prefill", &self.prefill.name(), "exact on the host device");
        }
        if self.context_tokens == 0 {
            return refuse("context_tokens", &self.context_tokens, "at least 1");
        }
        if self.context_tokens > spec.max_position_embeddings {
            let (tokens, most) = (self.context_tokens, spec.max_position_embeddings);
            return refuse(
                "context_tokens",
                &format!("{tokens} with max_position_embeddings {most}"),
                "no more than the checkpoint supports",
            );
        }
        if self.min_chunk == 0 || self.min_chunk > self.max_chunk {
            let chunks = format!("{} with max_chunk {}", self.min_chunk, self.max_chunk);
            return refuse("min_chunk", &chunks, "1 to max_chunk");
        }
        if !(0.0..=1.0).contains(&self.max_resident_share) {
            return refuse("max_resident_share", &self.max_resident_share, "0 to 1");
        }
        Ok(())
    }
}

/// All processors but one, which is left to whoever waits for the tokens: threads that share one hold up all the others.
fn host_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| (processors.get() - 1).max(1))
}
