//! The binary as a user meets it: exit codes, what goes to stdout, and how a mistake is answered.
#![allow(clippy::unwrap_used)]

use assay_ledgers::{CheckBody, Draft, EvidenceClass, Identity, Ledger, Verdict, VerdictRow};
use std::path::Path;
use std::process::{Command, Output};

fn assay(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_assay")).args(arguments).env_remove("ASSAY_CORPUS_DIR").output().unwrap()
}

/// Runs it, checks the exit code and that nothing but an answer is on stdout; stdout and stderr.
fn check(arguments: &[&str], code: i32) -> (String, String) {
    let output = assay(arguments);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{stdout}\n{stderr}");
    assert_eq!(stdout.is_empty(), code == 2, "{arguments:?}: {stdout}");
    (stdout, stderr)
}

#[test]
fn mistakes_exit_with_2_and_say_what_would_do() {
    let says = |arguments: &[&str], part: &str| {
        let (_, stderr) = check(arguments, 2);
        assert!(stderr.contains(part), "{arguments:?}: {stderr}");
    };
    says(&["no-such-command"], "--help");
    says(&["benchmark", "tiny-mow"], "tiny-moe, tiny-moe-amax, tiny-moe-bf16");
    says(&["benchmark", "tiny-moe", "--vram", "20 parsecs"], "20MiB");
    says(&["benchmark", "tiny-moe", "--prompts", "six"], "ASSAY_CORPUS_DIR");
    says(&["cache", "info", "/nonexistent.toml"], "/nonexistent.toml");
    says(&["ledger", "show", "3f9a1c", "--ledger", "/nonexistent"], "/nonexistent");
}

#[test]
fn completions_name_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let (script, _) = check(&["completions", shell], 0);
        for command in ["benchmark", "perplexity", "ledger"] {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
}

#[test]
fn a_ledger_is_read_and_a_change_in_it_found() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    let ledger = Ledger::open(folder.path()).unwrap();
    let verdict = VerdictRow { row: "prompt 1".into(), verdict: Verdict::Pass, reason: "equal".into() };
    let body = CheckBody { subject: "tiny-moe".into(), reference: "reference.json".into(), rows: Vec::new() };
    let draft = Draft::new(EvidenceClass::Functional, identity(), body).verdicts(vec![verdict]);
    let hash = ledger.append(draft).unwrap().record.hash;

    let (list, _) = check(&["ledger", "list", "--ledger", place], 0);
    assert!(list.contains(&hash.short()) && list.contains("1 PASS"), "{list}");
    let (json, _) = check(&["ledger", "show", &hash.short(), "--ledger", place, "--output", "json"], 0);
    let record: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(record["hash"], hash.to_string());
    let (shown, _) = check(&["ledger", "show", &hash.short(), "--ledger", place], 0);
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    check(&["ledger", "export", "--ledger", place, "--output", "csv"], 0);
    check(&["ledger", "verify", place], 0);

    change_one_byte(folder.path());
    let (report, _) = check(&["ledger", "verify", place], 4);
    assert!(report.contains("INVALID"), "{report}");
}

#[test]
fn another_machines_ledger_is_imported_once() {
    let (repository, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let corpus = repository.path().join("fixtures/corpus");
    std::fs::create_dir_all(&corpus).unwrap();
    std::fs::write(corpus.join("manifest.toml"), "").unwrap();
    let ledger = Ledger::open(other.path()).unwrap();
    let body = || CheckBody { subject: "tiny-moe".into(), reference: "reference.json".into(), rows: Vec::new() };
    for _ in 0..2 {
        ledger.append(Draft::new(EvidenceClass::Functional, identity(), body())).unwrap();
    }
    let run = |arguments: &[&str]| {
        let assay = env!("CARGO_BIN_EXE_assay");
        let output = Command::new(assay).args(arguments).current_dir(repository.path()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let import = ["ledger", "import", other.path().to_str().unwrap(), "--output", "json"];
    for new in [2, 0] {
        let (code, answer) = run(&import);
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((code, &answer["new"]), (Some(0), &new.into()), "{answer}");
        assert_eq!(answer["chains"][0]["records"], 2);
    }
    assert_eq!(run(&["ledger", "verify", "local"]).0, Some(0));
    assert_eq!(run(&["ledger", "publish", "--all"]).0, Some(0));
    assert_eq!(run(&["ledger", "verify", "tracked"]).0, Some(0));
    change_one_byte(other.path());
    assert_eq!(run(&import).0, Some(4));
}

fn change_one_byte(ledger: &Path) {
    let chain = std::fs::read_dir(ledger)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .unwrap();
    let text = std::fs::read_to_string(&chain).unwrap();
    std::fs::write(&chain, text.replace("reference.json", "Reference.json")).unwrap();
}

fn identity() -> Identity {
    let digest = "00".repeat(32);
    serde_json::from_value(serde_json::json!({
        "checkpoint": { "name": "tiny-moe", "shards": { "model.safetensors": digest }, "config": digest },
        "source": { "commit": "0" },
        "binary": digest,
        "precision": { "experts": "bf16", "attention": "bf16", "dense": "bf16", "head": "bf16", "kv": "f32" },
        "device": { "kind": "host", "name": "cpu", "cpu_features": "scalar", "threads": 1 },
        "memory": { "vram_bytes": 1, "margin_bytes": 0 },
        "context": 1,
        "prefill_chunk": 1,
        "residency_policy": "lru",
        "sampling": "none",
        "prompts": { "set": "none", "texts": {} },
        "synthetic": true
    }))
    .unwrap()
}
