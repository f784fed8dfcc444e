//! Qwen3-MoE (`Qwen3MoeForCausalLM`): grouped-query attention with RMSNorm on every head of q and k; a softmax over all
//! experts, the top k of which are used; dense layers where `mlp_only_layers` and `decoder_sparse_step` say so.

use super::common::{self, Sizes};
use super::limits;
use crate::model::config::Config;
use crate::model::error::ModelError;
use crate::model::names::{linear, mlp, tensor};
use crate::model::rope_config;
use crate::model::spec::{AttentionSpec, FfnSpec, LayerSpec, ModelSpec, MoeSpec, QkNorm, RopeSpec};

/// Names of a gated network's projections.
const PROJECTIONS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// Builds the model that a `config.json` describes.
pub(in crate::model) fn build(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    common::refuse_unsupported(config)?;
    common::refuse_sliding_window(config)?;
    let sizes = Sizes::read(config)?;
    let rope = rope_config::read(config, sizes.max_position_embeddings)?;
    let attention_bias = config.bool_or("attention_bias", false)?;
    let experts = Experts::read(config, &sizes)?;
    let layer = |index: usize| -> Result<LayerSpec, ModelError> {
        let prefix = format!("model.layers.{index}");
        Ok(LayerSpec {
            input_layernorm: tensor(format!("{prefix}.input_layernorm.weight"), &[sizes.hidden_size]),
            post_attention_layernorm: tensor(format!("{prefix}.post_attention_layernorm.weight"), &[sizes.hidden_size]),
            attention: attention(&format!("{prefix}.self_attn"), &sizes, attention_bias, rope.clone()),
            ffn: experts.ffn(config, &format!("{prefix}.mlp"), index, sizes.hidden_size)?,
        })
    };
    let embed_tokens = tensor("model.embed_tokens.weight", &[sizes.vocab_size, sizes.hidden_size]);
    let tied = config.bool_or("tie_word_embeddings", false)?;
    let lm_head =
        if tied { embed_tokens.clone() } else { tensor("lm_head.weight", &[sizes.vocab_size, sizes.hidden_size]) };
    Ok(ModelSpec {
        model_type: "qwen3_moe".into(),
        vocab_size: sizes.vocab_size,
        hidden_size: sizes.hidden_size,
        rms_norm_eps: sizes.rms_norm_eps,
        max_position_embeddings: sizes.max_position_embeddings,
        embed_tokens,
        lm_head,
        final_norm: tensor("model.norm.weight", &[sizes.hidden_size]),
        layers: (0..sizes.num_hidden_layers).map(layer).collect::<Result<_, _>>()?,
        eos_token_ids: common::eos_token_ids(config, sizes.vocab_size)?,
    })
}

fn attention(prefix: &str, sizes: &Sizes, bias: bool, rope: RopeSpec) -> AttentionSpec {
    let (hidden_size, head_dim) = (sizes.hidden_size, sizes.head_dim);
    let q_size = sizes.num_attention_heads * head_dim;
    let kv_size = sizes.num_key_value_heads * head_dim;
    AttentionSpec {
        num_attention_heads: sizes.num_attention_heads,
        num_key_value_heads: sizes.num_key_value_heads,
        head_dim,
        scale: (1.0 / (head_dim as f64).sqrt()) as f32,
        q_proj: linear(&format!("{prefix}.q_proj"), q_size, hidden_size, bias),
        k_proj: linear(&format!("{prefix}.k_proj"), kv_size, hidden_size, bias),
        v_proj: linear(&format!("{prefix}.v_proj"), kv_size, hidden_size, bias),
        o_proj: linear(&format!("{prefix}.o_proj"), hidden_size, q_size, bias),
        qk_norm: Some(QkNorm {
            q_norm: tensor(format!("{prefix}.q_norm.weight"), &[head_dim]),
            k_norm: tensor(format!("{prefix}.k_norm.weight"), &[head_dim]),
        }),
        rope,
    }
}

/// The fields about experts.
struct Experts {
    num_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    norm_topk_prob: bool,
    decoder_sparse_step: usize,
    mlp_only_layers: Vec<usize>,
}

impl Experts {
    fn read(config: &Config<'_>, sizes: &Sizes) -> Result<Self, ModelError> {
        let num_experts = config.any_usize(&["num_experts", "num_local_experts"], 1..=limits::EXPERTS)?;
        let num_experts_per_tok = config.usize("num_experts_per_tok", 1..=num_experts)?;
        let in_all = num_experts * sizes.num_hidden_layers;
        if in_all > limits::EXPERTS_IN_ALL {
            return Err(config.wrong(
                "num_experts",
                num_experts,
                format!("at most {} experts in all layers, not {in_all}", limits::EXPERTS_IN_ALL),
            ));
        }
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
    fn ffn(&self, config: &Config<'_>, prefix: &str, index: usize, hidden_size: usize) -> Result<FfnSpec, ModelError> {
        let sparse = !self.mlp_only_layers.contains(&index) && (index + 1).is_multiple_of(self.decoder_sparse_step);
        if !sparse {
            let intermediate_size = config.usize("intermediate_size", 1..=limits::WIDTH)?;
            return Ok(FfnSpec::Dense(mlp(prefix, PROJECTIONS, intermediate_size, hidden_size)));
        }
        let expert = |expert: usize| {
            mlp(&format!("{prefix}.experts.{expert}"), PROJECTIONS, self.moe_intermediate_size, hidden_size)
        };
        Ok(FfnSpec::Moe(MoeSpec {
            num_experts_per_tok: self.num_experts_per_tok,
            norm_topk_prob: self.norm_topk_prob,
            router: linear(&format!("{prefix}.gate"), self.num_experts, hidden_size, false),
            experts: (0..self.num_experts).map(expert).collect(),
        }))
    }
}
