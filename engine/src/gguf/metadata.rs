//! The keys that describe the model.

use std::path::Path;

use assay_kernels::Routing;
use serde::Deserialize;

use super::error::GgufError;
use super::write::{GgufType, Value};
use crate::model::rope::yarn_attention_factor;
use crate::model::spec::{FfnSpec, ModelSpec, MoeSpec, RopeScaling, RopeSpec};

/// Hugging Face's `model_type` and llama.cpp's architecture, of the families whose tensors and keys are known here.
const ARCHITECTURES: &[(&str, &str)] = &[("qwen3_moe", "qwen3moe")];
/// ggml's version of its block formats. The types written here have no blocks; llama.cpp's converter writes it all the same.
const QUANTIZATION_VERSION: u32 = 2;
/// llama.cpp's `beta_fast` and `beta_slow` where a file has none.
const YARN_BETAS: (f64, f64) = (32.0, 1.0);
/// Most that two ways of computing YaRN's attention factor may differ by.
const YARN_TOLERANCE: f64 = 1e-6;

/// What llama.cpp wants to know and a [`ModelSpec`] does not.
#[derive(Debug, Deserialize)]
pub(super) struct ConfigExtras {
    /// Width of dense layers, also where there are none.
    #[serde(default)]
    intermediate_size: Option<u32>,
    #[serde(default)]
    pub(super) bos_token_id: Option<IdOrIds>,
    #[serde(default)]
    pub(super) eos_token_id: Option<IdOrIds>,
    #[serde(default)]
    pub(super) pad_token_id: Option<IdOrIds>,
}

/// One token id, or several, of which GGUF takes the first.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum IdOrIds {
    One(u32),
    Several(Vec<u32>),
}

impl IdOrIds {
    pub(super) fn first(&self) -> Option<u32> {
        match self {
            Self::One(id) => Some(*id),
            Self::Several(ids) => ids.first().copied(),
        }
    }
}

impl ConfigExtras {
    pub(super) fn read(config: &[u8], path: &Path) -> Result<Self, GgufError> {
        serde_json::from_slice(config).map_err(|error| GgufError::Malformed {
            path: path.to_owned(),
            found: error.to_string(),
            expected: "a model's configuration",
        })
    }
}

/// The keys of `general.*` and of the architecture. `name` is the model's, for readers; `experts` is the type of their matrices.
///
/// # Errors
/// A family or a property that has no place in GGUF.
pub(super) fn keys(
    spec: &ModelSpec,
    extras: &ConfigExtras,
    name: &str,
    experts: GgufType,
) -> Result<Vec<(String, Value)>, GgufError> {
    let architecture = architecture(spec)?;
    let moe = uniform_experts(spec)?;
    let attention = &spec.layers.first().ok_or_else(|| no_layers(spec))?.attention;
    if spec.layers.iter().any(|layer| layer.attention.rope != attention.rope) {
        return Err(unsupported("rope", "different from layer to layer", "the same in every layer"));
    }
    // Most of the weights are the experts'.
    let file_type = match experts {
        GgufType::F32 => 0,
        GgufType::Bf16 => 32,
        GgufType::Q4_0 => 2,
    };
    let mut keys = vec![
        ("general.architecture".to_owned(), Value::String(architecture.to_owned())),
        ("general.type".to_owned(), Value::String("model".to_owned())),
        ("general.name".to_owned(), Value::String(name.to_owned())),
        ("general.file_type".to_owned(), Value::U32(file_type)),
        ("general.quantization_version".to_owned(), Value::U32(QUANTIZATION_VERSION)),
    ];
    let mut add = |key: &str, value: Value| keys.push((format!("{architecture}.{key}"), value));
    let intermediate_size = extras.intermediate_size.map_or(Ok(0), Ok::<u32, GgufError>)?;
    add("block_count", count("num_hidden_layers", spec.layers.len())?);
    add("context_length", count("max_position_embeddings", spec.max_position_embeddings)?);
    add("embedding_length", count("hidden_size", spec.hidden_size)?);
    add("feed_forward_length", Value::U32(intermediate_size));
    add("attention.head_count", count("num_attention_heads", attention.num_attention_heads)?);
    add("attention.head_count_kv", count("num_key_value_heads", attention.num_key_value_heads)?);
    add("attention.key_length", count("head_dim", attention.head_dim)?);
    add("attention.value_length", count("head_dim", attention.head_dim)?);
    add("attention.layer_norm_rms_epsilon", Value::F32(spec.rms_norm_eps));
    add("expert_count", count("num_experts", moe.num_experts())?);
    add("expert_used_count", count("num_experts_per_tok", moe.num_experts_per_tok)?);
    add("expert_feed_forward_length", count("moe_intermediate_size", moe.moe_intermediate_size())?);
    add("rope.freq_base", Value::F32(attention.rope.theta as f32));
    for (key, value) in rope_scaling(&attention.rope)? {
        add(key, value);
    }
    Ok(keys)
}

fn architecture(spec: &ModelSpec) -> Result<&'static str, GgufError> {
    let known = || ARCHITECTURES.iter().map(|(model_type, _)| *model_type).collect::<Vec<_>>().join(", ");
    ARCHITECTURES
        .iter()
        .find(|(model_type, _)| *model_type == spec.model_type)
        .map(|&(_, architecture)| architecture)
        .ok_or_else(|| unsupported("model_type", &spec.model_type, format!("one of: {}", known())))
}

/// llama.cpp takes every layer of this architecture for one with experts, always normalises the chosen scores, and knows no
/// other scale of attention than the usual one.
fn uniform_experts(spec: &ModelSpec) -> Result<&MoeSpec, GgufError> {
    let mut found: Option<&MoeSpec> = None;
    for layer in &spec.layers {
        let FfnSpec::Moe(moe) = &layer.ffn else {
            return Err(unsupported("a layer", "dense", "experts in every layer, as llama.cpp has it"));
        };
        found = Some(moe);
    }
    let moe = found.ok_or_else(|| no_layers(spec))?;
    if moe.routing != Routing::softmax(true) {
        let found = format!("{:?}", moe.routing);
        return Err(unsupported("the routing", found, "a softmax with norm_topk_prob, as llama.cpp has it"));
    }
    Ok(moe)
}

fn rope_scaling(rope: &RopeSpec) -> Result<Vec<(&'static str, Value)>, GgufError> {
    let RopeScaling::Yarn {
        factor,
        original_max_position_embeddings,
        beta_fast,
        beta_slow,
        attention_factor,
        truncate,
    } = rope.scaling
    else {
        return Ok(Vec::new());
    };
    if (beta_fast, beta_slow) != YARN_BETAS {
        return Err(unsupported("YaRN's beta_fast and beta_slow", format!("{beta_fast} and {beta_slow}"), "32 and 1"));
    }
    if !truncate {
        return Err(unsupported("YaRN's truncate", "false", "true"));
    }
    // llama.cpp multiplies its own value by what a file says, so only its own can be said.
    let usual = yarn_attention_factor(factor, None, None);
    if (attention_factor - usual).abs() > YARN_TOLERANCE {
        return Err(unsupported("YaRN's attention_factor", attention_factor.to_string(), format!("{usual}")));
    }
    Ok(vec![
        ("rope.scaling.type", Value::String("yarn".to_owned())),
        ("rope.scaling.factor", Value::F32(factor as f32)),
        (
            "rope.scaling.original_context_length",
            count("original_max_position_embeddings", original_max_position_embeddings)?,
        ),
    ])
}

fn no_layers(spec: &ModelSpec) -> GgufError {
    unsupported("num_hidden_layers", spec.layers.len().to_string(), "at least 1")
}

fn count(what: &'static str, value: usize) -> Result<Value, GgufError> {
    let fits = u32::try_from(value).map_err(|_| unsupported(what, value.to_string(), "a number of 32 bits"))?;
    Ok(Value::U32(fits))
}

fn unsupported(what: &'static str, found: impl Into<String>, expected: impl Into<String>) -> GgufError {
    GgufError::Unsupported { what, found: found.into(), expected: expected.into() }
}
