//! The engine against references that Hugging Face transformers computed in float32 on the same BF16 weights.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use assay_engine::expert_cache::Encoding;
use assay_kernels::KvFormat;
use common::{Model, fixture};
use serde_json::Value;

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}

fn check(name: &str) {
    let dir = fixture(name);
    let reference: Value = serde_json::from_slice(&std::fs::read(dir.join("reference.json")).unwrap()).unwrap();
    let model = Model::open(&dir, Encoding::Bf16);
    let mut engine = model.resident(model.options(KvFormat::F32, 512));
    let prompts = reference["prompts"].as_array().unwrap();
    assert!(!prompts.is_empty());
    for prompt in prompts {
        engine.reset();
        let mut chosen = Vec::new();
        let mut token = engine
            .prefill_logits(&ids(&prompt["input_token_ids"]), 0, &mut |_, logits| {
                chosen.push(argmax(logits));
                Ok(())
            })
            .unwrap();
        assert_eq!(chosen, ids(&prompt["argmax_per_position"]), "{name}: argmax at every position");
        if let Some(expected) = prompt["last_logits_f32"].as_array() {
            let logits = engine.last_logits().unwrap();
            let squares: f64 =
                logits.iter().zip(expected).map(|(&a, b)| (f64::from(a) - b.as_f64().unwrap()).powi(2)).sum();
            let rms = (squares / logits.len() as f64).sqrt() / prompt["logits_std"].as_f64().unwrap();
            assert!(rms < 1e-3, "{name}: last logits differ by {rms} of their standard deviation");
        }
        let greedy = ids(&prompt["greedy_token_ids"]);
        let mut generated = vec![token];
        while generated.len() < greedy.len() {
            token = engine.decode(token).unwrap();
            generated.push(token);
        }
        assert_eq!(generated, greedy, "{name}: greedy tokens");
    }
}

#[test]
fn tiny_moe_agrees_with_transformers() {
    check("tiny-moe");
}

#[test]
fn qwen3_moe_agrees_with_transformers() {
    check("families/qwen3_moe-a");
}
