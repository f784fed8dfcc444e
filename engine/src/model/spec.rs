//! What a model *is*, as data: the engine interprets a [`ModelSpec`] and knows no family by name.
//!
//! A family file turns a `config.json` into one of these. Field names are Hugging Face's. Nothing here knows of
//! precision, residency or devices.

/// A whole model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// Hugging Face's `model_type`.
    pub model_type: String,
    /// Rows of the embedding and of the head.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Added to the mean square inside every RMSNorm.
    pub rms_norm_eps: f32,
    /// The longest sequence the checkpoint claims to support, in tokens.
    pub max_position_embeddings: usize,
    /// Token embedding, `[vocab_size, hidden_size]`.
    pub embed_tokens: TensorSource,
    /// Output head, `[vocab_size, hidden_size]`; the embedding itself where the two are tied.
    pub lm_head: TensorSource,
    /// Final norm, `[hidden_size]`.
    pub final_norm: TensorSource,
    /// The layers, first to last.
    pub layers: Vec<LayerSpec>,
    /// Token ids that end a sequence, from config.json.
    pub eos_token_ids: Vec<u32>,
}

/// One decoder layer: norm, attention, residual, norm, feed-forward, residual.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec {
    /// `[hidden_size]`, before attention.
    pub input_layernorm: TensorSource,
    /// `[hidden_size]`, before the feed-forward part.
    pub post_attention_layernorm: TensorSource,
    /// The attention part.
    pub attention: AttentionSpec,
    /// The feed-forward part.
    pub ffn: FfnSpec,
}

/// Grouped-query attention.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    /// Width of one head. `head_dim * num_attention_heads` may differ from `hidden_size`.
    pub head_dim: usize,
    /// Factor on every score, usually `head_dim^-0.5`.
    pub scale: f32,
    /// `[num_attention_heads * head_dim, hidden_size]`
    pub q_proj: LinearSource,
    /// `[num_key_value_heads * head_dim, hidden_size]`
    pub k_proj: LinearSource,
    /// `[num_key_value_heads * head_dim, hidden_size]`
    pub v_proj: LinearSource,
    /// `[hidden_size, num_attention_heads * head_dim]`
    pub o_proj: LinearSource,
    /// RMSNorm weights `[head_dim]` on every query head and every key head, before rope.
    pub qk_norm: Option<QkNorm>,
    /// Rotary position embedding.
    pub rope: RopeSpec,
}

/// RMSNorm on each head of q and k.
#[derive(Debug, Clone, PartialEq)]
pub struct QkNorm {
    /// `[head_dim]`
    pub q_norm: TensorSource,
    /// `[head_dim]`
    pub k_norm: TensorSource,
}

/// Rotary position embedding; a head's first half is paired with its second half.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    /// Base of the frequencies.
    pub theta: f64,
    /// How the frequencies are scaled for long contexts.
    pub scaling: RopeScaling,
}

/// Kinds of rope scaling.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// None: frequency i is `theta^(-2i / head_dim)`.
    Default,
    /// YaRN (arXiv 2309.00071), with transformers' parameter names.
    Yarn {
        /// How much longer the context becomes.
        factor: f64,
        /// The context that the checkpoint was trained at.
        original_max_position_embeddings: usize,
        /// Rotations above which a frequency is left alone.
        beta_fast: f64,
        /// Rotations below which a frequency is divided by `factor`.
        beta_slow: f64,
        /// Factor on cos and sin, already resolved from `attention_factor`, `mscale` and `mscale_all_dim`.
        attention_factor: f64,
        /// Whether the correction range is rounded to whole dimensions.
        truncate: bool,
    },
}

/// The feed-forward part of a layer.
#[derive(Debug, Clone, PartialEq)]
pub enum FfnSpec {
    /// An ordinary gated feed-forward network.
    Dense(MlpSpec),
    /// Routed experts.
    Moe(MoeSpec),
}

/// A gated network: `down(silu(gate(x)) * up(x))`.
#[derive(Debug, Clone, PartialEq)]
pub struct MlpSpec {
    /// Width between the projections.
    pub intermediate_size: usize,
    /// `[intermediate_size, hidden_size]`
    pub gate_proj: LinearSource,
    /// `[intermediate_size, hidden_size]`
    pub up_proj: LinearSource,
    /// `[hidden_size, intermediate_size]`
    pub down_proj: LinearSource,
}

/// Routed experts.
#[derive(Debug, Clone, PartialEq)]
pub struct MoeSpec {
    /// Experts chosen for each token.
    pub num_experts_per_tok: usize,
    /// Divide the chosen scores by their sum.
    pub norm_topk_prob: bool,
    /// Router, `[num_experts, hidden_size]`.
    pub router: LinearSource,
    /// The experts, all of one shape.
    pub experts: Vec<MlpSpec>,
}

impl MoeSpec {
    /// Experts in this layer.
    pub fn num_experts(&self) -> usize {
        self.experts.len()
    }
    /// Width between an expert's projections; 0 without experts (a family never builds that).
    pub fn moe_intermediate_size(&self) -> usize {
        self.experts.first().map_or(0, |expert| expert.intermediate_size)
    }
}

/// A linear layer in the checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearSource {
    /// `[outputs, inputs]`
    pub weight: TensorSource,
    /// `[outputs]`
    pub bias: Option<TensorSource>,
}

/// Where a tensor is found in the checkpoint, and the shape it must have there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorSource {
    /// Name in the safetensors files.
    pub name: String,
    /// Shape expected in the file.
    pub shape: Vec<usize>,
}
