#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
//! Tests of config reading and rope.

use std::path::{Path, PathBuf};

use crate::checkpoint::Checkpoint;
use crate::model::load_spec;
use crate::model::spec::{FfnSpec, LinearSource, ModelSpec, TensorSource};

/// A checkpoint in `fixtures/models`.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models").join(name)
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
        let mlps = match &layer.ffn {
            FfnSpec::Dense(mlp) => std::slice::from_ref(mlp),
            FfnSpec::Moe(moe) => {
                linear(&mut out, &moe.router);
                &moe.experts
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

/// The model asks for exactly the tensors that the checkpoint has, and all of them can be read.
#[test]
fn fixtures_open_and_every_tensor_is_used() {
    for (name, tensors) in [("tiny-moe", 422), ("families/qwen3_moe-a", 138)] {
        let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
        let spec = load_spec(checkpoint.config_bytes(), &checkpoint.config_path()).unwrap();
        let sources = sources(&spec);
        assert_eq!(sources.len(), tensors, "{name}");
        assert_eq!(checkpoint.num_tensors(), tensors, "{name}");
        for source in sources {
            let view = checkpoint.tensor(source).unwrap();
            assert_eq!(view.to_f32_vec().unwrap().len(), view.elements());
        }
        checkpoint.release().unwrap();
    }
}
