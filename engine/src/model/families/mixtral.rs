//! Mixtral (`MixtralForCausalLM`): the top k of a softmax over all experts, renormalised; a window on every layer where
//! `sliding_window` says so.

use assay_kernels::Routing;

use super::common::{self, Sizes};
use super::limits;
use crate::model::config::Config;
use crate::model::error::ModelError;
use crate::model::names::linear;
use crate::model::rope_config::{self, MAX_POSITIONS};
use crate::model::spec::{AttentionSpec, FfnSpec, ModelSpec, MoeSpec};

/// The family's names for gate, up and down.
pub(super) const PROJECTIONS: [&str; 3] = ["w1", "w3", "w2"];

/// Builds the model that a `config.json` describes.
pub(in crate::model) fn build(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    common::refuse_unsupported(config)?;
    let sizes = Sizes::read(config)?;
    let rope = rope_config::read(config, sizes.max_position_embeddings)?;
    let sliding_window = config.optional_usize("sliding_window", 1..=MAX_POSITIONS)?;
    let (num_experts, num_experts_per_tok) = common::experts(config, &["num_local_experts", "num_experts"], &sizes)?;
    let width = config.usize("intermediate_size", 1..=limits::WIDTH)?;
    common::decoder(config, "mixtral", &sizes, |prefix, _| {
        let attention = common::attention(&format!("{prefix}.self_attn"), &sizes, [false; 2], rope.clone());
        let prefix = format!("{prefix}.block_sparse_moe");
        let ffn = FfnSpec::Moe(MoeSpec {
            num_experts_per_tok,
            routing: Routing::softmax(true),
            router: linear(&format!("{prefix}.gate"), num_experts, sizes.hidden_size, false),
            correction_bias: None,
            experts: common::separate_experts(&prefix, PROJECTIONS, num_experts, width, sizes.hidden_size),
            shared: None,
        });
        Ok((AttentionSpec { sliding_window, ..attention }, ffn))
    })
}
