//! Suites of small tasks.

use crate::place::{Place, row};

/// One task of each kind.
const KINDS: [&str; 11] = [
    "comment",
    "copy",
    "delete",
    "exchange",
    "insert",
    "off-by-one",
    "propagate",
    "rename",
    "reorder",
    "set",
    "set-two",
];

fn firsts() -> Vec<String> {
    KINDS.iter().map(|kind| format!("{kind}-01")).collect()
}

#[test]
fn small_tasks_are_sound() {
    let names = firsts();
    let names = names.iter().map(String::as_str);
    let arguments: Vec<&str> = ["adq", "check", "--fixtures", "fixtures/adq/micro"].into_iter().chain(names).collect();
    let (code, answer) = Place::new().ask(&arguments);
    assert_eq!(code, 0, "{answer}");
    assert_eq!(answer["tasks"].as_array().unwrap().len(), KINDS.len());
}

#[test]
fn a_suite_is_run_judged_by_kinds_graded_again_and_verified() {
    let place = Place::new();
    let names = firsts();
    let tasks = names.iter().flat_map(|name| ["--task", name]);
    let arguments: Vec<&str> =
        ["adq", "run", "--agent", "oracle", "--suite", "micro"].into_iter().chain(tasks).collect();
    let (code, answer) = place.ask(&arguments);
    assert_eq!(code, 0, "{answer}");
    assert_eq!(row(&answer, "productive_tasks"), ("PASS", "11 of 11 attempts pass"));
    assert_eq!(row(&answer, "runtime_integrity").0, "PASS", "{answer}");
    assert_eq!(answer["shares"]["pass@1 of trained kinds"]["value"], 1.0);
    let held_out = answer["tasks"].as_array().unwrap().iter().filter(|task| task["kind"]["held_out"] == true).count();
    assert_eq!(held_out, 4);
    // At each kind seven agents; cheats that are a module at the one kind that is about one.
    let cheats = answer["controls"].as_array().unwrap().iter().filter(|control| control["kind"] != "control").count();
    assert_eq!(answer["controls"].as_array().unwrap().len() - cheats, 77);
    assert!(cheats > 0 && cheats < 77, "{cheats}");
    assert_eq!(place.ask(&["adq", "verify"]).0, 0);
    let (code, graded) = place.ask(&["adq", "grade"]);
    assert!(code == 0 && graded["tasks"].as_array().unwrap().iter().all(|task| task["equal"] == true), "{graded}");
    let again = ["adq", "run", "--agent", "oracle", "--suite", "micro", "--task", "set-01", "--controls", "none"];
    // Without controls the harness is not shown to be right: INCOMPLETE.
    assert_eq!(place.ask(&again).0, 3);
    let (_, report) = place.ask(&["adq", "report", "--against", answer["run"].as_str().unwrap()]);
    assert_eq!(
        (&report["mcnemar"]["tasks"], &report["mcnemar"]["equal_transcripts"]),
        (&1.into(), &1.into()),
        "{report}"
    );
    std::fs::write(place.path("fixtures/adq/micro/common/reader.py"), "def lines(path):\n    return []\n").unwrap();
    let (_, verified) = place.ask(&["adq", "verify"]);
    assert_eq!(row(&verified, "tasks").0, "INCOMPLETE", "{verified}");
}

#[test]
fn a_model_s_work_is_the_same_under_every_budget_and_is_graded_again_without_it() {
    let place = Place::with(&["fixtures/models/edit-model", "suites/configs/edit-model-bf16.toml"]);
    let tasks = ["set-01", "rename-01", "off-by-one-01"];
    let run = |flags: &[&str]| {
        let arguments =
            ["adq", "run", "--suite", "micro", "--config", "edit-model-bf16", "--controls", "none", "--tasks-only"];
        let tasks = tasks.iter().flat_map(|task| ["--task", task]);
        let arguments: Vec<&str> = arguments.into_iter().chain(tasks).chain(flags.iter().copied()).collect();
        // No controls, no other layer: INCOMPLETE.
        let (code, answer) = place.ask(&arguments);
        assert_eq!((code, row(&answer, "determinism").0), (3, "PASS"), "{answer}");
        answer
    };
    let whole = run(&[]);
    assert_eq!(row(&whole, "productive_tasks"), ("PASS", "3 of 3 attempts pass"));
    // A quarter of the experts resident.
    let quarter = run(&["--vram", "40MiB", "--max-resident-share", "0.25", "--max-chunk", "64"]);
    assert_eq!(quarter["subject"], "config edit-model-bf16 --vram 41943040 --max-chunk 64 --max-resident-share 0.25");
    let (_, report) = place.ask(&["adq", "report", "--against", whole["run"].as_str().unwrap()]);
    assert_eq!(report["mcnemar"]["equal_transcripts"], tasks.len(), "{report}");
    std::fs::remove_file(place.path("fixtures/models/edit-model/model.safetensors")).unwrap();
    let (code, graded) = place.ask(&["adq", "grade"]);
    let equal = |task: &serde_json::Value| task["equal"] == true && task["verdict"] == "PASS";
    assert!(code == 0 && graded["tasks"].as_array().unwrap().iter().all(equal), "{graded}");
}

/// Said at once, and nothing is recorded: neither a run that cannot be gone on with, nor controls for nobody.
#[test]
fn what_cannot_be_qualified_is_refused_before_anything_runs() {
    let place = Place::new();
    let refused = |arguments: &[&str], reason: &str| {
        let output = place.run(&[&["adq", "run"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(reason), "{arguments:?}: {said}");
        assert!(!place.path("ledgers/local").exists(), "{arguments:?} left a record");
    };
    refused(&["--agent", "nope"], "no agent is called \"nope\"");
    for url in ["x", "ftp://x", "http://", "http:///v1"] {
        refused(&["--endpoint", url, "--model", "m"], "an endpoint is http://HOST");
    }
    let endpoint = ["--endpoint", "http://127.0.0.1:9", "--model", "m", "--reference-model", "r", "--reference"];
    refused(&[&endpoint[..], &["x"]].concat(), "--reference: an endpoint is http://HOST or https://HOST, found \"x\"");
    let config = ["--config", "tiny-moe", "--reference-model", "r", "--reference", "https://other.example"];
    refused(&[&config[..], &["--ca-file", "nowhere.pem"]].concat(), "--reference: cannot open nowhere.pem");
    refused(&[&config[..], &["--tasks-only"]].concat(), "cannot be used with '--tasks-only'");
    refused(&["--agent", "oracle", "--model", "m"], "--model is for an --endpoint");
    refused(&["--agent", "oracle", "--kv", "int4"], "no --config that they change");
    refused(&["--agent", "oracle", "--completion-tokens", "0"], "--completion-tokens");
}

#[test]
fn a_suite_that_is_none_is_named() {
    let place = Place::new();
    for name in ["macro", "ledger", "../adq/micro"] {
        let output = place.run(&["adq", "run", "--agent", "oracle", "--suite", name]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains("no suite is called"), "{said}");
    }
}
