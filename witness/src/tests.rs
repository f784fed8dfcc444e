#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{
    Artifact, Binding, Gate, Judgement, Observed, Outcome, Rule, SCHEMAS, Scope, TopK, Weights, WitnessError, judge,
    schema_text,
};

fn crate_file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn tiny_moe() -> (Artifact, Binding) {
    Artifact::read(&crate_file("artifacts/tiny-moe.json")).unwrap()
}

fn gate(name: &str) -> Gate {
    Gate::read(&crate_file(&format!("../suites/gates/{name}.toml"))).unwrap()
}

/// The witness's own answers, as somebody else's.
fn echo(artifact: &Artifact, binding: &Binding) -> Observed {
    let prompts = artifact.prompts.iter().map(|prompt| crate::ObservedPrompt {
        name: prompt.name.clone(),
        greedy_token_ids: prompt.greedy.iter().map(|step| step.token_id).collect(),
        teacher_forced: prompt.greedy.iter().map(|step| step.top.clone()).collect(),
        prefill: prompt.prefill.clone(),
    });
    Observed {
        schema_version: 1,
        artifact_sha256: binding.sha256.clone(),
        runtime: "echo".to_owned(),
        prompts: prompts.collect(),
    }
}

fn failing(judgements: &[Judgement]) -> Vec<(Option<&str>, Rule, Outcome)> {
    let judged = |outcome| !matches!(outcome, Outcome::Pass | Outcome::Reported);
    let failing = judgements.iter().filter(|judgement| judged(judgement.outcome));
    failing.map(|judgement| (judgement.prompt.as_deref(), judgement.rule, judgement.outcome)).collect()
}

#[test]
fn schemas_are_current() {
    for (name, generate) in SCHEMAS {
        let (path, current) = (crate_file(&format!("schema/{name}")), schema_text(generate).unwrap());
        if std::env::var_os("ASSAY_UPDATE_SCHEMAS").is_some() {
            std::fs::write(&path, &current).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap();
        assert!(kept == current, "{} is not current: ASSAY_UPDATE_SCHEMAS=1 cargo test writes it", path.display());
    }
}

#[test]
fn artifacts_are_of_tiny_moe_and_say_what_they_should() {
    for (file, experts) in [("tiny-moe", "bf16"), ("tiny-moe.int4-search", "int4-search")] {
        let (artifact, _) = Artifact::read(&crate_file(&format!("artifacts/{file}.json"))).unwrap();
        assert_eq!(artifact.model.experts, experts);
        assert_eq!(
            artifact.model.weights_sha256["model.safetensors"],
            "936278a38e8fb51bbb2226d16caadac38be19f4b4701ad25dfb309eb2743ff30"
        );
        let lengths: Vec<usize> = artifact.prompts.iter().map(|prompt| prompt.input_token_ids.len()).collect();
        assert_eq!(lengths, [1, 2, 7, 33, 129, 300, 700, 1000, 2000, 3000]);
        for prompt in &artifact.prompts {
            assert_eq!(prompt.greedy.len(), 64);
            let places = prompt.input_token_ids.len() - 1;
            assert!(prompt.prefill.len() >= places.min(14), "{}: {}", prompt.name, prompt.prefill.len());
        }
    }
}

#[test]
fn llama_cpp_replays_its_own_artifact_and_passes() {
    let (artifact, binding) = tiny_moe();
    let observed =
        Observed::read(&crate_file("artifacts/replays/tiny-moe.llama.cpp.json"), &artifact, &binding).unwrap();
    let (figures, judgements) = judge(&artifact, &observed, &gate("same"));
    assert_eq!(failing(&judgements), []);
    assert!(figures.iter().all(|figures| figures.exact_run == 64), "{figures:?}");
    // It is a second run and no copy: other batches add in another order.
    assert!(figures.iter().any(|figures| figures.logprob_difference_max > 0.0));
}

#[test]
fn gates_are_no_looser_than_promised() {
    let same = gate("same");
    assert_eq!(same.weights, Weights::Same);
    assert_eq!(same.rules.top_k_containment.min_share, 1.0);
    for rule in [same.rules.first_token, same.rules.prefill_argmax, same.rules.teacher_forced] {
        assert!(rule.min_share == 1.0 && rule.excused_below_margin <= 0.02 && rule.over == Scope::Prompt);
    }
    let int4 = gate("int4");
    assert_eq!(int4.weights, Weights::Int4AgainstBf16);
    let rules = &int4.rules;
    assert!(rules.first_token.min_share == 1.0 && rules.first_token.excused_below_margin <= 0.05);
    for rule in [rules.prefill_argmax, rules.teacher_forced] {
        assert!(rule.min_share >= 0.75 && rule.excused_below_margin == 0.0);
    }
    assert!(rules.top_k_overlap.min_mean >= 6.0);
    let tensor = gate("same-tensor").rules;
    assert!(tensor.logprobs.max_difference <= Some(0.5) && tensor.logprobs.mean_difference <= 0.05);
    assert!(tensor.max_stray_share <= Some(0.01) && same.rules.max_stray_share.is_none());
}

#[test]
fn every_rule_fails_when_it_is_broken() {
    let (artifact, binding) = tiny_moe();
    let same = gate("same");
    let check = |what: &str, change: fn(&mut Observed), expected: &[Rule]| {
        let mut observed = echo(&artifact, &binding);
        change(&mut observed);
        let (_, judgements) = judge(&artifact, &observed, &same);
        let failing = failing(&judgements);
        let rules: Vec<Rule> = failing.iter().map(|&(_, rule, _)| rule).collect();
        assert_eq!(rules, expected, "{what}: {failing:?}");
        assert!(failing.iter().all(|&(prompt, _, _)| prompt == Some("holmes-7")), "{what}: {failing:?}");
    };
    check("nothing", |_| {}, &[]);
    check(
        "other first",
        |observed| swap_first(&mut observed.prompts[2].teacher_forced[0]),
        &[Rule::FirstToken, Rule::TeacherForced],
    );
    check("other later", |observed| swap_first(&mut observed.prompts[2].teacher_forced[5]), &[Rule::TeacherForced]);
    check("other inside", |observed| swap_first(&mut observed.prompts[2].prefill[1].top), &[Rule::PrefillArgmax]);
    check(
        "gone from the top",
        |observed| observed.prompts[2].teacher_forced[5].ids[0] = 4095,
        &[Rule::TeacherForced, Rule::TopKContainment],
    );
    check(
        "two others at the end",
        |observed| observed.prompts[2].teacher_forced[5].ids[8..].copy_from_slice(&[4095, 4094]),
        &[Rule::TopKOverlap],
    );
    check("less likely", |observed| observed.prompts[2].teacher_forced[5].logprobs[3] -= 0.01, &[Rule::Logprobs]);
    check("other continuation", |observed| observed.prompts[2].greedy_token_ids[3] = 0, &[]);
    check("a step short", |observed| drop(observed.prompts[2].teacher_forced.pop()), &[Rule::Complete]);
    check("another position", |observed| observed.prompts[2].prefill[0].position = 3, &[Rule::Complete]);
}

/// Puts the second token first; each keeps its log-probability, so that only the order is wrong.
fn swap_first(top: &mut TopK) {
    top.ids.swap(0, 1);
    top.logprobs.swap(0, 1);
}

#[test]
fn a_missing_answer_is_incomplete() {
    let (artifact, binding) = tiny_moe();
    let mut observed = echo(&artifact, &binding);
    observed.prompts.pop();
    let (figures, judgements) = judge(&artifact, &observed, &gate("same"));
    assert_eq!(figures.len(), 9);
    assert_eq!(failing(&judgements), [(Some("sawyer-3000"), Rule::Complete, Outcome::Incomplete)]);
}

#[test]
fn a_small_margin_excuses() {
    let (mut artifact, binding) = tiny_moe();
    let mut observed = echo(&artifact, &binding);
    swap_first(&mut observed.prompts[2].teacher_forced[5]);
    let margin = |artifact: &mut Artifact, margin: f64| {
        let top = &mut artifact.prompts[2].greedy[5].top;
        top.logprobs[1] = top.logprobs[0] - margin;
    };
    for (size, expected) in [(0.019, Outcome::Pass), (0.021, Outcome::Fail)] {
        margin(&mut artifact, size);
        let (_, judgements) = judge(&artifact, &observed, &gate("same"));
        let row = judgements.iter().find(|row| row.row() == "holmes-7: teacher-forced agreement").unwrap();
        assert_eq!(row.outcome, expected, "{}", row.reason);
    }
}

#[test]
fn a_share_over_the_artifact_is_one_row() {
    let (artifact, binding) = tiny_moe();
    let mut observed = echo(&artifact, &binding);
    let places: usize = artifact.prompts.iter().map(|prompt| prompt.prefill.len()).sum();
    let mut left = places / 4 + 1;
    for place in observed.prompts.iter_mut().rev().flat_map(|prompt| &mut prompt.prefill) {
        if left > 0 {
            swap_first(&mut place.top);
            left -= 1;
        }
    }
    let (_, judgements) = judge(&artifact, &observed, &gate("int4"));
    assert_eq!(failing(&judgements), [(None, Rule::PrefillArgmax, Outcome::Fail)]);
}

/// One place in a hundred may be far from the witness's, in whichever way and prompt; a prompt's means are judged all the same.
#[test]
fn strays_are_counted_over_all_prompts() {
    let (artifact, binding) = tiny_moe();
    let (gate, places) = (gate("same-tensor"), 754);
    let run = |strays: usize| {
        let mut observed = echo(&artifact, &binding);
        let tops = observed.prompts.iter_mut().flat_map(|prompt| prompt.prefill.iter_mut().step_by(4));
        for (at, place) in tops.take(strays).enumerate() {
            if at % 2 == 0 {
                place.top.logprobs[9] -= 0.6;
            } else {
                place.top.ids[7..].copy_from_slice(&[4095, 4094, 4093]);
            }
        }
        let (_, judgements) = judge(&artifact, &observed, &gate);
        let row = judgements.iter().find(|row| row.rule == Rule::Strays).unwrap();
        assert!(row.reason.starts_with(&format!("{strays} of {places} places")), "{}", row.reason);
        failing(&judgements).iter().map(|&(prompt, rule, _)| (prompt.is_none(), rule)).collect::<Vec<_>>()
    };
    assert_eq!(run(0), []);
    assert_eq!(run(places / 100), []);
    assert_eq!(run(places / 100 + 1), [(true, Rule::Strays)]);
}

#[test]
fn the_likeliest_tokens_of_logits() {
    let top = TopK::from_logits(&[1.0, 3.0, 3.0, -2.0], 3).unwrap();
    assert_eq!(top.ids, [1, 2, 0], "ties go to the lowest id");
    let sum = 2.0 + (-2.0f64).exp() + (-5.0f64).exp();
    let expected = [-sum.ln(), -sum.ln(), -2.0 - sum.ln()];
    assert!(top.logprobs.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-15), "{top:?}");
    assert_eq!(top.margin(), 0.0);
    assert_eq!(TopK::from_logits(&[0.0, f32::NAN], 1), None);
    assert_eq!(TopK::from_logits(&[], 1), None);
    assert_eq!(TopK::from_logits(&[5.0], 10).unwrap().logprobs, [0.0]);
}

/// Reads an artifact after `change`.
fn changed(change: impl FnOnce(&mut Value)) -> Result<(Artifact, Binding), WitnessError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("artifact.json");
    let text = std::fs::read(crate_file("artifacts/tiny-moe.json")).unwrap();
    let mut value: Value = serde_json::from_slice(&text).unwrap();
    change(&mut value);
    std::fs::write(&path, serde_json::to_vec(&value).unwrap()).unwrap();
    Artifact::read(&path)
}

#[test]
fn an_artifact_that_contradicts_itself_is_refused() {
    let check = |change: fn(&mut Value), part: &str| {
        let error = changed(change).unwrap_err();
        let message = error.to_string();
        assert!(message.contains(part) && message.contains("artifact.json"), "{message}");
        assert!(!error.is_invalid_evidence(), "{message}");
    };
    check(|value| value["prompts"] = json!([]), "prompts: 0 of them");
    check(|value| value["colour"] = json!(1), "colour");
    check(|value| value["top_k"] = json!(1_000_000), "expected 2 to 1000");
    check(|value| value["model"]["weights_sha256"] = json!({}), "no file");
    check(|value| value["tokenizer"]["sha256"] = json!("4267C24C"), "64 lowercase hexadecimal digits");
    check(|value| value["prompts"][1]["name"] = value["prompts"][0]["name"].clone(), "each name once");
    check(|value| value["prompts"][2]["input_token_ids"] = json!([]), "no token");
    check(|value| value["prompts"][2]["input_token_ids"][0] = json!(4096), "ids below vocab_size, 4096");
    check(|value| value["prompts"][2]["greedy"] = json!([]), "no step");
    check(|value| value["prompts"][2]["greedy"][3]["token_id"] = json!(9), "greedy[3]: token_id 9");
    check(|value| value["prompts"][2]["greedy"][3]["top"]["ids"][4] = json!(5000), "greedy[3]: token id 5000");
    check(|value| value["prompts"][2]["greedy"][3]["top"]["logprobs"][4] = json!(0.5), "log-probability 0.5");
    check(|value| value["prompts"][2]["greedy"][3]["top"]["logprobs"][4] = json!(-0.001), "expected likeliest first");
    check(
        |value| {
            value["prompts"][2]["prefill"][1]["top"]["ids"][1] =
                value["prompts"][2]["prefill"][1]["top"]["ids"][0].clone()
        },
        "twice, expected each once",
    );
    check(|value| drop(value["prompts"][2]["prefill"][1]["top"]["ids"].as_array_mut().unwrap().pop()), "9 ids and 10");
    check(|value| value["prompts"][2]["prefill"][1]["position"] = json!(6), "position 6");
    check(|value| value["prompts"][2]["prefill"][1]["position"] = json!(0), "position 0");
}

#[test]
fn evidence_of_something_else_is_told_apart_with_both_fingerprints() {
    let (artifact, binding) = tiny_moe();
    let (own, other) = (artifact.model.weights_sha256.clone(), "f".repeat(64));
    let tokenizer = artifact.tokenizer.sha256.clone();
    let check = |weights: &BTreeMap<String, String>, tokenizer: Option<&str>, experts: &str| {
        artifact.check_fingerprints(&binding.path, weights, tokenizer, experts)
    };
    assert_eq!(check(&own, Some(&tokenizer), "bf16").unwrap(), Weights::Same);
    assert_eq!(check(&own, Some(&tokenizer), "int4-amax").unwrap(), Weights::Int4AgainstBf16);
    let foreign = BTreeMap::from([("model.safetensors".to_owned(), other.clone())]);
    for (error, found) in [
        (check(&foreign, Some(&tokenizer), "bf16").unwrap_err(), own["model.safetensors"].as_str()),
        (check(&own, Some(&other), "bf16").unwrap_err(), tokenizer.as_str()),
    ] {
        let message = error.to_string();
        assert!(error.is_invalid_evidence() && message.contains(found) && message.contains(&other), "{message}");
    }
    assert!(check(&own, None, "bf16").unwrap_err().is_invalid_evidence());
    let (quantised, binding) = Artifact::read(&crate_file("artifacts/tiny-moe.int4-search.json")).unwrap();
    let error = quantised.check_fingerprints(&binding.path, &own, Some(&tokenizer), "bf16").unwrap_err();
    assert!(error.is_invalid_evidence() && error.to_string().contains("int4-search"), "{error}");
    let newer = changed(|value| value["schema_version"] = json!(2)).unwrap_err();
    assert!(newer.is_invalid_evidence() && newer.to_string().contains("schema version 2, expected 1"), "{newer}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Damage is an error or changes nothing that matters, and never a panic.
    #[test]
    fn damaged_bytes_never_panic(at in 0.0f64..1.0, byte in any::<u8>(), cut in any::<bool>()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("artifact.json");
        let (artifact, binding) = tiny_moe();
        for source in ["artifacts/tiny-moe.json", "artifacts/replays/tiny-moe.llama.cpp.json", "../suites/gates/int4.toml"] {
            let mut bytes = std::fs::read(crate_file(source)).unwrap();
            let place = (at * (bytes.len() - 1) as f64) as usize;
            if cut {
                bytes.truncate(place);
            } else {
                bytes[place] = byte;
            }
            std::fs::write(&path, &bytes).unwrap();
            if let Ok((artifact, binding)) = Artifact::read(&path) {
                judge(&artifact, &echo(&artifact, &binding), &gate("same"));
            }
            if let Ok(observed) = Observed::read(&path, &artifact, &binding) {
                judge(&artifact, &observed, &gate("same"));
            }
            drop(Gate::read(&path));
        }
    }
}
