//! What a model *is*, as data: the engine interprets a [`ModelSpec`] and knows no family by name.
//!
//! A family file turns a `config.json` into one of these. Field names are Hugging Face's. Nothing here knows of
//! precision, residency or devices.

use assay_kernels::{Activation, Routing};

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
    /// Factor on every embedding, usually 1.
    pub embedding_multiplier: f32,
    /// Factor on every logit, usually 1.
    pub logits_multiplier: f32,
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
    /// Factor on what each part adds to the residual stream, usually 1.
    pub residual_multiplier: f32,
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
    /// RMSNorm on queries and keys, before rope.
    pub qk_norm: Option<QkNorm>,
    /// Rotary position embedding.
    pub rope: RopeSpec,
    /// The first elements of each head, an even number of them, which rope turns; the rest it leaves alone.
    pub rotary_dim: usize,
    /// A query sees the last so many positions, its own among them; `None` for all.
    pub sliding_window: Option<usize>,
    /// `[num_attention_heads]`: a score for each head that takes part in the softmax and has no value.
    pub sinks: Option<TensorSource>,
}

/// RMSNorm on q and k: weights `[head_dim]` norm each head by itself, weights as wide as the projection all heads together.
#[derive(Debug, Clone, PartialEq)]
pub struct QkNorm {
    /// `[head_dim]` or `[num_attention_heads * head_dim]`
    pub q_norm: TensorSource,
    /// `[head_dim]` or `[num_key_value_heads * head_dim]`
    pub k_norm: TensorSource,
}

/// Rotary position embedding; the first half of the elements that turn is paired with their second half.
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
    /// None: frequency i is `theta^(-2i / rotary_dim)`.
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

impl ModelSpec {
    /// Calls `visit` with every tensor that the model needs, in no stated order, up to the first error.
    ///
    /// # Errors
    /// Those of `visit`.
    pub fn for_each_source<E>(
        &self,
        experts: bool,
        visit: &mut dyn FnMut(&TensorSource) -> Result<(), E>,
    ) -> Result<(), E> {
        [&self.embed_tokens, &self.lm_head, &self.final_norm].into_iter().try_for_each(&mut *visit)?;
        for layer in &self.layers {
            let attention = &layer.attention;
            [&layer.input_layernorm, &layer.post_attention_layernorm].into_iter().try_for_each(&mut *visit)?;
            for linear in [&attention.q_proj, &attention.k_proj, &attention.v_proj, &attention.o_proj] {
                linear.for_each_source(visit)?;
            }
            let norms = attention.qk_norm.iter().flat_map(|norm| [&norm.q_norm, &norm.k_norm]);
            norms.chain(&attention.sinks).try_for_each(&mut *visit)?;
            match &layer.ffn {
                FfnSpec::Dense(mlp) => mlp.for_each_source(visit)?,
                FfnSpec::Moe(moe) => {
                    moe.router.for_each_source(visit)?;
                    moe.correction_bias.iter().try_for_each(&mut *visit)?;
                    let routed = if experts { moe.experts.as_slice() } else { &[] };
                    routed.iter().try_for_each(|expert| expert.for_each_source(visit))?;
                    if let Some(shared) = &moe.shared {
                        shared.mlp.for_each_source(visit)?;
                        shared.gate.iter().try_for_each(|gate| gate.for_each_source(visit))?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl MlpSpec {
    fn for_each_source<E>(&self, visit: &mut dyn FnMut(&TensorSource) -> Result<(), E>) -> Result<(), E> {
        [&self.gate_proj, &self.up_proj, &self.down_proj]
            .into_iter()
            .try_for_each(|linear| linear.for_each_source(visit))
    }
}

impl LinearSource {
    fn for_each_source<E>(&self, visit: &mut dyn FnMut(&TensorSource) -> Result<(), E>) -> Result<(), E> {
        visit(&self.weight)?;
        self.bias.iter().try_for_each(visit)
    }
}

/// The feed-forward part of a layer.
#[derive(Debug, Clone, PartialEq)]
pub enum FfnSpec {
    /// An ordinary gated feed-forward network.
    Dense(MlpSpec),
    /// Routed experts.
    Moe(MoeSpec),
}

/// A gated network: `down(activation(gate(x), up(x)))`.
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
    /// What stands between the projections.
    pub activation: Activation,
}

/// Routed experts, and what runs beside them.
#[derive(Debug, Clone, PartialEq)]
pub struct MoeSpec {
    /// Experts chosen for each token.
    pub num_experts_per_tok: usize,
    /// How they are chosen and weighted.
    pub routing: Routing,
    /// Router, `[num_experts, hidden_size]`.
    pub router: LinearSource,
    /// `[num_experts]`, added to the scores for the choice, not for the weights.
    pub correction_bias: Option<TensorSource>,
    /// The experts, all of one shape and with one activation.
    pub experts: Vec<MlpSpec>,
    /// An expert that every token goes through.
    pub shared: Option<Box<SharedSpec>>,
}

/// A network whose output is added to that of the routed experts.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedSpec {
    /// The network.
    pub mlp: MlpSpec,
    /// `[1, hidden_size]`: the output is multiplied by the sigmoid of this.
    pub gate: Option<LinearSource>,
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
    /// What stands between an expert's projections.
    pub fn activation(&self) -> Activation {
        self.experts.first().map_or(Activation::SwiGlu, |expert| expert.activation)
    }
    /// Whether the experts' projections have biases.
    pub fn expert_biases(&self) -> bool {
        self.experts.iter().any(MlpSpec::biased)
    }
}

impl MlpSpec {
    /// Whether some projection has a bias.
    pub fn biased(&self) -> bool {
        [&self.gate_proj, &self.up_proj, &self.down_proj].iter().any(|linear| linear.bias.is_some())
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
    /// Shape of the tensor; that in the file too, unless it is a part of another.
    pub shape: Vec<usize>,
    /// Where it lies within the file's tensor, if it is not all of it.
    pub part: Option<Box<TensorPart>>,
}

/// A vector or matrix within a larger tensor: element `[row, col]` is the file's element
/// `offset + row * row_stride + col * col_stride`, counted row-major. That covers one expert of a fused tensor, every other
/// row, and a transpose.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorPart {
    /// Shape expected in the file; of MXFP4, the shape of the values, whose last dimension is a multiple of 32.
    pub file_shape: Vec<usize>,
    /// Index of the first element.
    pub offset: usize,
    /// Elements from one row to the next.
    pub row_stride: usize,
    /// Elements from one column to the next.
    pub col_stride: usize,
    /// Name of the tensor of scales, where the file holds MXFP4: blocks of 32 E2M1 values in 16 bytes, `[..., blocks, 16]`,
    /// lower nibble first, and one power of two each, `[..., blocks]` (OCP Microscaling Formats 1.0).
    pub mxfp4_scales: Option<String>,
}
