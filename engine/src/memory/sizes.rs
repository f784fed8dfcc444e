//! The largest dimension of each kind over a model's layers, which is what shared buffers are sized for.

use assay_kernels::cuda::prefill_attention_supports;

use crate::model::spec::{FfnSpec, ModelSpec};

/// Largest dimensions over all layers; 0 for a kind that no layer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Rows of embedding and head.
    pub vocab_size: usize,
    /// Query heads × head width.
    pub q_width: usize,
    /// Key and value heads × head width.
    pub kv_width: usize,
    /// Query heads.
    pub q_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Whether tensor cores have an attention kernel for every layer.
    pub tensor_attention: bool,
    /// Experts in a MoE layer.
    pub num_experts: usize,
    /// Experts chosen for a token.
    pub top_k: usize,
    /// Width between an expert's projections.
    pub moe_intermediate_size: usize,
    /// Whether experts have biases.
    pub expert_biases: bool,
    /// Width between the projections of a dense layer or a shared expert.
    pub intermediate_size: usize,
    /// Layers with a shared expert.
    pub shared_layers: usize,
    /// Layers with experts.
    pub moe_layers: usize,
}

impl Sizes {
    /// Of a model.
    pub fn of(spec: &ModelSpec) -> Self {
        let mut sizes = Self {
            hidden_size: spec.hidden_size,
            vocab_size: spec.vocab_size,
            q_width: 0,
            kv_width: 0,
            q_heads: 0,
            head_dim: 0,
            tensor_attention: true,
            num_experts: 0,
            top_k: 0,
            moe_intermediate_size: 0,
            expert_biases: false,
            intermediate_size: 0,
            shared_layers: 0,
            moe_layers: 0,
        };
        for layer in &spec.layers {
            let attention = &layer.attention;
            sizes.q_width = sizes.q_width.max(attention.num_attention_heads * attention.head_dim);
            sizes.q_heads = sizes.q_heads.max(attention.num_attention_heads);
            sizes.head_dim = sizes.head_dim.max(attention.head_dim);
            sizes.tensor_attention &= prefill_attention_supports(attention.head_dim);
            sizes.kv_width = sizes.kv_width.max(attention.num_key_value_heads * attention.head_dim);
            match &layer.ffn {
                FfnSpec::Dense(mlp) => sizes.intermediate_size = sizes.intermediate_size.max(mlp.intermediate_size),
                FfnSpec::Moe(moe) => {
                    sizes.moe_layers += 1;
                    sizes.num_experts = sizes.num_experts.max(moe.num_experts());
                    sizes.top_k = sizes.top_k.max(moe.num_experts_per_tok);
                    sizes.moe_intermediate_size = sizes.moe_intermediate_size.max(moe.moe_intermediate_size());
                    sizes.expert_biases |= moe.expert_biases();
                    if let Some(shared) = &moe.shared {
                        sizes.shared_layers += 1;
                        sizes.intermediate_size = sizes.intermediate_size.max(shared.mlp.intermediate_size);
                    }
                }
            }
        }
        sizes
    }
}
