//! GLM-4.5 (`Glm4MoeForCausalLM`): part of each head turned, RMSNorm on heads where `use_qk_norm` says so; the first layers
//! dense; experts chosen by corrected sigmoids from the best groups, beside experts that every token goes through.

use assay_kernels::{Routing, Scoring};

use super::common::{self, PROJECTIONS, Sizes};
use super::limits;
use crate::model::config::Config;
use crate::model::error::ModelError;
use crate::model::names::{linear, mlp, tensor};
use crate::model::rope_config;
use crate::model::spec::{AttentionSpec, FfnSpec, ModelSpec, MoeSpec, SharedSpec};

/// The share of a head that turns where the config does not say.
const ROTARY_FACTOR: f64 = 0.5;

/// Builds the model that a `config.json` describes. A checkpoint's layers for multi-token prediction, which follow the
/// others, are not read.
pub(in crate::model) fn build(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    common::refuse_unsupported(config)?;
    let sizes = Sizes::read(config)?;
    let (rope, rotary_dim) =
        rope_config::read_partial(config, sizes.max_position_embeddings, sizes.head_dim, ROTARY_FACTOR)?;
    let bias = config.bool_or("attention_bias", false)?;
    let use_qk_norm = config.bool_or("use_qk_norm", false)?;
    let dense_layers = config.optional_usize("first_k_dense_replace", 0..=sizes.num_hidden_layers)?.unwrap_or(1);
    let experts = Experts::read(config, &sizes)?;
    common::decoder(config, "glm4_moe", &sizes, |prefix, index| {
        let name = format!("{prefix}.self_attn");
        let attention = AttentionSpec {
            qk_norm: use_qk_norm.then(|| common::head_norm(&name, &sizes)),
            rotary_dim,
            ..common::attention(&name, &sizes, [bias, false], rope.clone())
        };
        let prefix = format!("{prefix}.mlp");
        if index >= dense_layers {
            return Ok((attention, experts.ffn(&prefix, sizes.hidden_size)));
        }
        let width = config.usize("intermediate_size", 1..=limits::WIDTH)?;
        Ok((attention, FfnSpec::Dense(mlp(&prefix, PROJECTIONS, width, sizes.hidden_size))))
    })
}

/// The fields about experts.
struct Experts {
    num_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    shared_width: usize,
    routing: Routing,
}

impl Experts {
    fn read(config: &Config<'_>, sizes: &Sizes) -> Result<Self, ModelError> {
        let names = ["n_routed_experts", "num_local_experts", "num_experts"];
        let (num_experts, num_experts_per_tok) = common::experts(config, &names, sizes)?;
        let moe_intermediate_size = config.usize("moe_intermediate_size", 1..=limits::WIDTH)?;
        let shared = config.optional_usize("n_shared_experts", 0..=limits::EXPERTS)?.unwrap_or(1);
        let shared_width = shared * moe_intermediate_size;
        if shared_width > limits::WIDTH {
            let expected = format!("at most {} in all at a width of {moe_intermediate_size}", limits::WIDTH);
            return Err(config.wrong("n_shared_experts", shared, expected));
        }
        Ok(Self {
            num_experts,
            num_experts_per_tok,
            moe_intermediate_size,
            shared_width,
            routing: routing(config, num_experts, num_experts_per_tok)?,
        })
    }

    fn ffn(&self, prefix: &str, hidden_size: usize) -> FfnSpec {
        let (num_experts, width) = (self.num_experts, self.moe_intermediate_size);
        // One network as wide as all shared experts together, as the checkpoint has them.
        let shared = || mlp(&format!("{prefix}.shared_experts"), PROJECTIONS, self.shared_width, hidden_size);
        FfnSpec::Moe(MoeSpec {
            num_experts_per_tok: self.num_experts_per_tok,
            routing: self.routing,
            router: linear(&format!("{prefix}.gate"), num_experts, hidden_size, false),
            correction_bias: Some(tensor(format!("{prefix}.gate.e_score_correction_bias"), &[num_experts])),
            experts: common::separate_experts(prefix, PROJECTIONS, num_experts, width, hidden_size),
            shared: (self.shared_width > 0).then(|| Box::new(SharedSpec { mlp: shared(), gate: None })),
        })
    }
}

/// Groups must be equal, of at least two experts, and the chosen ones must hold enough.
fn routing(config: &Config<'_>, num_experts: usize, num_experts_per_tok: usize) -> Result<Routing, ModelError> {
    let n_group = config.optional_usize("n_group", 1..=num_experts)?.unwrap_or(1);
    if !num_experts.is_multiple_of(n_group) || (n_group > 1 && num_experts / n_group < 2) {
        let expected = format!("a divisor of {num_experts} experts that leaves at least two in a group");
        return Err(config.wrong("n_group", n_group, expected));
    }
    let topk_group = config.optional_usize("topk_group", 1..=n_group)?.unwrap_or(1);
    let size = num_experts / n_group;
    if topk_group * size < num_experts_per_tok {
        let expected = format!("enough groups of {size} experts for num_experts_per_tok, {num_experts_per_tok}");
        return Err(config.wrong("topk_group", topk_group, expected));
    }
    Ok(Routing {
        scoring: Scoring::Sigmoid,
        norm_topk_prob: config.bool_or("norm_topk_prob", true)?,
        n_group,
        topk_group,
        scaling_factor: common::positive_f32(config, "routed_scaling_factor", 1.0)?,
    })
}
