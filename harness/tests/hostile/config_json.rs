//! A checkpoint's `config.json`.

use serde_json::{Value, json};

use crate::place::Place;
use crate::table::{Case, case, check_all};

const FILE: &str = "model/config.json";
const CHECK: &[&str] = &["checkpoint-check", "model"];

#[test]
fn config_files() {
    insta::assert_snapshot!(check_all(files().into_iter().chain(fields())));
}

fn on(name: &'static str, damage: fn(&Place)) -> Case {
    case(name, CHECK, FILE, damage)
}

fn files() -> Vec<Case> {
    vec![
        on("absent", |place| place.remove(FILE)),
        on("empty", |place| place.write(FILE, "")),
        on("a folder", |place| place.folder(FILE)),
        on("not JSON", |place| place.write(FILE, "model_type: olmoe")),
        on("not UTF-8", |place| place.write(FILE, b"{\"model_type\":\"\xff\xfe\"}")),
        on("a list", |place| place.write(FILE, "[]")),
        on("cut in half", |place| place.truncate(FILE, 400)),
        on("lists nested 100,000 deep", |place| place.write(FILE, format!("{{\"a\":{}", "[".repeat(100_000)))),
        on("objects nested 100,000 deep", |place| place.write(FILE, "{\"a\":".repeat(100_000))),
        on("17 MiB of it", |place| place.sparse(FILE, 17 << 20)),
        on("one field twice", |place| {
            place.write(FILE, place.text(FILE).replacen('{', "{\"num_experts_per_tok\": 2,", 1));
        }),
    ]
}

/// Sets one field.
fn set(place: &Place, field: &str, value: Value) {
    place.edit_json(FILE, |config| config[field] = value);
}

fn fields() -> Vec<Case> {
    vec![
        on("no model_type", |place| set(place, "model_type", Value::Null)),
        on("a model_type that nobody knows", |place| set(place, "model_type", json!("mamba9000"))),
        on("a model_type of 1 MB", |place| set(place, "model_type", json!("x".repeat(1_000_000)))),
        on("a number for a model_type", |place| set(place, "model_type", json!(3))),
        on("top-k above the experts", |place| set(place, "num_experts_per_tok", json!(11))),
        on("top-k of zero", |place| set(place, "num_experts_per_tok", json!(0))),
        on("no experts", |place| set(place, "num_experts", json!(0))),
        on("zero heads", |place| set(place, "num_attention_heads", json!(0))),
        on("zero KV heads", |place| set(place, "num_key_value_heads", json!(0))),
        on("KV heads that do not divide the heads", |place| set(place, "num_key_value_heads", json!(3))),
        on("10^9 layers", |place| set(place, "num_hidden_layers", json!(1_000_000_000))),
        on("zero layers", |place| set(place, "num_hidden_layers", json!(0))),
        on("the most layers, without their tensors", |place| set(place, "num_hidden_layers", json!(1000)))
            .names("model.layers.3."),
        on("the most experts in all, without their tensors", |place| {
            set(place, "num_experts", json!(262));
            set(place, "num_hidden_layers", json!(1000));
        })
        .names("model"),
        on("more experts in all than there may be", |place| {
            set(place, "num_experts", json!(16384));
            set(place, "num_hidden_layers", json!(1000));
        }),
        on("a huge hidden_size", |place| set(place, "hidden_size", json!(1u64 << 40))),
        on("the largest hidden_size, without its tensors", |place| set(place, "hidden_size", json!(1 << 20)))
            .names("model"),
        on("a negative hidden_size", |place| set(place, "hidden_size", json!(-96))),
        on("a broken hidden_size", |place| set(place, "hidden_size", json!(96.5))),
        on("a hidden_size of 2^64", |place| {
            place.replace(FILE, "\"hidden_size\": 96", "\"hidden_size\": 18446744073709551616");
        }),
        on("a huge vocabulary", |place| set(place, "vocab_size", json!(1u64 << 32))),
        on("the largest vocabulary, without its tensors", |place| set(place, "vocab_size", json!(1 << 24)))
            .names("model"),
        on("another vocabulary than the embedding has", |place| set(place, "vocab_size", json!(300)))
            .names("model.embed_tokens.weight"),
        on("an odd head_dim", |place| set(place, "head_dim", json!(23))),
        on("heads that do not divide the width", |place| set(place, "num_attention_heads", json!(10))),
        on("an epsilon of zero", |place| set(place, "rms_norm_eps", json!(0))),
        on("a negative epsilon", |place| set(place, "rms_norm_eps", json!(-1e-5))),
        on("an epsilon that f32 rounds to zero", |place| set(place, "rms_norm_eps", json!(1e-60))),
        on("a number of 1e400", |place| place.replace(FILE, "10000.0", "1e400")),
        on("a rope that does not turn", |place| place.replace(FILE, "10000.0", "1.0")),
        on("a rope that nobody knows", |place| place.replace(FILE, "\"default\"", "\"spiral\"")),
        on("YaRN by next to nothing", |place| {
            set(place, "rope_parameters", json!({ "rope_type": "yarn", "rope_theta": 10000.0, "factor": 1e-308 }));
        }),
        on("YaRN with an attention factor beyond f32", |place| {
            let yarn = json!({ "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "attention_factor": 1e300 });
            set(place, "rope_parameters", yarn);
        }),
        on("quantised weights", |place| set(place, "quantization_config", json!({ "quant_method": "gptq" }))),
        on("another activation", |place| set(place, "hidden_act", json!("relu"))),
        on("an end of sequence past the vocabulary", |place| set(place, "eos_token_id", json!(301))),
        on("a context shorter than the prompt", |place| set(place, "max_position_embeddings", json!(10)))
            .names("max_position_embeddings"),
    ]
}
