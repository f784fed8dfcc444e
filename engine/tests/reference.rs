//! The engine against references that Hugging Face transformers computed in float32 on the same BF16 weights.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use assay_engine::expert_cache::Encoding;
use assay_kernels::KvFormat;
use common::{Model, fixture};
use serde_json::Value;

/// Root mean square of the differences of the last logits, in standard deviations of the reference's.
const LOGITS_TOLERANCE: f64 = 1e-3;

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}

/// Distance of logits from the reference's, if it has them all.
fn distance(logits: &[f32], prompt: &Value) -> Option<f64> {
    let expected = prompt["last_logits_f32"].as_array()?;
    assert_eq!(logits.len(), expected.len());
    let squares: f64 = logits.iter().zip(expected).map(|(&a, b)| (f64::from(a) - b.as_f64().unwrap()).powi(2)).sum();
    Some((squares / logits.len() as f64).sqrt() / prompt["logits_std"].as_f64().unwrap())
}

/// Argmax at every position, last logits and greedy tokens of every prompt; the bits of the last logits.
fn check(name: &str) -> Vec<Vec<u32>> {
    let dir = fixture(name);
    let reference: Value = serde_json::from_slice(&std::fs::read(dir.join("reference.json")).unwrap()).unwrap();
    let model = Model::open(&dir, Encoding::Bf16);
    let mut engine = model.resident(model.options(KvFormat::F32, 512));
    let prompts = reference["prompts"].as_array().unwrap();
    assert!(!prompts.is_empty());
    let mut bits = Vec::new();
    for prompt in prompts {
        engine.reset();
        let mut chosen = Vec::new();
        let input = ids(&prompt["input_token_ids"]);
        let mut token = engine
            .prefill_logits(&input, 0, &mut |_, logits| {
                chosen.push(argmax(logits));
                Ok(())
            })
            .unwrap();
        let logits = engine.last_logits().unwrap();
        let distance = distance(&logits, prompt);
        println!("{name}, {} tokens: last logits differ by {distance:?} standard deviations", input.len());
        assert_eq!(chosen, ids(&prompt["argmax_per_position"]), "{name}: argmax at every position");
        assert!(distance.is_none_or(|distance| distance < LOGITS_TOLERANCE), "{name}: {distance:?}");
        let greedy = ids(&prompt["greedy_token_ids"]);
        let mut generated = vec![token];
        while generated.len() < greedy.len() {
            token = engine.decode(token).unwrap();
            generated.push(token);
        }
        assert_eq!(generated, greedy, "{name}: greedy tokens");
        bits.push(logits.iter().map(|logit| logit.to_bits()).collect());
    }
    bits
}

#[test]
fn tiny_moe_agrees_with_transformers() {
    check("tiny-moe");
}

/// Every folder of `fixtures/models/families`, so that one added there cannot be forgotten here.
#[test]
fn every_family_agrees_with_transformers() {
    let entries = std::fs::read_dir(fixture("families")).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> = entries
        .filter(|path| path.is_dir())
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    let families = ["glm4_moe", "gpt_oss", "granitemoe", "minimax_m2", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe"];
    for family in families {
        assert!(names.iter().any(|name| name.starts_with(family)), "no fixture of {family}");
    }
    for name in names {
        check(&format!("families/{name}"));
    }
}

/// The same weights, as BF16 and as blocks with scales: not a bit of difference.
#[test]
fn mxfp4_experts_are_the_values_that_they_stand_for() {
    assert!(check("families/gpt_oss-b") == check("families/gpt_oss-mxfp4"));
}
