//! Granite MoE (`GraniteMoeForCausalLM`): multipliers on embeddings, attention scores, residuals and logits; weights are a softmax
//! over the chosen; all experts of a layer in two tensors.

use assay_kernels::{Activation, Routing, Scoring};

use super::common::{self, Sizes};
use super::limits;
use crate::model::config::Config;
use crate::model::error::ModelError;
use crate::model::names::{part, tensor};
use crate::model::rope_config;
use crate::model::spec::{AttentionSpec, FfnSpec, LinearSource, MlpSpec, ModelSpec, MoeSpec};

/// Builds the model that a `config.json` describes.
pub(in crate::model) fn build(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    common::refuse_unsupported(config)?;
    let sizes = Sizes::read(config)?;
    let rope = rope_config::read(config, sizes.max_position_embeddings)?;
    let bias = config.bool_or("attention_bias", false)?;
    let scale = common::positive_f32(config, "attention_multiplier", 1.0)?;
    let residual_multiplier = common::positive_f32(config, "residual_multiplier", 1.0)?;
    let logits_scaling = common::positive_f32(config, "logits_scaling", 1.0)?;
    let (num_experts, num_experts_per_tok) = common::experts(config, &["num_local_experts", "num_experts"], &sizes)?;
    let width = config.usize("intermediate_size", 1..=limits::WIDTH)?;
    let routing = Routing { scoring: Scoring::SoftmaxOfChosen, ..Routing::softmax(false) };
    let mut spec = common::decoder(config, "granitemoe", &sizes, |prefix, _| {
        let attention = common::attention(&format!("{prefix}.self_attn"), &sizes, [bias; 2], rope.clone());
        let prefix = format!("{prefix}.block_sparse_moe");
        let router = tensor(format!("{prefix}.router.layer.weight"), &[num_experts, sizes.hidden_size]);
        let expert = |expert| fused_expert(&prefix, expert, num_experts, width, sizes.hidden_size);
        let ffn = FfnSpec::Moe(MoeSpec {
            num_experts_per_tok,
            routing,
            router: LinearSource { weight: router, bias: None },
            correction_bias: None,
            experts: (0..num_experts).map(expert).collect(),
            shared: None,
        });
        Ok((AttentionSpec { scale, ..attention }, ffn))
    })?;
    spec.embedding_multiplier = common::positive_f32(config, "embedding_multiplier", 1.0)?;
    // The config's number divides.
    spec.logits_multiplier = 1.0 / logits_scaling;
    spec.layers.iter_mut().for_each(|layer| layer.residual_multiplier = residual_multiplier);
    Ok(spec)
}

/// `input_linear` is `[experts, gate rows then up rows, hidden]`, `output_linear` is `[experts, hidden, width]`.
fn fused_expert(prefix: &str, expert: usize, num_experts: usize, width: usize, hidden_size: usize) -> MlpSpec {
    let input = |first: usize| {
        let (shape, file) = ([width, hidden_size], [num_experts, 2 * width, hidden_size]);
        let offset = (expert * 2 * width + first) * hidden_size;
        let weight = part(format!("{prefix}.input_linear.weight"), &shape, &file, offset, [hidden_size, 1]);
        LinearSource { weight, bias: None }
    };
    let (shape, file) = ([hidden_size, width], [num_experts, hidden_size, width]);
    let offset = expert * hidden_size * width;
    let down = part(format!("{prefix}.output_linear.weight"), &shape, &file, offset, [width, 1]);
    MlpSpec {
        intermediate_size: width,
        gate_proj: input(0),
        up_proj: input(width),
        down_proj: LinearSource { weight: down, bias: None },
        activation: Activation::SwiGlu,
    }
}
