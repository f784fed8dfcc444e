//! Qwen3-MoE (`Qwen3MoeForCausalLM`): grouped-query attention with RMSNorm on every head of q and k; a softmax over all
//! experts, the top k of which are used; dense layers where `mlp_only_layers` and `decoder_sparse_step` say so.

use assay_kernels::Routing;

use super::common::{self, PROJECTIONS, Sizes};
use super::limits;
use crate::model::config::Config;
use crate::model::error::ModelError;
use crate::model::names::{linear, mlp};
use crate::model::rope_config;
use crate::model::spec::{AttentionSpec, FfnSpec, ModelSpec, MoeSpec};

/// Builds the model that a `config.json` describes.
pub(in crate::model) fn build(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    common::refuse_unsupported(config)?;
    common::refuse_sliding_window(config)?;
    let sizes = Sizes::read(config)?;
    let rope = rope_config::read(config, sizes.max_position_embeddings)?;
    let bias = config.bool_or("attention_bias", false)?;
    let experts = Experts::read(config, &sizes)?;
    common::decoder(config, "qwen3_moe", &sizes, |prefix, index| {
        let name = format!("{prefix}.self_attn");
        let attention = AttentionSpec {
            qk_norm: Some(common::head_norm(&name, &sizes)),
            ..common::attention(&name, &sizes, [bias; 2], rope.clone())
        };
        Ok((attention, experts.ffn(config, &format!("{prefix}.mlp"), index, sizes.hidden_size)?))
    })
}

/// The fields about experts.
pub(super) struct Experts {
    num_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    norm_topk_prob: bool,
    decoder_sparse_step: usize,
    mlp_only_layers: Vec<usize>,
}

impl Experts {
    pub(super) fn read(config: &Config<'_>, sizes: &Sizes) -> Result<Self, ModelError> {
        let (num_experts, num_experts_per_tok) = common::experts(config, &["num_experts", "num_local_experts"], sizes)?;
        Ok(Self {
            num_experts,
            num_experts_per_tok,
            moe_intermediate_size: config.usize("moe_intermediate_size", 1..=limits::WIDTH)?,
            norm_topk_prob: config.bool_or("norm_topk_prob", false)?,
            decoder_sparse_step: config.optional_usize("decoder_sparse_step", 1..=limits::LAYERS)?.unwrap_or(1),
            mlp_only_layers: config.indices("mlp_only_layers", sizes.num_hidden_layers)?,
        })
    }

    /// Layer `index` has experts where it is not listed as dense and its number, from 1, is a multiple of the step.
    pub(super) fn ffn(
        &self,
        config: &Config<'_>,
        prefix: &str,
        index: usize,
        hidden_size: usize,
    ) -> Result<FfnSpec, ModelError> {
        let sparse = !self.mlp_only_layers.contains(&index) && (index + 1).is_multiple_of(self.decoder_sparse_step);
        if !sparse {
            let intermediate_size = config.usize("intermediate_size", 1..=limits::WIDTH)?;
            return Ok(FfnSpec::Dense(mlp(prefix, PROJECTIONS, intermediate_size, hidden_size)));
        }
        let (num_experts, width) = (self.num_experts, self.moe_intermediate_size);
        Ok(FfnSpec::Moe(MoeSpec {
            num_experts_per_tok: self.num_experts_per_tok,
            routing: Routing::softmax(self.norm_topk_prob),
            router: linear(&format!("{prefix}.gate"), num_experts, hidden_size, false),
            correction_bias: None,
            experts: common::separate_experts(prefix, PROJECTIONS, num_experts, width, hidden_size),
            shared: None,
        }))
    }
}
