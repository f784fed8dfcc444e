//! `config.json` of every family.

use std::path::Path;

use assay_engine::expert_cache::Encoding;
use assay_engine::memory::MemoryPlan;
use assay_engine::model::spec::{FfnSpec, ModelSpec};
use assay_engine::model::{RopeTable, load_spec, registry};
use assay_engine::{EngineOptions, Precision};
use assay_kernels::KvFormat;

use super::{Target, Verdict, as_text, nothing, promise};
use crate::run::root;

/// A config of some hundred bytes may describe 262,144 experts: the families' own limit.
pub(super) const TARGET: Target = Target {
    name: "config",
    seeds,
    prepare: nothing,
    change: as_text,
    read,
    bytes_per_input_byte: 1024,
    bytes: 512 << 20,
};

fn seeds() -> anyhow::Result<Vec<Vec<u8>>> {
    let folder = root().join("fixtures/models/families");
    let mut configs = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path().join("config.json");
        if path.exists() {
            configs.push(std::fs::read(path)?);
        }
    }
    configs.sort();
    Ok(configs)
}

fn read(_: &Path, input: &[u8]) -> Result<Verdict, String> {
    let spec = match load_spec(input, Path::new("config.json")) {
        Ok(spec) => spec,
        Err(error) => return Ok(Verdict::Refused(error.to_string())),
    };
    check(&spec)?;
    let precision = Precision {
        experts: Encoding::Bf16,
        attention: Encoding::Bf16,
        dense: Encoding::Bf16,
        head: Encoding::Bf16,
        kv: KvFormat::F32,
    };
    // As long as the checkpoint allows: every size at its largest.
    let options = EngineOptions::new(precision, spec.max_position_embeddings);
    match MemoryPlan::new(&spec, &options) {
        Err(error) => Ok(Verdict::Refused(error.to_string())),
        Ok(plan) => Ok(Verdict::of(plan.check_budget(1 << 30, options.min_chunk))),
    }
}

/// What the rest of the engine takes for granted.
fn check(spec: &ModelSpec) -> Result<(), String> {
    promise(registry::model_types().any(|known| known == spec.model_type), "a known family")?;
    promise(!spec.layers.is_empty() && spec.hidden_size > 0 && spec.vocab_size > 0, "sizes above 0")?;
    promise(spec.rms_norm_eps > 0.0 && spec.rms_norm_eps.is_finite(), "an epsilon above 0")?;
    promise(spec.eos_token_ids.iter().all(|&id| (id as usize) < spec.vocab_size), "ends of sequence that exist")?;
    let factors = [spec.embedding_multiplier, spec.logits_multiplier];
    promise(factors.iter().all(|factor| factor.is_finite() && *factor != 0.0), "factors that are finite and not 0")?;
    let mut rope = None;
    for layer in &spec.layers {
        let attention = &layer.attention;
        promise(attention.num_attention_heads.is_multiple_of(attention.num_key_value_heads), "heads in equal groups")?;
        promise(attention.rotary_dim.is_multiple_of(2), "an even rotary_dim")?;
        promise((2..=attention.head_dim).contains(&attention.rotary_dim), "a rotary_dim within the head")?;
        promise(attention.scale.is_finite() && attention.scale > 0.0, "a scale above 0")?;
        promise(layer.residual_multiplier.is_finite(), "a finite residual_multiplier")?;
        if rope != Some(&attention.rope) {
            rope = Some(&attention.rope);
            let table = RopeTable::new(&attention.rope, attention.rotary_dim, 4).map_err(|error| error.to_string())?;
            promise(table.cos.iter().chain(&table.sin).all(|value| value.is_finite()), "a finite rope table")?;
            promise(table.sin.iter().any(|sine| *sine != 0.0), "a rope that turns")?;
        }
        if let FfnSpec::Moe(moe) = &layer.ffn {
            promise((1..=moe.num_experts()).contains(&moe.num_experts_per_tok), "top-k within the experts")?;
            let routing = moe.routing;
            promise(routing.n_group > 0 && moe.num_experts().is_multiple_of(routing.n_group), "equal groups")?;
            promise((1..=routing.n_group).contains(&routing.topk_group), "as many groups as there are")?;
            promise(routing.scaling_factor.is_finite() && routing.scaling_factor > 0.0, "a factor above 0")?;
        }
    }
    spec.for_each_source(true, &mut |source| {
        promise(source.shape.iter().all(|&dim| dim > 0), "dimensions above 0")?;
        promise(source.shape.iter().try_fold(1usize, |size, &dim| size.checked_mul(dim)).is_some(), "sizes that fit")
    })
}
