//! OLMoE (`OlmoeForCausalLM`): RMSNorm over the whole width of q and of k; the top k of a softmax over all experts.

use assay_kernels::Routing;

use super::common::{self, PROJECTIONS, Sizes};
use super::limits;
use crate::model::config::Config;
use crate::model::error::ModelError;
use crate::model::names::linear;
use crate::model::rope_config;
use crate::model::spec::{AttentionSpec, FfnSpec, ModelSpec, MoeSpec};

/// Builds the model that a `config.json` describes.
pub(in crate::model) fn build(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    common::refuse_unsupported(config)?;
    config.require(config.get("clip_qkv").is_none(), "clip_qkv", "null: no clipping of q, k and v")?;
    let sizes = Sizes::read(config)?;
    let rope = rope_config::read(config, sizes.max_position_embeddings)?;
    let bias = config.bool_or("attention_bias", false)?;
    let norm_topk_prob = config.bool_or("norm_topk_prob", false)?;
    let (num_experts, num_experts_per_tok) = common::experts(config, &["num_experts", "num_local_experts"], &sizes)?;
    let width = config.usize("intermediate_size", 1..=limits::WIDTH)?;
    common::decoder(config, "olmoe", &sizes, |prefix, _| {
        let name = format!("{prefix}.self_attn");
        let attention = AttentionSpec {
            qk_norm: Some(common::projection_norm(&name, &sizes)),
            ..common::attention(&name, &sizes, [bias; 2], rope.clone())
        };
        let prefix = format!("{prefix}.mlp");
        let ffn = FfnSpec::Moe(MoeSpec {
            num_experts_per_tok,
            routing: Routing::softmax(norm_topk_prob),
            router: linear(&format!("{prefix}.gate"), num_experts, sizes.hidden_size, false),
            correction_bias: None,
            experts: common::separate_experts(&prefix, PROJECTIONS, num_experts, width, sizes.hidden_size),
            shared: None,
        });
        Ok((attention, ffn))
    })
}
