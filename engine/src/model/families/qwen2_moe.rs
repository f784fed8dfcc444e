//! Qwen2-MoE (`Qwen2MoeForCausalLM`): biases on q, k and v; a softmax over all experts, the top k of which are used; beside them
//! an expert that every token goes through, behind a sigmoid gate.

use super::common::{self, PROJECTIONS, Sizes};
use super::limits;
use super::qwen3_moe::Experts;
use crate::model::config::Config;
use crate::model::error::ModelError;
use crate::model::names::{linear, mlp};
use crate::model::rope_config;
use crate::model::spec::{FfnSpec, ModelSpec, SharedSpec};

/// Builds the model that a `config.json` describes.
pub(in crate::model) fn build(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    common::refuse_unsupported(config)?;
    common::refuse_sliding_window(config)?;
    let sizes = Sizes::read(config)?;
    let rope = rope_config::read(config, sizes.max_position_embeddings)?;
    // Configs older than the field have the biases.
    let qkv_bias = config.bool_or("qkv_bias", true)?;
    let experts = Experts::read(config, &sizes)?;
    let shared_width = config.usize("shared_expert_intermediate_size", 1..=limits::WIDTH)?;
    common::decoder(config, "qwen2_moe", &sizes, |prefix, index| {
        let attention = common::attention(&format!("{prefix}.self_attn"), &sizes, [qkv_bias, false], rope.clone());
        let prefix = format!("{prefix}.mlp");
        let mut ffn = experts.ffn(config, &prefix, index, sizes.hidden_size)?;
        if let FfnSpec::Moe(moe) = &mut ffn {
            moe.shared = Some(Box::new(SharedSpec {
                mlp: mlp(&format!("{prefix}.shared_expert"), PROJECTIONS, shared_width, sizes.hidden_size),
                gate: Some(linear(&format!("{prefix}.shared_expert_gate"), 1, sizes.hidden_size, false)),
            }));
        }
        Ok((attention, ffn))
    })
}
