//! Agents without a model.

use crate::place::{Place, row};
use std::time::Duration;

#[test]
fn every_task_is_sound() {
    let (code, answer) = Place::new().ask(&["adq", "check"]);
    assert_eq!(code, 0, "{answer}");
    assert_eq!(answer["tasks"].as_array().unwrap().len(), 4);
}

#[test]
fn a_new_task_is_sound_until_a_test_is_not_needed() {
    let place = Place::new();
    assert!(place.run(&["adq", "new", "halving"]).status.success());
    assert_eq!(place.ask(&["adq", "check", "halving"]).0, 0);
    std::fs::write(place.path("fixtures/adq/halving/mutants.toml"), "").unwrap();
    let (code, answer) = place.ask(&["adq", "check", "halving"]);
    assert!(code == 1 && answer.to_string().contains("no mutant is caught by it alone"), "{answer}");
}

#[test]
fn controls_get_what_they_deserve_and_the_oracle_passes() {
    let place = Place::new();
    let (code, answer) = place.ask(&["adq", "run", "--agent", "oracle", "--task", "ledger", "--task", "history"]);
    assert_eq!(code, 0, "{answer}");
    for task in answer["tasks"].as_array().unwrap() {
        assert_eq!(
            (&task["verdict"], &task["public"], &task["hidden"]),
            (&"PASS".into(), &"PASS".into(), &"PASS".into())
        );
    }
    assert_eq!(answer["tasks"][0]["history_tokens"], 4096);
    assert_eq!(row(&answer, "productive_tasks").0, "PASS");
    assert_eq!(row(&answer, "runtime_integrity").0, "PASS");
    assert_eq!(row(&answer, "numerical_fidelity").0, "INCOMPLETE");
    assert_eq!(place.ask(&["adq", "verify"]).0, 0);
    let (code, graded) = place.ask(&["adq", "grade"]);
    assert!(code == 0 && graded["tasks"].as_array().unwrap().iter().all(|task| task["equal"] == true), "{graded}");
    let page = place.path("page.html");
    place.run(&["adq", "report", "--page", page.to_str().unwrap()]);
    assert!(std::fs::read_to_string(page).unwrap().contains("Hidden tests"));
}

#[test]
fn bad_agents_fail_for_their_own_reason() {
    let place = Place::new();
    for (agent, public, words) in [
        ("no-op", "FAIL", "changed nothing"),
        ("plan-only", "FAIL", "stopped without acting"),
        ("endless", "FAIL", "did not come to an end in 24 turns"),
        ("visible-only", "PASS", "hidden tests fail"),
        ("edit-tests", "PASS", "tried to change tests/public/cases.json"),
        ("edit-protected", "PASS", "tried to change README.md"),
        ("exit-zero", "FAIL", "public tests fail"),
    ] {
        let arguments = ["adq", "run", "--agent", agent, "--task", "ledger", "--controls", "none"];
        let (code, answer) = place.ask(&arguments);
        let task = &answer["tasks"][0];
        assert_eq!((code, &task["verdict"], &task["public"]), (1, &"FAIL".into(), &public.into()), "{agent}: {task}");
        assert!(task["reason"].as_str().unwrap().contains(words), "{agent}: {task}");
    }
    let (_, report) = place.ask(&["adq", "report"]);
    assert_eq!(report["subject"], "agent exit-zero");
}

#[test]
fn a_killed_run_is_incomplete_verifies_and_goes_on() {
    let place = Place::new();
    let arguments = ["adq", "run", "--agent", "oracle", "--controls", "none"];
    for wait_ms in [150, 400, 800, 1600] {
        let mut run = place.start(&arguments);
        std::thread::sleep(Duration::from_millis(wait_ms));
        run.kill().unwrap();
        run.wait().unwrap();
        if !place.path("ledgers/local").exists() {
            continue;
        }
        assert_eq!(place.run(&["ledger", "verify"]).status.code(), Some(0), "after {wait_ms} ms");
    }
    let mut run = place.start(&arguments);
    // Until its first attempt is kept.
    while place.ask(&["adq", "report"]).1["tasks"][0]["verdict"] != "PASS" {
        assert!(run.try_wait().unwrap().is_none(), "it ended before it was killed");
    }
    run.kill().unwrap();
    run.wait().unwrap();
    let (code, report) = place.ask(&["adq", "report"]);
    if report["evidence"].is_string() {
        // It was faster than the kill.
        return;
    }
    assert_eq!(code, 3);
    assert!(report["rows"].as_array().unwrap().iter().all(|row| row["verdict"] == "INCOMPLETE"), "{report}");
    let (code, verified) = place.ask(&["adq", "verify"]);
    assert_eq!((code, row(&verified, "ledger").0, row(&verified, "complete").0), (3, "PASS", "INCOMPLETE"));
    let name = report["run"].as_str().unwrap();
    let (_, resumed) = place.ask(&[&arguments[..], &["--resume", name]].concat());
    assert_eq!(resumed["run"], name);
    assert_eq!(row(&resumed, "productive_tasks"), ("PASS", "4 of 4 attempts pass"));
    assert_eq!(place.ask(&["adq", "verify"]).0, 0);
}

#[test]
fn a_run_goes_on_as_itself_or_not_at_all() {
    let place = Place::new();
    let run = ["adq", "run", "--controls", "none", "--agent"];
    let (_, answer) = place.ask(&[&run[..], &["no-op", "--task", "config"]].concat());
    let other = ["oracle", "--task", "ledger", "--tier", "16K", "--resume", answer["run"].as_str().unwrap()];
    let output = place.run(&[&run[..], &other].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    for part in [
        "subject: agent no-op recorded, agent oracle asked for",
        "tier: 4096 recorded, 16384 asked for",
        "tasks.config: ",
        "tasks.ledger: nothing recorded",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("attempts: ") && !said.contains("python: "), "what is the same is not named: {said}");
}

#[test]
fn a_changed_transcript_is_found() {
    let place = Place::new();
    place.ask(&["adq", "run", "--agent", "no-op", "--task", "config", "--controls", "none"]);
    let logs = place.path("ledgers/local/logs");
    for folder in std::fs::read_dir(logs).unwrap() {
        for file in std::fs::read_dir(folder.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            let mut content = std::fs::read(&path).unwrap();
            let middle = content.len() / 2;
            content[middle] ^= 1;
            std::fs::write(&path, content).unwrap();
        }
    }
    assert_ne!(place.run(&["adq", "verify"]).status.code(), Some(0));
}
