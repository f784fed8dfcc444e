//! The engine against references that Hugging Face transformers computed in float32 on the same BF16 weights.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;

use assay_engine::ModelFolder;
use assay_engine::expert_cache::Encoding;
use assay_engine::model::spec::{AttentionSpec, FfnSpec, ModelSpec, MoeSpec};
use assay_kernels::{Activation, KvFormat, Scoring};
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

/// A change to a model that its reference must notice.
type Fault = (&'static str, fn(&mut ModelSpec));

fn attention(spec: &mut ModelSpec, change: fn(&mut AttentionSpec)) {
    spec.layers.iter_mut().for_each(|layer| change(&mut layer.attention));
}

fn moe(spec: &mut ModelSpec, change: fn(&mut MoeSpec)) {
    for layer in &mut spec.layers {
        if let FfnSpec::Moe(moe) = &mut layer.ffn {
            change(moe);
        }
    }
}

fn activation(spec: &mut ModelSpec, activation: Activation) {
    for layer in &mut spec.layers {
        if let FfnSpec::Moe(moe) = &mut layer.ffn {
            moe.experts.iter_mut().for_each(|expert| expert.activation = activation);
        }
    }
}

/// Every part of the arithmetic that some families have and others do not, taken out of a fixture that has it.
const FAULTS: &[(&str, &[Fault])] = &[
    (
        "glm4_moe",
        &[
            ("no groups", |spec| moe(spec, |moe| moe.routing.topk_group = moe.routing.n_group)),
            ("no correction bias", |spec| moe(spec, |moe| moe.correction_bias = None)),
            ("no scaling", |spec| moe(spec, |moe| moe.routing.scaling_factor = 1.0)),
            ("no renormalising", |spec| moe(spec, |moe| moe.routing.norm_topk_prob = false)),
            ("softmax scores", |spec| moe(spec, |moe| moe.routing.scoring = Scoring::Softmax)),
            ("no shared expert", |spec| moe(spec, |moe| moe.shared = None)),
            ("no head norms", |spec| attention(spec, |attention| attention.qk_norm = None)),
            ("whole heads turned", |spec| attention(spec, |attention| attention.rotary_dim = attention.head_dim)),
            ("no bias on q", |spec| attention(spec, |attention| attention.q_proj.bias = None)),
        ],
    ),
    (
        "gpt_oss-b",
        &[
            ("no sinks", |spec| attention(spec, |attention| attention.sinks = None)),
            ("no windows", |spec| attention(spec, |attention| attention.sliding_window = None)),
            ("a window one too wide", |spec| {
                attention(spec, |attention| {
                    attention.sliding_window = attention.sliding_window.map(|window| window + 1)
                });
            }),
            ("another limit", |spec| activation(spec, Activation::ClampedSwiGlu { alpha: 1.702, limit: 7.0 })),
            ("another alpha", |spec| activation(spec, Activation::ClampedSwiGlu { alpha: 1.0, limit: 0.25 })),
            ("plain SwiGLU", |spec| activation(spec, Activation::SwiGlu)),
            ("no router bias", |spec| moe(spec, |moe| moe.router.bias = None)),
            ("softmax over all", |spec| moe(spec, |moe| moe.routing.scoring = Scoring::Softmax)),
            ("no bias on o", |spec| attention(spec, |attention| attention.o_proj.bias = None)),
        ],
    ),
    (
        "granitemoe",
        &[
            ("no embedding multiplier", |spec| spec.embedding_multiplier = 1.0),
            ("no logits scaling", |spec| spec.logits_multiplier = 1.0),
            ("no residual multiplier", |spec| spec.layers[1].residual_multiplier = 1.0),
            ("the usual scale", |spec| attention(spec, |attention| attention.scale = 32f32.powf(-0.5))),
            ("gate and up exchanged", |spec| {
                moe(spec, |moe| {
                    moe.experts
                        .iter_mut()
                        .for_each(|expert| std::mem::swap(&mut expert.gate_proj, &mut expert.up_proj));
                });
            }),
        ],
    ),
    (
        "minimax_m2",
        &[
            ("no correction bias", |spec| moe(spec, |moe| moe.correction_bias = None)),
            ("softmax scores", |spec| moe(spec, |moe| moe.routing.scoring = Scoring::Softmax)),
            ("no norms", |spec| attention(spec, |attention| attention.qk_norm = None)),
            ("whole heads turned", |spec| attention(spec, |attention| attention.rotary_dim = attention.head_dim)),
        ],
    ),
    (
        "olmoe",
        &[
            ("renormalised", |spec| moe(spec, |moe| moe.routing.norm_topk_prob = true)),
            ("no norms", |spec| attention(spec, |attention| attention.qk_norm = None)),
        ],
    ),
    ("mixtral", &[("no renormalising", |spec| moe(spec, |moe| moe.routing.norm_topk_prob = false))]),
    (
        "qwen2_moe",
        &[
            ("no shared expert", |spec| moe(spec, |moe| moe.shared = None)),
            ("no gate on it", |spec| {
                moe(spec, |moe| {
                    if let Some(shared) = &mut moe.shared {
                        shared.gate = None;
                    }
                });
            }),
            ("no bias on v", |spec| attention(spec, |attention| attention.v_proj.bias = None)),
        ],
    ),
];

/// The references are worth something: without any one of these parts the last logits are far from them.
#[test]
fn every_part_of_a_family_shows_in_its_reference() {
    for &(name, faults) in FAULTS {
        let dir = fixture("families").join(name);
        let reference: Value = serde_json::from_slice(&std::fs::read(dir.join("reference.json")).unwrap()).unwrap();
        let prompt = &reference["prompts"][1];
        for &(fault, plant) in faults {
            let mut folder = ModelFolder::open(&dir, &|_| {}).unwrap();
            plant(Arc::make_mut(&mut folder.spec));
            let model = Model::of(folder, Encoding::Bf16);
            let mut engine = model.resident(model.options(KvFormat::F32, 512));
            engine.prefill(&ids(&prompt["input_token_ids"])).unwrap();
            let distance = distance(&engine.last_logits().unwrap(), prompt).unwrap();
            println!("{name}, {fault}: last logits differ by {distance:.3} standard deviations");
            assert!(distance > 5.0 * LOGITS_TOLERANCE, "{name}, {fault}: {distance}");
        }
    }
}
