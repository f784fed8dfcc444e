//! Synthetic models and route traces as a user meets them.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

/// Runs it and checks the exit code; stdout and stderr.
fn check(arguments: &[&str], code: i32) -> (String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_assay")).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{stdout}\n{stderr}");
    (stdout, stderr)
}

/// A config that runs the model in `dir`.
fn config(dir: &Path) -> String {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../suites/configs/tiny-moe.toml"));
    let path = dir.with_extension("toml");
    let model = format!("model = {:?}", dir.to_str().unwrap());
    let text = text
        .unwrap()
        .replace("model = \"fixtures/models/tiny-moe\"", &model)
        .replace("\"search\"", "\"amax\"")
        .replace("heatmap = \"suites/heatmaps/tiny-moe.json\"\n", "");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_synthetic_model_runs_and_is_barred_from_quality_rows() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("made-up");
    let dir = model.to_str().unwrap();
    check(&["synth", "tiny", "--layers", "2", "--seed", "5", "--out", dir], 0);
    let (_, stderr) = check(&["synth", "tiny", "--out", dir], 2);
    assert!(stderr.contains("not empty"), "{stderr}");
    let (text, _) = check(&["synth", "check", dir, "--decode", "8"], 0);
    assert!(text.contains("PASS  EVEN, stated even") && text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(model.join("routing.json").is_file());

    let config = config(&model);
    check(&["cache", "verify", &config], 0);
    let (_, stderr) = check(&["perplexity", &config], 2);
    assert!(stderr.contains("made-up is a synthetic model (shape tiny, seed 5)"), "{stderr}");
    let (_, stderr) = check(&["reference-test", &config], 2);
    assert!(stderr.contains("is a synthetic model"), "{stderr}");
    let (_, stderr) = check(&["cache", "build", &config, "--replace"], 2);
    assert!(stderr.contains("no checkpoint holds the experts of a synthetic model"), "{stderr}");

    let trace = folder.path().join("routes.trace");
    let trace = trace.to_str().unwrap();
    let arguments = ["heatmap", "trace", &config, "--prompts", "random", "--decode-tokens", "20", "--to", trace];
    let (json, _) = check(&[&arguments[..], &["--output", "json"]].concat(), 0);
    let recorded: serde_json::Value = serde_json::from_str(&json).unwrap();
    let (json, _) = check(&["hcs-sim", trace, "--policy", "frequency_lru", "--slots", "50%", "--output", "json"], 0);
    let simulated: serde_json::Value = serde_json::from_str(&json).unwrap();
    let rows = simulated["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    assert_eq!(simulated["tokens"], 120);
    // The config keeps half of the experts too, all of them through prefill.
    assert_eq!(rows[0]["result"]["cold_bytes"], recorded["counters"]["cold_bytes"]);
    assert!(rows[0]["hit_rate"].as_f64().unwrap() <= rows[2]["hit_rate"].as_f64().unwrap());
    for format in ["csv", "md", "text"] {
        let (answer, _) = check(&["hcs-sim", trace, "--output", format], 0);
        assert!(answer.contains("oracle"), "{answer}");
    }
}

#[test]
fn a_collapsed_model_fails_its_check() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("collapsed");
    let dir = dir.to_str().unwrap();
    check(&["synth", "tiny", "--layers", "2", "--nibble-offset", "2", "--branch-gain", "8", "--out", dir], 0);
    let (text, _) = check(&["synth", "check", dir, "--decode", "0"], 1);
    assert!(text.contains("FAIL  SKEWED, stated even"), "{text}");
}

#[test]
fn mistakes_say_what_would_do() {
    let says = |arguments: &[&str], part: &str| {
        let (_, stderr) = check(arguments, 2);
        assert!(stderr.contains(part), "{arguments:?}: {stderr}");
    };
    says(&["synth"], "--out");
    says(&["synth", "tinier", "--out", "unwritten"], "qwen3-30b-a3b");
    says(&["synth", "tiny", "--out", "unwritten", "--skew", "pareto"], "zipf:S");
    says(&["synth", "check", "../fixtures/models/tiny-moe"], "is no synthetic model");
    says(&["hcs-sim", "/nonexistent.trace"], "/nonexistent.trace");
    says(&["hcs-sim", "Cargo.toml"], "expected a route trace");
}
