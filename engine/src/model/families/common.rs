//! What the configs of most families have in common.

use super::limits;
use crate::model::config::Config;
use crate::model::error::ModelError;
use crate::model::rope_config::MAX_POSITIONS;

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
    let hidden_act = config.optional_str("hidden_act")?;
    config.require(hidden_act.is_none_or(|act| act == "silu"), "hidden_act", "silu")?;
    config.require(
        config.get("quantization_config").is_none(),
        "quantization_config",
        "unquantised weights, without this field",
    )?;
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
