//! Which tensor of the checkpoint becomes which tensor of the file.

use super::error::GgufError;
use super::export::ExportOptions;
use super::write::{GgufType, Tensor};
use crate::checkpoint::Checkpoint;
use crate::expert_cache::Encoding;
use crate::model::spec::{FfnSpec, LayerSpec, LinearSource, MlpSpec, ModelSpec, TensorSource};

/// Collects tensors in the order in which they are written.
struct Collector<'a> {
    checkpoint: &'a Checkpoint,
    /// Type of matrices; vectors and routers are F32 whatever it is.
    options: ExportOptions,
    tensors: Vec<Tensor<'a>>,
}

/// All tensors of a model.
///
/// # Errors
/// A tensor that is missing or has another shape or type than the config says.
pub(super) fn tensors<'a>(
    checkpoint: &'a Checkpoint,
    spec: &ModelSpec,
    options: ExportOptions,
) -> Result<Vec<Tensor<'a>>, GgufError> {
    let mut collector = Collector { checkpoint, options, tensors: Vec::new() };
    collector.matrix("token_embd.weight", &spec.embed_tokens)?;
    for (index, layer) in spec.layers.iter().enumerate() {
        collector.layer(&format!("blk.{index}"), layer)?;
    }
    collector.vector("output_norm.weight", &spec.final_norm)?;
    // Without a head of its own llama.cpp uses the embedding.
    if spec.lm_head != spec.embed_tokens {
        collector.matrix("output.weight", &spec.lm_head)?;
    }
    Ok(collector.tensors)
}

impl<'a> Collector<'a> {
    fn layer(&mut self, block: &str, layer: &LayerSpec) -> Result<(), GgufError> {
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
                self.add(format!("{block}.ffn_gate_inp.weight"), GgufType::F32, &[&moe.router.weight])?;
                self.stacked(&format!("{block}.ffn_gate_exps.weight"), &moe.experts, |expert| &expert.gate_proj)?;
                self.stacked(&format!("{block}.ffn_up_exps.weight"), &moe.experts, |expert| &expert.up_proj)?;
                self.stacked(&format!("{block}.ffn_down_exps.weight"), &moe.experts, |expert| &expert.down_proj)
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
        name: &str,
        experts: &[MlpSpec],
        projection: impl Fn(&MlpSpec) -> &LinearSource,
    ) -> Result<(), GgufError> {
        let sources: Vec<&TensorSource> = experts.iter().map(|expert| &projection(expert).weight).collect();
        self.add(name.to_owned(), self.options.matrices, &sources)?;
        if let Some(tensor) = self.tensors.last_mut() {
            tensor.dims.push(experts.len() as u64);
            tensor.quantize = match self.options.experts {
                Encoding::Bf16 => None,
                Encoding::Int4(method) => Some(method),
            };
        }
        Ok(())
    }

    fn matrix(&mut self, name: &str, source: &TensorSource) -> Result<(), GgufError> {
        self.add(name.to_owned(), self.options.matrices, &[source])
    }

    fn vector(&mut self, name: &str, source: &TensorSource) -> Result<(), GgufError> {
        self.add(name.to_owned(), GgufType::F32, &[source])
    }

    fn add(&mut self, name: String, dtype: GgufType, sources: &[&TensorSource]) -> Result<(), GgufError> {
        let parts = sources.iter().map(|source| self.checkpoint.tensor(source)).collect::<Result<Vec<_>, _>>()?;
        let dims =
            sources.first().map_or_else(Vec::new, |source| source.shape.iter().rev().map(|&dim| dim as u64).collect());
        self.tensors.push(Tensor { name, dims, dtype, parts, quantize: None });
        Ok(())
    }
}
