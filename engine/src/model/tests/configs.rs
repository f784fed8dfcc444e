//! Configs that make no sense or ask for what is not implemented, and random ones.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{changed, load, new_style};
use crate::model::load_spec;

/// What is wrong, as changes to a good config, and the message without the path in front.
fn bad_configs() -> Vec<(Value, &'static str)> {
    let yarn = |more: Value| {
        let base = json!({"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0});
        json!({ "rope_parameters": changed(base, &more) })
    };
    vec![
        (
            json!({"-model_type": 0}),
            "model_type is missing, expected one of: glm4_moe, gpt_oss, granitemoe, minimax_m2, mixtral, olmoe, qwen2_moe, qwen3_moe",
        ),
        (
            json!({"model_type": "gpt2"}),
            "model_type is \"gpt2\", which is not supported; \
             expected one of: glm4_moe, gpt_oss, granitemoe, minimax_m2, mixtral, olmoe, qwen2_moe, qwen3_moe",
        ),
        (json!({"model_type": 3}), "model_type is 3, expected a text"),
        (json!({"-hidden_size": 0}), "hidden_size is missing, expected a whole number from 1 to 1048576"),
        (json!({"hidden_size": 0}), "hidden_size is 0, expected a whole number from 1 to 1048576"),
        (json!({"hidden_size": -32}), "hidden_size is -32, expected a whole number from 1 to 1048576"),
        (json!({"hidden_size": 32.5}), "hidden_size is 32.5, expected a whole number from 1 to 1048576"),
        (json!({"hidden_size": "32"}), "hidden_size is \"32\", expected a whole number from 1 to 1048576"),
        (
            json!({"hidden_size": 18446744073709551615u64}),
            "hidden_size is 18446744073709551615, expected a whole number from 1 to 1048576",
        ),
        (json!({"vocab_size": 0}), "vocab_size is 0, expected a whole number from 1 to 16777216"),
        (json!({"num_hidden_layers": 0}), "num_hidden_layers is 0, expected a whole number from 1 to 1000"),
        (json!({"num_hidden_layers": 1001}), "num_hidden_layers is 1001, expected a whole number from 1 to 1000"),
        (json!({"num_attention_heads": 0}), "num_attention_heads is 0, expected a whole number from 1 to 4096"),
        (json!({"num_key_value_heads": 0}), "num_key_value_heads is 0, expected a whole number from 1 to 4096"),
        (json!({"num_key_value_heads": 3}), "num_key_value_heads is 3, expected a divisor of num_attention_heads, 4"),
        (json!({"num_key_value_heads": 8}), "num_key_value_heads is 8, expected a divisor of num_attention_heads, 4"),
        (json!({"head_dim": 15}), "head_dim is 15, expected an even number up to 4096"),
        (json!({"head_dim": 0}), "head_dim is 0, expected a whole number from 1 to 4096"),
        (
            json!({"-head_dim": 0, "hidden_size": 34}),
            "head_dim is missing, expected hidden_size, 34, to be a multiple of num_attention_heads, 4",
        ),
        (json!({"head_dim": null, "hidden_size": 36}), "head_dim is 9, expected an even number up to 4096"),
        (json!({"rms_norm_eps": 0}), "rms_norm_eps is 0, expected a number above 0"),
        (json!({"rms_norm_eps": 1e-60}), "rms_norm_eps is 1e-60, expected a number that f32 can hold"),
        (
            json!({"max_position_embeddings": 0}),
            "max_position_embeddings is 0, expected a whole number from 1 to 134217728",
        ),
        (json!({"num_local_experts": 0}), "num_local_experts is 0, expected a whole number from 1 to 16384"),
        (
            json!({"-num_local_experts": 0}),
            "num_experts or num_local_experts is missing, expected a whole number from 1 to 16384",
        ),
        (json!({"num_experts": 7}), "num_local_experts is 6, expected 7, the value of num_experts"),
        (
            json!({"num_local_experts": 16384, "num_hidden_layers": 17}),
            "num_experts is 16384, expected at most 262144 experts in all layers, not 278528",
        ),
        (json!({"num_experts_per_tok": 7}), "num_experts_per_tok is 7, expected a whole number from 1 to 6"),
        (json!({"num_experts_per_tok": 0}), "num_experts_per_tok is 0, expected a whole number from 1 to 6"),
        (json!({"decoder_sparse_step": 0}), "decoder_sparse_step is 0, expected a whole number from 1 to 1000"),
        (json!({"mlp_only_layers": [0, 2]}), "mlp_only_layers is [0,2], expected whole numbers below 2"),
        (
            json!({"mlp_only_layers": [0], "-intermediate_size": 0}),
            "intermediate_size is missing, expected a whole number from 1 to 1048576",
        ),
        (json!({"eos_token_id": 100}), "eos_token_id is 100, expected whole numbers below 100"),
        (json!({"eos_token_id": [1, "x"]}), "eos_token_id is [1,\"x\"], expected whole numbers below 100"),
        (json!({"hidden_act": "gelu"}), "hidden_act is \"gelu\", which is not supported; expected silu"),
        (json!({"tie_word_embeddings": 1}), "tie_word_embeddings is 1, expected true or false"),
        (
            json!({"use_sliding_window": true}),
            "use_sliding_window is true, which is not supported; expected false: every layer attends to the whole context",
        ),
        (
            json!({"layer_types": ["full_attention", "sliding_attention"]}),
            "layer_types is [\"full_attention\",\"sliding_attention\"], which is not supported; \
             expected full_attention in every layer",
        ),
        (
            json!({"quantization_config": {"quant_method": "fp8"}}),
            "quantization_config is {\"quant_method\":\"fp8\"}, which is not supported; \
             expected unquantised weights, without this field",
        ),
        (
            json!({"dtype": "float8_e4m3fn"}),
            "dtype is \"float8_e4m3fn\", which is not supported; expected bfloat16, float16 or float32",
        ),
        (json!({"rope_parameters": []}), "rope_parameters is [], expected an object or null"),
        (json!({"-rope_parameters": 0}), "rope_theta is missing, expected a number above 0"),
        (json!({"-rope_parameters": 0, "rope_theta": 1.0}), "rope_theta is 1, expected a number above 1"),
        (json!({"rope_parameters": {"rope_type": "default"}}), "rope_theta is missing, expected a number above 0"),
        (
            json!({"rope_parameters": {"rope_theta": 1e4, "rope_type": "llama3", "factor": 8.0}}),
            "rope_parameters.rope_type is \"llama3\", which is not supported; expected default or yarn",
        ),
        (
            json!({"-rope_parameters": 0, "rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}}),
            "rope_scaling.type is \"linear\", which is not supported; expected default or yarn",
        ),
        (
            json!({"rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "mrope_section": [1, 2]}}),
            "rope_parameters.mrope_section is [1,2], which is not supported; expected no such field for rope type default",
        ),
        (
            json!({"rope_parameters": {"full_attention": {"rope_theta": 1e4, "rope_type": "default"}}}),
            "rope_parameters.full_attention is {\"rope_theta\":10000.0,\"rope_type\":\"default\"}, which is not supported; \
             expected no such field for rope type default",
        ),
        (
            json!({"partial_rotary_factor": 0.5}),
            "partial_rotary_factor is 0.5, which is not supported; expected 1, or no such field",
        ),
        (
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}}),
            "rope_scaling is another rope than rope_parameters, expected one of the two, or both the same",
        ),
        (yarn(json!({"factor": -1})), "rope_parameters.factor is -1, expected a number above 0"),
        (yarn(json!({"type": "default"})), "rope_parameters.type is default, expected yarn, the value of rope_type"),
        (
            yarn(json!({"original_max_position_embeddings": 0})),
            "rope_parameters.original_max_position_embeddings is 0, expected a whole number from 1 to 134217728",
        ),
        (
            yarn(json!({"beta_fast": 1, "beta_slow": 2})),
            "rope_parameters.beta_fast is 1, expected at least beta_slow, 2",
        ),
        (yarn(json!({"truncate": "no"})), "rope_parameters.truncate is \"no\", expected true or false"),
    ]
}

#[test]
fn bad_configs_are_refused() {
    for (changes, expected) in bad_configs() {
        let error = load(&changed(new_style(), &changes)).expect_err(expected);
        assert_eq!(error.to_string(), format!("dir/config.json: {expected}"), "{changes}");
    }
}

#[test]
fn what_is_no_json_object_is_refused() {
    for (bytes, expected) in [
        ("", "no JSON (EOF while parsing a value at line 1 column 0)"),
        ("[1]", "another JSON value"),
        ("{\"a\": 1", "no JSON (EOF while parsing an object at line 1 column 7)"),
        ("{\"a\": NaN}", "no JSON (expected value at line 1 column 7)"),
    ] {
        let error = load_spec(bytes.as_bytes(), "c.json".as_ref()).unwrap_err().to_string();
        assert_eq!(error, format!("c.json: {expected}, expected a JSON object with a model's configuration"));
    }
    let deep = "[".repeat(1 << 20);
    load_spec(deep.as_bytes(), "c.json".as_ref()).unwrap_err();
}

/// A value of megabytes does not fill the screen.
#[test]
fn errors_shorten_what_they_quote() {
    let error = load(&changed(new_style(), &json!({"hidden_act": "é".repeat(1 << 20)}))).unwrap_err().to_string();
    assert!(error.len() < 300, "{error}");
}

/// Values that have broken readers before.
pub(super) fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0u64..2000).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z_]{0,8}".prop_map(Value::from),
        prop_oneof![Just("yarn"), Just("default"), Just("silu"), Just("full_attention")].prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 16, 4, |inner| {
        let names = prop_oneof![
            "[a-z_]{0,8}",
            prop_oneof![Just("rope_type"), Just("rope_theta"), Just("factor"), Just("beta_fast"), Just("truncate")]
                .prop_map(str::to_owned),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(names, inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Any value in any field gives a model or an error.
    #[test]
    fn random_fields_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any_value()), 1..4)) {
        let mut config = new_style();
        let fields = config.as_object_mut().unwrap();
        fields.insert("rope_scaling".into(), Value::Null);
        fields.insert("num_experts".into(), Value::Null);
        let names: Vec<String> = fields.keys().cloned().collect();
        for (name, value) in changes {
            fields.insert(name.get(&names).clone(), value);
        }
        if let Ok(spec) = load(&config) {
            prop_assert!(!spec.layers.is_empty());
        }
    }

    /// Any byte anywhere gives a model or an error.
    #[test]
    fn random_bytes_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = new_style().to_string().into_bytes();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let _ = load_spec(&bytes, "c.json".as_ref());
    }
}
