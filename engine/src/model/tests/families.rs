//! What the config of each family becomes, and what is refused, from the configs of the fixtures.

use assay_kernels::{Activation, Routing, Scoring};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::configs::any_value;
use super::{changed, fixture, load};
use crate::model::registry::model_types;
use crate::model::spec::{FfnSpec, LayerSpec, ModelSpec, MoeSpec, QkNorm};

/// One fixture of each family.
const FIXTURES: [&str; 9] = [
    "glm4_moe",
    "gpt_oss-b",
    "gpt_oss-mxfp4",
    "granitemoe",
    "minimax_m2",
    "mixtral",
    "olmoe",
    "qwen2_moe",
    "qwen3_moe-a",
];

fn config(name: &str) -> Value {
    let path = fixture("families").join(name).join("config.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn with(name: &str, changes: &Value) -> ModelSpec {
    load(&changed(config(name), changes)).unwrap()
}

fn moe(layer: &LayerSpec) -> &MoeSpec {
    match &layer.ffn {
        FfnSpec::Moe(moe) => moe,
        FfnSpec::Dense(_) => panic!("a dense layer"),
    }
}

fn norm_shapes(norm: &Option<QkNorm>) -> [&[usize]; 2] {
    let norm = norm.as_ref().unwrap();
    [&norm.q_norm.shape, &norm.k_norm.shape]
}

#[test]
fn every_family_has_a_fixture() {
    let mut found: Vec<String> = FIXTURES.iter().map(|name| load(&config(name)).unwrap().model_type).collect();
    found.dedup();
    assert_eq!(found, model_types().collect::<Vec<_>>());
}

#[test]
fn mixtral() {
    let spec = with("mixtral", &json!({}));
    let layer = &spec.layers[2];
    assert_eq!(moe(layer).routing, Routing::softmax(true));
    assert_eq!(moe(layer).experts[7].up_proj.weight.name, "model.layers.2.block_sparse_moe.experts.7.w3.weight");
    assert_eq!((layer.attention.sliding_window, layer.attention.head_dim), (None, 32));
    let spec = with("mixtral", &json!({"sliding_window": 4096}));
    assert!(spec.layers.iter().all(|layer| layer.attention.sliding_window == Some(4096)));
}

#[test]
fn qwen2_moe() {
    let spec = with("qwen2_moe", &json!({"mlp_only_layers": [1]}));
    let attention = &spec.layers[0].attention;
    assert!(attention.q_proj.bias.is_some() && attention.v_proj.bias.is_some() && attention.o_proj.bias.is_none());
    let shared = moe(&spec.layers[0]).shared.as_ref().unwrap();
    assert_eq!(shared.mlp.intermediate_size, 256);
    assert_eq!(shared.gate.as_ref().unwrap().weight.shape, [1, 128]);
    assert!(matches!(spec.layers[1].ffn, FfnSpec::Dense(_)));
    assert_eq!(with("qwen2_moe", &json!({"qkv_bias": false})).layers[0].attention.k_proj.bias, None);
    // Configs of transformers 4 do not have the field, and their models have the biases.
    assert!(with("qwen2_moe", &json!({"-qkv_bias": 0})).layers[0].attention.k_proj.bias.is_some());
}

#[test]
fn olmoe() {
    let spec = with("olmoe", &json!({}));
    assert_eq!(norm_shapes(&spec.layers[0].attention.qk_norm), [[96], [48]]);
    assert_eq!(moe(&spec.layers[0]).routing, Routing::softmax(false));
    assert_eq!(moe(&spec.layers[0]).moe_intermediate_size(), 80);
}

#[test]
fn minimax_m2() {
    // As the publisher writes it, with a list for each layer.
    let publisher = json!({"-rope_parameters": 0, "rope_theta": 5000000, "scoring_func": "sigmoid", "use_qk_norm": true,
        "qk_norm_type": "per_layer", "use_routing_bias": true, "shared_intermediate_size": 0, "attn_type_list": [1, 1, 1]});
    let spec = with("minimax_m2", &publisher);
    assert_eq!(spec, with("minimax_m2", &json!({})));
    let layer = &spec.layers[0];
    assert_eq!((layer.attention.rotary_dim, layer.attention.head_dim), (16, 32));
    assert_eq!(norm_shapes(&layer.attention.qk_norm), [[128], [64]]);
    let routing = moe(layer).routing;
    assert_eq!((routing.scoring, routing.norm_topk_prob, routing.n_group), (Scoring::Sigmoid, true, 1));
    assert_eq!(moe(layer).correction_bias.as_ref().unwrap().shape, [10]);
    let whole = json!({"-rotary_dim": 0, "rope_parameters": {"rope_theta": 5e6, "rope_type": "default"}});
    assert_eq!(with("minimax_m2", &whole).layers[0].attention.rotary_dim, 32);
}

#[test]
fn glm4_moe() {
    let spec = with("glm4_moe", &json!({}));
    let (dense, sparse) = (&spec.layers[0], &spec.layers[2]);
    assert!(matches!(&dense.ffn, FfnSpec::Dense(mlp) if mlp.intermediate_size == 176));
    let expected =
        Routing { scoring: Scoring::Sigmoid, norm_topk_prob: true, n_group: 4, topk_group: 2, scaling_factor: 2.5 };
    assert_eq!(moe(sparse).routing, expected);
    let shared = moe(sparse).shared.as_ref().unwrap();
    assert_eq!((shared.mlp.intermediate_size, &shared.gate), (160, &None));
    assert_eq!((sparse.attention.rotary_dim, sparse.attention.head_dim), (16, 32));
    assert_eq!(norm_shapes(&sparse.attention.qk_norm), [[32], [32]]);
    assert!(sparse.attention.q_proj.bias.is_some() && sparse.attention.o_proj.bias.is_none());
    // Old style: rope's fields beside each other, and half of each head where nothing says how much.
    let old = json!({"-rope_parameters": 0, "rope_theta": 1000000, "rope_scaling": null, "partial_rotary_factor": 0.5});
    assert_eq!(with("glm4_moe", &old), spec);
    assert_eq!(with("glm4_moe", &json!({"-rope_parameters": 0, "rope_theta": 1000000})), spec);
    let without = with("glm4_moe", &json!({"use_qk_norm": false, "n_shared_experts": 0, "first_k_dense_replace": 0}));
    assert!(without.layers[0].attention.qk_norm.is_none() && moe(&without.layers[0]).shared.is_none());
}

#[test]
fn granitemoe() {
    let spec = with("granitemoe", &json!({}));
    assert_eq!((spec.embedding_multiplier, spec.logits_multiplier), (1.5, 1.0 / 6.0));
    assert_eq!((spec.layers[1].residual_multiplier, spec.layers[1].attention.scale), (0.8, 0.125));
    assert_eq!(moe(&spec.layers[1]).routing.scoring, Scoring::SoftmaxOfChosen);
    let up = &moe(&spec.layers[1]).experts[2].up_proj.weight;
    let part = up.part.as_ref().unwrap();
    assert_eq!((up.shape.as_slice(), part.file_shape.as_slice()), ([112, 128].as_slice(), [6, 224, 128].as_slice()));
    assert_eq!((part.offset, part.row_stride, part.col_stride), ((2 * 224 + 112) * 128, 128, 1));
    let plain = json!({"-embedding_multiplier": 0, "-logits_scaling": 0, "-residual_multiplier": 0});
    let plain = with("granitemoe", &plain);
    assert_eq!(
        (plain.embedding_multiplier, plain.logits_multiplier, plain.layers[0].residual_multiplier),
        (1.0, 1.0, 1.0)
    );
}

#[test]
fn gpt_oss() {
    let spec = with("gpt_oss-b", &json!({}));
    let windows: Vec<_> = spec.layers.iter().map(|layer| layer.attention.sliding_window).collect();
    assert_eq!(windows, [Some(50), None, Some(50)]);
    assert_eq!(spec, with("gpt_oss-b", &json!({"-layer_types": 0, "experts_per_token": 3})));
    let layer = &spec.layers[0];
    assert_eq!(layer.attention.sinks.as_ref().unwrap().shape, [4]);
    assert!(layer.attention.o_proj.bias.is_some() && moe(layer).router.bias.is_some() && moe(layer).expert_biases());
    assert_eq!(moe(layer).activation(), Activation::ClampedSwiGlu { alpha: 1.702, limit: 0.25 });
    // The published configs have neither field.
    let published = with("gpt_oss-b", &json!({"-swiglu_alpha": 0, "-swiglu_limit": 0}));
    assert_eq!(moe(&published.layers[0]).activation(), Activation::ClampedSwiGlu { alpha: 1.702, limit: 7.0 });
    let scales = |spec: &ModelSpec| {
        let part = moe(&spec.layers[1]).experts[0].down_proj.weight.part.clone();
        part.unwrap().mxfp4_scales
    };
    assert_eq!(scales(&spec), None);
    let packed = with("gpt_oss-mxfp4", &json!({}));
    assert_eq!(scales(&packed).unwrap(), "model.layers.1.mlp.experts.down_proj_scales");
}

/// A fixture, what is wrong as changes to its config, and the message without the path in front.
fn bad_configs() -> Vec<(&'static str, Value, &'static str)> {
    let typed = |first| json!({"layer_types": [first, "full_attention", "full_attention"]});
    vec![
        ("mixtral", json!({"sliding_window": 0}), "sliding_window is 0, expected a whole number from 1 to 134217728"),
        ("mixtral", json!({"num_experts_per_tok": 9}), "num_experts_per_tok is 9, expected a whole number from 1 to 8"),
        (
            "mixtral",
            json!({"-num_local_experts": 0}),
            "num_local_experts or num_experts is missing, expected a whole number from 1 to 16384",
        ),
        (
            "mixtral",
            json!({"-intermediate_size": 0}),
            "intermediate_size is missing, expected a whole number from 1 to 1048576",
        ),
        (
            "mixtral",
            json!({"partial_rotary_factor": 0.5}),
            "partial_rotary_factor is 0.5, which is not supported; expected 1, or no such field",
        ),
        (
            "qwen2_moe",
            json!({"-shared_expert_intermediate_size": 0}),
            "shared_expert_intermediate_size is missing, expected a whole number from 1 to 1048576",
        ),
        (
            "qwen2_moe",
            json!({"use_sliding_window": true}),
            "use_sliding_window is true, which is not supported; expected false: every layer attends to the whole context",
        ),
        ("qwen2_moe", json!({"qkv_bias": 1}), "qkv_bias is 1, expected true or false"),
        (
            "olmoe",
            json!({"clip_qkv": 8.0}),
            "clip_qkv is 8.0, which is not supported; expected null: no clipping of q, k and v",
        ),
        ("olmoe", json!({"norm_topk_prob": "yes"}), "norm_topk_prob is \"yes\", expected true or false"),
        (
            "minimax_m2",
            json!({"scoring_func": "softmax"}),
            "scoring_func is \"softmax\", which is not supported; expected sigmoid",
        ),
        (
            "minimax_m2",
            json!({"qk_norm_type": "per_head"}),
            "qk_norm_type is \"per_head\", which is not supported; expected per_layer",
        ),
        (
            "minimax_m2",
            json!({"use_routing_bias": false}),
            "use_routing_bias is false, which is not supported; expected true",
        ),
        (
            "minimax_m2",
            json!({"shared_intermediate_size": 64}),
            "shared_intermediate_size is 64, which is not supported; expected 0: no shared expert",
        ),
        (
            "minimax_m2",
            json!({"attn_type_list": [1, 0, 1]}),
            "attn_type_list is [1,0,1], which is not supported; expected 1, full attention, in every layer",
        ),
        (
            "minimax_m2",
            json!({"quantization_config": {"quant_method": "fp8"}}),
            "quantization_config is {\"quant_method\":\"fp8\"}, which is not supported; \
             expected unquantised weights, without this field",
        ),
        ("minimax_m2", json!({"rotary_dim": 33}), "rotary_dim is 33, expected a whole number from 1 to 32"),
        (
            "minimax_m2",
            json!({"rotary_dim": 8}),
            "rope_parameters.partial_rotary_factor is 0.5, expected a share of head_dim, 32, that comes to 8 as elsewhere in \
             the config",
        ),
        (
            "minimax_m2",
            json!({"rotary_dim": 15, "rope_parameters": {"rope_theta": 1e4}}),
            "partial_rotary_factor is 15 elements, expected an even number above 0 of the 32 elements of a head to turn",
        ),
        (
            "glm4_moe",
            json!({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 1.5}}),
            "rope_parameters.partial_rotary_factor is 1.5, expected a number up to 1",
        ),
        (
            "glm4_moe",
            json!({"partial_rotary_factor": 0.25}),
            "partial_rotary_factor is 0.25, expected a share of head_dim, 32, that comes to 16 as elsewhere in the config",
        ),
        (
            "glm4_moe",
            json!({"n_group": 5}),
            "n_group is 5, expected a divisor of 12 experts that leaves at least two in a group",
        ),
        (
            "glm4_moe",
            json!({"n_group": 12}),
            "n_group is 12, expected a divisor of 12 experts that leaves at least two in a group",
        ),
        ("glm4_moe", json!({"topk_group": 5}), "topk_group is 5, expected a whole number from 1 to 4"),
        (
            "glm4_moe",
            json!({"topk_group": 1}),
            "topk_group is 1, expected enough groups of 3 experts for num_experts_per_tok, 4",
        ),
        ("glm4_moe", json!({"routed_scaling_factor": 0}), "routed_scaling_factor is 0, expected a number above 0"),
        (
            "glm4_moe",
            json!({"routed_scaling_factor": 1e300}),
            "routed_scaling_factor is 1e300, expected a number that f32 can hold in full",
        ),
        (
            "glm4_moe",
            json!({"first_k_dense_replace": 4}),
            "first_k_dense_replace is 4, expected a whole number from 0 to 3",
        ),
        (
            "glm4_moe",
            json!({"n_shared_experts": 16384, "moe_intermediate_size": 65}),
            "n_shared_experts is 16384, expected at most 1048576 in all at a width of 65",
        ),
        (
            "glm4_moe",
            json!({"-n_routed_experts": 0}),
            "n_routed_experts or num_local_experts or num_experts is missing, expected a whole number from 1 to 16384",
        ),
        ("granitemoe", json!({"logits_scaling": 0}), "logits_scaling is 0, expected a number above 0"),
        ("granitemoe", json!({"residual_multiplier": -1}), "residual_multiplier is -1, expected a number above 0"),
        (
            "granitemoe",
            json!({"embedding_multiplier": "x"}),
            "embedding_multiplier is \"x\", expected a number above 0",
        ),
        (
            "granitemoe",
            json!({"attention_multiplier": 1e-60}),
            "attention_multiplier is 1e-60, expected a number that f32 can hold in full",
        ),
        ("gpt_oss-b", typed("linear"), "layer_types is linear, expected sliding_attention or full_attention"),
        (
            "gpt_oss-b",
            json!({"layer_types": ["full_attention"]}),
            "layer_types is a list of 1, expected one for each of 3 layers",
        ),
        ("gpt_oss-b", json!({"layer_types": 3}), "layer_types is 3, expected a list of texts"),
        (
            "gpt_oss-b",
            json!({"sliding_window": null}),
            "sliding_window is missing, expected a whole number from 1 to 134217728",
        ),
        (
            "gpt_oss-b",
            json!({"experts_per_token": 4}),
            "experts_per_token is 4, expected 3, the value of num_experts_per_tok",
        ),
        ("gpt_oss-b", json!({"swiglu_limit": 0}), "swiglu_limit is 0, expected a number above 0"),
        (
            "gpt_oss-b",
            json!({"quantization_config": {"quant_method": "gptq"}}),
            "quantization_config.quant_method is \"gptq\", which is not supported; expected mxfp4, or no quantization_config",
        ),
        (
            "gpt_oss-b",
            json!({"quantization_config": {}}),
            "quantization_config.quant_method is absent, which is not supported; expected mxfp4, or no quantization_config",
        ),
        (
            "gpt_oss-mxfp4",
            json!({"intermediate_size": 144}),
            "intermediate_size is 144, expected a multiple of MXFP4's block, 32",
        ),
        (
            "gpt_oss-mxfp4",
            json!({"hidden_act": "gelu"}),
            "hidden_act is \"gelu\", which is not supported; expected silu",
        ),
    ]
}

#[test]
fn bad_configs_are_refused() {
    for (name, changes, expected) in bad_configs() {
        let error = load(&changed(config(name), &changes)).expect_err(expected);
        assert_eq!(error.to_string(), format!("dir/config.json: {expected}"), "{name} {changes}");
    }
}

proptest! {
    /// Any value in any field of any family gives a model or an error.
    #[test]
    fn random_fields_never_panic(
        name in prop::sample::select(FIXTURES.to_vec()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any_value()), 1..4),
    ) {
        let mut config = config(name);
        let fields = config.as_object_mut().unwrap();
        for name in ["rope_scaling", "partial_rotary_factor", "rotary_dim", "layer_types", "quantization_config"] {
            fields.entry(name).or_insert(Value::Null);
        }
        let names: Vec<String> = fields.keys().cloned().collect();
        for (name, value) in changes {
            fields.insert(name.get(&names).clone(), value);
        }
        if let Ok(spec) = load(&config) {
            prop_assert!(!spec.layers.is_empty());
        }
    }
}
