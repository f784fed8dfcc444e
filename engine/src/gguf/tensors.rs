//! Which tensor of the checkpoint becomes which tensor of the file.

use super::error::GgufError;
use super::export::{ExportOptions, ExportSource};
use super::part::{CachedMatrix, Part, Projection};
use super::values::{Q4_0_BLOCK, Rounding};
use super::write::{GgufType, Tensor};
use crate::expert_cache::{Encoding, QuantizeMethod};
use crate::model::spec::{FfnSpec, LayerSpec, LinearSource, MlpSpec, ModelSpec, TensorSource};

/// Collects tensors in the order in which they are written.
struct Collector<'a> {
    source: ExportSource<'a>,
    /// Types of matrices; vectors and routers are F32 whatever they are.
    options: ExportOptions,
    tensors: Vec<Tensor<'a>>,
}

/// All tensors of a model.
///
/// # Errors
/// A tensor that is missing or has another shape or type than the config says, or rows that Q4_0 cannot cut into blocks.
pub(super) fn tensors(source: ExportSource<'_>, options: ExportOptions) -> Result<Vec<Tensor<'_>>, GgufError> {
    let spec: &ModelSpec = source.spec;
    let mut collector = Collector { source, options, tensors: Vec::new() };
    collector.matrix("token_embd.weight", &spec.embed_tokens)?;
    for (index, layer) in spec.layers.iter().enumerate() {
        collector.layer(index, layer)?;
    }
    collector.vector("output_norm.weight", &spec.final_norm)?;
    // Without a head of its own llama.cpp uses the embedding.
    if spec.lm_head != spec.embed_tokens {
        collector.matrix("output.weight", &spec.lm_head)?;
    }
    Ok(collector.tensors)
}

impl<'a> Collector<'a> {
    fn layer(&mut self, index: usize, layer: &LayerSpec) -> Result<(), GgufError> {
        let block = format!("blk.{index}");
        self.vector(&format!("{block}.attn_norm.weight"), &layer.input_layernorm)?;
        let attention = &layer.attention;
        if let Some(norms) = &attention.qk_norm {
            self.vector(&format!("{block}.attn_q_norm.weight"), &norms.q_norm)?;
            self.vector(&format!("{block}.attn_k_norm.weight"), &norms.k_norm)?;
        }
        self.linear(&format!("{block}.attn_q"), &attention.q_proj)?;
        self.linear(&format!("{block}.attn_k"), &attention.k_proj)?;
        self.linear(&format!("{block}.attn_v"), &attention.v_proj)?;
        self.linear(&format!("{block}.attn_output"), &attention.o_proj)?;
        self.vector(&format!("{block}.ffn_norm.weight"), &layer.post_attention_layernorm)?;
        match &layer.ffn {
            FfnSpec::Dense(mlp) => {
                self.linear(&format!("{block}.ffn_gate"), &mlp.gate_proj)?;
                self.linear(&format!("{block}.ffn_up"), &mlp.up_proj)?;
                self.linear(&format!("{block}.ffn_down"), &mlp.down_proj)
            }
            FfnSpec::Moe(moe) => {
                self.vector(&format!("{block}.ffn_gate_inp.weight"), &moe.router.weight)?;
                for (name, projection) in
                    [("gate", Projection::Gate), ("up", Projection::Up), ("down", Projection::Down)]
                {
                    self.stacked(format!("{block}.ffn_{name}_exps.weight"), index, &moe.experts, projection)?;
                }
                Ok(())
            }
        }
    }

    fn linear(&mut self, name: &str, linear: &LinearSource) -> Result<(), GgufError> {
        self.matrix(&format!("{name}.weight"), &linear.weight)?;
        match &linear.bias {
            Some(bias) => self.vector(&format!("{name}.bias"), bias),
            None => Ok(()),
        }
    }

    /// One matrix of every expert, one after another, as a tensor with one more dimension.
    fn stacked(
        &mut self,
        name: String,
        layer: usize,
        experts: &[MlpSpec],
        projection: Projection,
    ) -> Result<(), GgufError> {
        let linear = |expert: &MlpSpec| match projection {
            Projection::Gate => expert.gate_proj.weight.clone(),
            Projection::Up => expert.up_proj.weight.clone(),
            Projection::Down => expert.down_proj.weight.clone(),
        };
        let shape = experts.first().map(|expert| linear(expert).shape).unwrap_or_default();
        let layout = self.source.experts.and_then(|cache| cache.expert_layout(layer));
        let parts = match layout {
            Some(layout) => (0..experts.len())
                .map(|expert| Part::Cached(CachedMatrix { layer, expert, projection, layout }))
                .collect(),
            None => experts.iter().map(|expert| self.view(&linear(expert))).collect::<Result<_, _>>()?,
        };
        let rounding = match (layout, self.options.experts) {
            (Some(_), _) => Rounding::Exact,
            (None, Encoding::Bf16) => Rounding::None,
            (None, Encoding::Int4(method)) => Rounding::Int4(method),
            (None, Encoding::Int8) => Rounding::Int8,
        };
        self.add(name, self.options.expert_matrices, &shape, parts, rounding)?;
        if let Some(tensor) = self.tensors.last_mut() {
            tensor.dims.push(experts.len() as u64);
        }
        Ok(())
    }

    fn matrix(&mut self, name: &str, source: &TensorSource) -> Result<(), GgufError> {
        let dtype = self.options.matrices;
        let rounding = if dtype == GgufType::Q4_0 { Rounding::Int4(QuantizeMethod::Amax) } else { Rounding::None };
        let parts = vec![self.view(source)?];
        self.add(name.to_owned(), dtype, &source.shape, parts, rounding)
    }

    fn vector(&mut self, name: &str, source: &TensorSource) -> Result<(), GgufError> {
        let parts = vec![self.view(source)?];
        self.add(name.to_owned(), GgufType::F32, &source.shape, parts, Rounding::None)
    }

    fn view(&self, source: &TensorSource) -> Result<Part<'a>, GgufError> {
        Ok(Part::View(self.source.checkpoint.tensor(source)?))
    }

    fn add(
        &mut self,
        name: String,
        dtype: GgufType,
        shape: &[usize],
        parts: Vec<Part<'a>>,
        rounding: Rounding,
    ) -> Result<(), GgufError> {
        let cols = shape.last().copied().unwrap_or(1);
        if dtype == GgufType::Q4_0 && !cols.is_multiple_of(Q4_0_BLOCK) {
            return Err(GgufError::Unsupported {
                what: "the width of a matrix",
                found: format!("{cols} ({name})"),
                expected: format!("a multiple of Q4_0's block, {Q4_0_BLOCK}"),
            });
        }
        let dims = shape.iter().rev().map(|&dim| dim as u64).collect();
        self.tensors.push(Tensor { name, dims, dtype, parts, rounding });
        Ok(())
    }
}
