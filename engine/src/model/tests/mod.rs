#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
//! Tests of config reading and rope.

mod configs;
mod families;
mod qwen3_moe;
mod rope;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::checkpoint::Checkpoint;
use crate::model::spec::{FfnSpec, LinearSource, ModelSpec, TensorSource};
use crate::model::{ModelError, load_spec};

/// A checkpoint in `fixtures/models`.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models").join(name)
}

/// A small config as transformers 5 writes it.
fn new_style() -> Value {
    json!({
        "model_type": "qwen3_moe", "dtype": "bfloat16", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48,
        "moe_intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": true, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096, "hidden_act": "silu", "eos_token_id": [7, 9], "tie_word_embeddings": false,
        "attention_bias": false, "decoder_sparse_step": 1, "mlp_only_layers": [], "sliding_window": null,
        "use_sliding_window": false, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}
    })
}

/// `config` with the fields of `changes`; a field named `-x` removes `x`.
fn changed(mut config: Value, changes: &Value) -> Value {
    let fields = config.as_object_mut().unwrap();
    for (name, value) in changes.as_object().unwrap() {
        match name.strip_prefix('-') {
            Some(removed) => {
                fields.remove(removed);
            }
            None => {
                fields.insert(name.clone(), value.clone());
            }
        }
    }
    config
}

fn load(config: &Value) -> Result<ModelSpec, ModelError> {
    load_spec(config.to_string().as_bytes(), Path::new("dir/config.json"))
}

/// Every tensor that a model needs; the head is not repeated where it is the embedding.
fn sources(spec: &ModelSpec) -> Vec<&TensorSource> {
    fn linear<'a>(out: &mut Vec<&'a TensorSource>, source: &'a LinearSource) {
        out.push(&source.weight);
        out.extend(&source.bias);
    }
    let mut out = vec![&spec.embed_tokens, &spec.final_norm];
    if spec.lm_head != spec.embed_tokens {
        out.push(&spec.lm_head);
    }
    for layer in &spec.layers {
        out.extend([&layer.input_layernorm, &layer.post_attention_layernorm]);
        let attention = &layer.attention;
        for source in [&attention.q_proj, &attention.k_proj, &attention.v_proj, &attention.o_proj] {
            linear(&mut out, source);
        }
        out.extend(attention.qk_norm.iter().flat_map(|norm| [&norm.q_norm, &norm.k_norm]));
        out.extend(&attention.sinks);
        let mlps: Vec<_> = match &layer.ffn {
            FfnSpec::Dense(mlp) => vec![mlp],
            FfnSpec::Moe(moe) => {
                linear(&mut out, &moe.router);
                out.extend(&moe.correction_bias);
                moe.shared.iter().flat_map(|shared| &shared.gate).for_each(|gate| linear(&mut out, gate));
                moe.experts.iter().chain(moe.shared.as_ref().map(|shared| &shared.mlp)).collect()
            }
        };
        for mlp in mlps {
            for source in [&mlp.gate_proj, &mlp.up_proj, &mlp.down_proj] {
                linear(&mut out, source);
            }
        }
    }
    out
}

/// The model asks for exactly the tensors that the checkpoint has, every element of them once, and all can be read.
#[test]
fn fixtures_open_and_every_tensor_is_used() {
    for (name, tensors) in [
        ("tiny-moe", 422),
        ("families/glm4_moe", 121),
        ("families/gpt_oss", 54),
        ("families/gpt_oss-b", 54),
        ("families/gpt_oss-mxfp4", 60),
        ("families/granitemoe", 29),
        ("families/minimax_m2", 123),
        ("families/mixtral", 96),
        ("families/olmoe", 120),
        ("families/qwen2_moe", 153),
        ("families/qwen3_moe-a", 138),
    ] {
        let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
        let spec = load_spec(checkpoint.config_bytes(), &checkpoint.config_path()).unwrap();
        assert_eq!(checkpoint.num_tensors(), tensors, "{name}");
        let mut used: HashMap<&str, (usize, usize)> = HashMap::new();
        for source in sources(&spec) {
            let view = checkpoint.tensor(source).unwrap();
            let elements = source.shape.iter().product::<usize>();
            assert_eq!((view.to_f32_vec().unwrap().len(), view.elements()), (elements, elements));
            let file_shape = source.part.as_ref().map_or(&source.shape, |part| &part.file_shape);
            used.entry(&source.name).or_insert((0, file_shape.iter().product())).0 += elements;
            let scales = source.part.as_ref().and_then(|part| part.mxfp4_scales.as_deref());
            scales.map(|scales| used.insert(scales, (0, 0)));
        }
        assert_eq!(used.len(), tensors, "{name}");
        for (tensor, (elements, all)) in used {
            assert_eq!(elements, all, "{name}: elements read of {tensor}");
        }
        checkpoint.release().unwrap();
    }
}
