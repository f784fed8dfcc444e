//! MiniMax-M2 (`MiniMaxM2ForCausalLM`): RMSNorm over the whole width of q and of k, the first part of each head turned; the
//! sigmoids of the logits choose after a correction and weigh without it, renormalised.

use assay_kernels::{Routing, Scoring};

use super::common::{self, Sizes};
use super::limits;
use super::mixtral::PROJECTIONS;
use crate::model::config::Config;
use crate::model::error::ModelError;
use crate::model::names::{linear, tensor};
use crate::model::rope_config;
use crate::model::spec::{AttentionSpec, FfnSpec, ModelSpec, MoeSpec};

/// Builds the model that a `config.json` describes.
pub(in crate::model) fn build(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    common::refuse_unsupported(config)?;
    refuse_other_forms(config)?;
    let sizes = Sizes::read(config)?;
    let (rope, rotary_dim) = rope_config::read_partial(config, sizes.max_position_embeddings, sizes.head_dim, 1.0)?;
    let (num_experts, num_experts_per_tok) = common::experts(config, &["num_local_experts", "num_experts"], &sizes)?;
    let width = config.usize("intermediate_size", 1..=limits::WIDTH)?;
    let routing = Routing { scoring: Scoring::Sigmoid, ..Routing::softmax(true) };
    common::decoder(config, "minimax_m2", &sizes, |prefix, _| {
        let name = format!("{prefix}.self_attn");
        let attention = AttentionSpec {
            qk_norm: Some(common::projection_norm(&name, &sizes)),
            rotary_dim,
            ..common::attention(&name, &sizes, [false; 2], rope.clone())
        };
        let prefix = format!("{prefix}.block_sparse_moe");
        let ffn = FfnSpec::Moe(MoeSpec {
            num_experts_per_tok,
            routing,
            router: linear(&format!("{prefix}.gate"), num_experts, sizes.hidden_size, false),
            correction_bias: Some(tensor(format!("{prefix}.e_score_correction_bias"), &[num_experts])),
            experts: common::separate_experts(&prefix, PROJECTIONS, num_experts, width, sizes.hidden_size),
            shared: None,
        });
        Ok((attention, ffn))
    })
}

/// The publisher's config spells out what transformers takes for granted; anything else would be another model.
fn refuse_other_forms(config: &Config<'_>) -> Result<(), ModelError> {
    for (field, expected) in [("scoring_func", "sigmoid"), ("qk_norm_type", "per_layer")] {
        let found = config.optional_str(field)?;
        config.require(found.is_none_or(|found| found == expected), field, expected)?;
    }
    for field in ["use_qk_norm", "use_routing_bias"] {
        config.require(config.bool_or(field, true)?, field, "true")?;
    }
    let shared = config.optional_usize("shared_intermediate_size", 0..=limits::WIDTH)?;
    config.require(shared.is_none_or(|width| width == 0), "shared_intermediate_size", "0: no shared expert")?;
    let full = |kinds: &serde_json::Value| {
        kinds.as_array().is_some_and(|kinds| kinds.iter().all(|kind| kind.as_u64() == Some(1)))
    };
    let attention = config.get("attn_type_list");
    config.require(attention.is_none_or(full), "attn_type_list", "1, full attention, in every layer")
}
