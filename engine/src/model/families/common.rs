//! What the configs of most families have in common.

use super::limits;
use crate::model::config::Config;
use crate::model::error::ModelError;
use crate::model::names::{linear, mlp, tensor};
use crate::model::rope_config::MAX_POSITIONS;
use crate::model::spec::{AttentionSpec, FfnSpec, LayerSpec, MlpSpec, ModelSpec, QkNorm, RopeSpec};

/// The usual names of a gated network's projections.
pub(super) const PROJECTIONS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// The sizes that every decoder has.
pub(super) struct Sizes {
    pub(super) vocab_size: usize,
    pub(super) hidden_size: usize,
    pub(super) num_hidden_layers: usize,
    pub(super) num_attention_heads: usize,
    pub(super) num_key_value_heads: usize,
    pub(super) head_dim: usize,
    pub(super) max_position_embeddings: usize,
    pub(super) rms_norm_eps: f32,
}

impl Sizes {
    /// Reads and checks them; a missing `head_dim` is `hidden_size / num_attention_heads`.
    pub(super) fn read(config: &Config<'_>) -> Result<Self, ModelError> {
        let hidden_size = config.usize("hidden_size", 1..=limits::WIDTH)?;
        let num_attention_heads = config.usize("num_attention_heads", 1..=limits::HEADS)?;
        let num_key_value_heads = config.usize("num_key_value_heads", 1..=limits::HEADS)?;
        if !num_attention_heads.is_multiple_of(num_key_value_heads) {
            let expected = format!("a divisor of num_attention_heads, {num_attention_heads}");
            return Err(config.wrong("num_key_value_heads", num_key_value_heads, expected));
        }
        let head_dim = match config.optional_usize("head_dim", 1..=limits::HEAD_DIM)? {
            Some(head_dim) => head_dim,
            None if hidden_size.is_multiple_of(num_attention_heads) => hidden_size / num_attention_heads,
            None => {
                let expected = format!(
                    "hidden_size, {hidden_size}, to be a multiple of num_attention_heads, {num_attention_heads}"
                );
                return Err(config.missing("head_dim", expected));
            }
        };
        if !head_dim.is_multiple_of(2) || head_dim > limits::HEAD_DIM {
            return Err(config.wrong("head_dim", head_dim, format!("an even number up to {}", limits::HEAD_DIM)));
        }
        Ok(Self {
            vocab_size: config.usize("vocab_size", 1..=limits::VOCAB)?,
            hidden_size,
            num_hidden_layers: config.usize("num_hidden_layers", 1..=limits::LAYERS)?,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            max_position_embeddings: config.usize("max_position_embeddings", 1..=MAX_POSITIONS)?,
            rms_norm_eps: rms_norm_eps(config)?,
        })
    }
}

/// As f32, which must neither lose it to 0 nor make it infinite.
fn rms_norm_eps(config: &Config<'_>) -> Result<f32, ModelError> {
    let eps = config.positive("rms_norm_eps")?;
    let rounded = eps as f32;
    if rounded > 0.0 && rounded.is_finite() {
        return Ok(rounded);
    }
    Err(config.wrong("rms_norm_eps", format_args!("{eps:e}"), "a number that f32 can hold"))
}

/// Refuses what changes the arithmetic of any family and is not implemented: other activations than SiLU, quantised
/// checkpoints, weights of unknown types.
pub(super) fn refuse_unsupported(config: &Config<'_>) -> Result<(), ModelError> {
    config.require(
        config.get("quantization_config").is_none(),
        "quantization_config",
        "unquantised weights, without this field",
    )?;
    refuse_other_arithmetic(config)
}

/// [`refuse_unsupported`] for a family that says itself which quantised checkpoints it reads.
pub(super) fn refuse_other_arithmetic(config: &Config<'_>) -> Result<(), ModelError> {
    let hidden_act = config.optional_str("hidden_act")?;
    config.require(hidden_act.is_none_or(|act| act == "silu"), "hidden_act", "silu")?;
    for field in ["dtype", "torch_dtype"] {
        let dtype = config.optional_str(field)?;
        let supported = dtype.is_none_or(|dtype| matches!(dtype, "bfloat16" | "float16" | "float32"));
        config.require(supported, field, "bfloat16, float16 or float32")?;
    }
    Ok(())
}

/// Refuses attention that does not see the whole context.
pub(super) fn refuse_sliding_window(config: &Config<'_>) -> Result<(), ModelError> {
    config.require(
        !config.bool_or("use_sliding_window", false)?,
        "use_sliding_window",
        "false: every layer attends to the whole context",
    )?;
    let full = |layer: &serde_json::Value| layer.as_str() == Some("full_attention");
    let layer_types = config.get("layer_types");
    let all_full = layer_types.is_none_or(|types| types.as_array().is_some_and(|types| types.iter().all(full)));
    config.require(all_full, "layer_types", "full_attention in every layer")
}

/// `eos_token_id`: a number, a list, or nothing.
pub(super) fn eos_token_ids(config: &Config<'_>, vocab_size: usize) -> Result<Vec<u32>, ModelError> {
    // Below the vocabulary's limit, so every id fits.
    Ok(config.indices("eos_token_id", vocab_size)?.into_iter().map(|id| id as u32).collect())
}

/// A decoder whose layers are `model.layers.N`, with both norms under their usual names; `layer` says what is between them,
/// given the prefix and the index. Multipliers are 1.
pub(super) fn decoder(
    config: &Config<'_>,
    model_type: &str,
    sizes: &Sizes,
    mut layer: impl FnMut(&str, usize) -> Result<(AttentionSpec, FfnSpec), ModelError>,
) -> Result<ModelSpec, ModelError> {
    let norm = |name: String| tensor(format!("{name}.weight"), &[sizes.hidden_size]);
    let layers = (0..sizes.num_hidden_layers).map(|index| {
        let prefix = format!("model.layers.{index}");
        let (attention, ffn) = layer(&prefix, index)?;
        Ok(LayerSpec {
            input_layernorm: norm(format!("{prefix}.input_layernorm")),
            post_attention_layernorm: norm(format!("{prefix}.post_attention_layernorm")),
            attention,
            ffn,
            residual_multiplier: 1.0,
        })
    });
    let layers = layers.collect::<Result<_, ModelError>>()?;
    let embed_tokens = tensor("model.embed_tokens.weight", &[sizes.vocab_size, sizes.hidden_size]);
    let tied = config.bool_or("tie_word_embeddings", false)?;
    let lm_head =
        if tied { embed_tokens.clone() } else { tensor("lm_head.weight", &[sizes.vocab_size, sizes.hidden_size]) };
    Ok(ModelSpec {
        model_type: model_type.to_owned(),
        vocab_size: sizes.vocab_size,
        hidden_size: sizes.hidden_size,
        rms_norm_eps: sizes.rms_norm_eps,
        max_position_embeddings: sizes.max_position_embeddings,
        embed_tokens,
        lm_head,
        final_norm: norm("model.norm".into()),
        embedding_multiplier: 1.0,
        logits_multiplier: 1.0,
        layers,
        eos_token_ids: eos_token_ids(config, sizes.vocab_size)?,
    })
}

/// Attention as most families have it: four projections, whole heads turned, every position up to its own seen.
/// Biases are on q, k and v, and on o.
pub(super) fn attention(prefix: &str, sizes: &Sizes, [qkv_bias, o_bias]: [bool; 2], rope: RopeSpec) -> AttentionSpec {
    let (hidden_size, head_dim) = (sizes.hidden_size, sizes.head_dim);
    let q_size = sizes.num_attention_heads * head_dim;
    let kv_size = sizes.num_key_value_heads * head_dim;
    AttentionSpec {
        num_attention_heads: sizes.num_attention_heads,
        num_key_value_heads: sizes.num_key_value_heads,
        head_dim,
        scale: (1.0 / (head_dim as f64).sqrt()) as f32,
        q_proj: linear(&format!("{prefix}.q_proj"), q_size, hidden_size, qkv_bias),
        k_proj: linear(&format!("{prefix}.k_proj"), kv_size, hidden_size, qkv_bias),
        v_proj: linear(&format!("{prefix}.v_proj"), kv_size, hidden_size, qkv_bias),
        o_proj: linear(&format!("{prefix}.o_proj"), hidden_size, q_size, o_bias),
        qk_norm: None,
        rope,
        rotary_dim: head_dim,
        sliding_window: None,
        sinks: None,
    }
}

/// `q_norm` and `k_norm` under `prefix`: for each head by itself.
pub(super) fn head_norm(prefix: &str, sizes: &Sizes) -> QkNorm {
    qk_norm(prefix, sizes.head_dim, sizes.head_dim)
}

/// `q_norm` and `k_norm` under `prefix`: for all heads together.
pub(super) fn projection_norm(prefix: &str, sizes: &Sizes) -> QkNorm {
    qk_norm(prefix, sizes.num_attention_heads * sizes.head_dim, sizes.num_key_value_heads * sizes.head_dim)
}

fn qk_norm(prefix: &str, q_width: usize, k_width: usize) -> QkNorm {
    QkNorm {
        q_norm: tensor(format!("{prefix}.q_norm.weight"), &[q_width]),
        k_norm: tensor(format!("{prefix}.k_norm.weight"), &[k_width]),
    }
}

/// Experts, by one of several names, and how many of them a token uses; checked against the model as a whole.
pub(super) fn experts(config: &Config<'_>, names: &[&str], sizes: &Sizes) -> Result<(usize, usize), ModelError> {
    let num_experts = config.any_usize(names, 1..=limits::EXPERTS)?;
    let num_experts_per_tok = config.usize("num_experts_per_tok", 1..=num_experts)?;
    let in_all = num_experts * sizes.num_hidden_layers;
    if in_all > limits::EXPERTS_IN_ALL {
        let name = names.first().copied().unwrap_or("num_experts");
        let expected = format!("at most {} experts in all layers, not {in_all}", limits::EXPERTS_IN_ALL);
        return Err(config.wrong(name, num_experts, expected));
    }
    Ok((num_experts, num_experts_per_tok))
}

/// Experts `{prefix}.experts.N` with the projections `names`: gate, up, down.
pub(super) fn separate_experts(
    prefix: &str,
    names: [&str; 3],
    num_experts: usize,
    intermediate_size: usize,
    hidden_size: usize,
) -> Vec<MlpSpec> {
    let expert = |expert: usize| mlp(&format!("{prefix}.experts.{expert}"), names, intermediate_size, hidden_size);
    (0..num_experts).map(expert).collect()
}

/// A number above 0 that f32 can hold; `default` where the field is absent.
pub(super) fn positive_f32(config: &Config<'_>, field: &str, default: f32) -> Result<f32, ModelError> {
    let Some(value) = config.optional_positive(field)? else { return Ok(default) };
    let rounded = value as f32;
    // Normal, so that its inverse is finite too.
    if rounded.is_normal() {
        return Ok(rounded);
    }
    Err(config.wrong(field, format_args!("{value:e}"), "a number that f32 can hold in full"))
}
