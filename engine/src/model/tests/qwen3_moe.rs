//! What a Qwen3-MoE config becomes, in every style that transformers has written.

use assay_kernels::Routing;
use serde_json::{Value, json};

use super::{changed, fixture, load, new_style};
use crate::model::load_spec;
use crate::model::spec::{FfnSpec, RopeScaling};

/// The same model as transformers 4 wrote it.
fn old_style() -> Value {
    let changes = json!({
        "-dtype": 0, "torch_dtype": "bfloat16", "-num_local_experts": 0, "num_experts": 6, "-rope_parameters": 0,
        "rope_theta": 10000.0, "rope_scaling": null
    });
    changed(new_style(), &changes)
}

#[test]
fn old_and_new_style_are_the_same_model() {
    let new = load(&new_style()).unwrap();
    for variant in [
        old_style(),
        changed(old_style(), &json!({"-rope_scaling": 0})),
        changed(old_style(), &json!({"rope_scaling": {"type": "default"}})),
        changed(old_style(), &json!({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}})),
        changed(new_style(), &json!({"rope_scaling": {}, "num_experts": 6, "rope_theta": 1e4})),
        changed(new_style(), &json!({"rope_parameters": {"rope_type": "default"}, "rope_theta": 10000})),
        changed(
            new_style(),
            &json!({"layer_types": ["full_attention", "full_attention"], "partial_rotary_factor": 1.0}),
        ),
        // Fields that say what transformers assumes without them.
        changed(
            new_style(),
            &json!({"-attention_bias": 0, "-decoder_sparse_step": 0, "-mlp_only_layers": 0, "-hidden_act": 0,
            "-tie_word_embeddings": 0, "-use_sliding_window": 0, "-sliding_window": 0, "-dtype": 0, "-intermediate_size": 0}),
        ),
    ] {
        assert_eq!(load(&variant).unwrap(), new, "{variant}");
    }
}

#[test]
fn tiny_moe_has_the_shapes_that_its_readme_states() {
    let bytes = std::fs::read(fixture("tiny-moe").join("config.json")).unwrap();
    let spec = load_spec(&bytes, "tiny-moe/config.json".as_ref()).unwrap();
    assert_eq!((spec.vocab_size, spec.hidden_size, spec.layers.len()), (4096, 256, 4));
    assert_eq!(spec.lm_head, spec.embed_tokens);
    assert_eq!((spec.max_position_embeddings, spec.eos_token_ids.as_slice()), (65536, [0].as_slice()));
    let layer = &spec.layers[3];
    let attention = &layer.attention;
    assert_eq!((attention.num_attention_heads, attention.num_key_value_heads, attention.head_dim), (4, 2, 64));
    assert_eq!((attention.scale, attention.rope.theta), (0.125, 1e6));
    assert_eq!(attention.rope.scaling, RopeScaling::Default);
    assert_eq!(attention.k_proj.weight.shape, [128, 256]);
    let FfnSpec::Moe(moe) = &layer.ffn else { panic!("layer 3 is dense") };
    assert_eq!((moe.num_experts(), moe.num_experts_per_tok, moe.moe_intermediate_size()), (32, 4, 128));
    assert_eq!(moe.routing, Routing::softmax(true));
    assert_eq!(moe.experts[31].down_proj.weight.name, "model.layers.3.mlp.experts.31.down_proj.weight");
    assert_eq!(moe.experts[31].down_proj.weight.shape, [256, 128]);
}

#[test]
fn dense_layers_are_where_transformers_has_them() {
    let dense = |changes: Value| -> Vec<usize> {
        let config = changed(changed(new_style(), &json!({"num_hidden_layers": 6})), &changes);
        let layers = load(&config).unwrap().layers;
        let is_dense = |index: &usize| match &layers[*index].ffn {
            FfnSpec::Dense(mlp) => {
                assert_eq!(mlp.gate_proj.weight.name, format!("model.layers.{index}.mlp.gate_proj.weight"));
                assert_eq!((mlp.intermediate_size, mlp.down_proj.weight.shape.as_slice()), (48, [32, 48].as_slice()));
                true
            }
            FfnSpec::Moe(_) => false,
        };
        (0..6).filter(is_dense).collect()
    };
    assert_eq!(dense(json!({})), [0; 0]);
    assert_eq!(dense(json!({"mlp_only_layers": [0, 4]})), [0, 4]);
    assert_eq!(dense(json!({"mlp_only_layers": null, "decoder_sparse_step": 2})), [0, 2, 4]);
    assert_eq!(dense(json!({"mlp_only_layers": [1], "decoder_sparse_step": 3})), [0, 1, 3, 4]);
    assert_eq!(dense(json!({"decoder_sparse_step": 7})), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn optional_parts_follow_the_config() {
    let with = |changes: Value| load(&changed(new_style(), &changes)).unwrap();
    let spec =
        with(json!({"attention_bias": true, "tie_word_embeddings": true, "-norm_topk_prob": 0, "head_dim": null}));
    assert_eq!(spec.lm_head, spec.embed_tokens);
    let attention = &spec.layers[1].attention;
    // 32 / 4, although the config of the untouched model says 16.
    assert_eq!(attention.head_dim, 8);
    for (linear, name, outputs) in [
        (&attention.q_proj, "q_proj", 32),
        (&attention.k_proj, "k_proj", 16),
        (&attention.v_proj, "v_proj", 16),
        (&attention.o_proj, "o_proj", 32),
    ] {
        let bias = linear.bias.as_ref().unwrap();
        assert_eq!(bias.name, format!("model.layers.1.self_attn.{name}.bias"));
        assert_eq!(bias.shape, [outputs]);
    }
    let FfnSpec::Moe(moe) = &spec.layers[1].ffn else { panic!("layer 1 is dense") };
    assert_eq!(moe.routing, Routing::softmax(false), "transformers' default for this family");
    assert_eq!(moe.router.bias, None);

    let spec = with(json!({}));
    assert_eq!((spec.lm_head.name.as_str(), spec.eos_token_ids.as_slice()), ("lm_head.weight", [7, 9].as_slice()));
    assert_eq!(spec.layers[0].attention.q_proj.bias, None);
    assert_eq!(spec.layers[0].attention.o_proj.weight.shape, [32, 64]);
    assert_eq!(with(json!({"eos_token_id": 5})).eos_token_ids, [5]);
    assert_eq!(with(json!({"eos_token_id": null})).eos_token_ids, [0; 0]);
}

#[test]
fn yarn_is_read_in_both_styles() {
    let expected = RopeScaling::Yarn {
        factor: 4.0,
        original_max_position_embeddings: 1024,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: 0.1 * 4f64.ln() + 1.0,
        truncate: true,
    };
    let object =
        json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "rope_theta": 1e4});
    for changes in [
        json!({"rope_parameters": object}),
        // No factor: max_position_embeddings / original_max_position_embeddings.
        json!({"rope_parameters": changed(object.clone(), &json!({"factor": null}))}),
        json!({"rope_parameters": changed(object.clone(), &json!({"beta_fast": 0, "beta_slow": null, "mscale": 1.0}))}),
        json!({"-rope_parameters": 0, "rope_theta": 1e4, "rope_scaling": object}),
        json!({"-rope_parameters": 0, "rope_theta": 1e4, "original_max_position_embeddings": 1024,
            "rope_scaling": {"type": "yarn", "factor": 4.0}}),
    ] {
        let spec = load(&changed(new_style(), &changes)).unwrap();
        assert_eq!(spec.layers[0].attention.rope.scaling, expected, "{changes}");
    }
    let changes = json!({"rope_parameters": {"rope_type": "yarn", "factor": 2, "rope_theta": 1e4, "truncate": false, "mscale": 0.5,
        "mscale_all_dim": 2, "beta_fast": 16, "beta_slow": 2}});
    let spec = load(&changed(new_style(), &changes)).unwrap();
    let scale = |mscale: f64| 0.1 * mscale * 2f64.ln() + 1.0;
    let expected = RopeScaling::Yarn {
        factor: 2.0,
        original_max_position_embeddings: 4096,
        beta_fast: 16.0,
        beta_slow: 2.0,
        attention_factor: scale(0.5) / scale(2.0),
        truncate: false,
    };
    assert_eq!(spec.layers[0].attention.rope.scaling, expected);
}
