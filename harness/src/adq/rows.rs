//! The rows of a run: each judged by itself, never summed up.

use super::controls::ControlRow;
use super::determinism::Determinism;
use assay_ledgers::{Verdict, VerdictRow};

/// Productive work.
pub const TASKS: &str = "productive_tasks";
/// The same answer every time.
pub const DETERMINISM: &str = "determinism";
/// Distance from an independent implementation.
pub const FIDELITY: &str = "numerical_fidelity";
/// Frozen cases on two runtimes.
pub const BEHAVIOUR: &str = "cross_runtime_behaviour";
/// Free memory in every phase.
pub const MEMORY: &str = "memory_safety";
/// The harness, the sandbox, and how requests are admitted and kept apart.
pub const INTEGRITY: &str = "runtime_integrity";
/// All, in the order that a report has them.
pub const ALL: [&str; 6] = [TASKS, DETERMINISM, FIDELITY, BEHAVIOUR, MEMORY, INTEGRITY];

/// A row.
pub fn row(name: &str, verdict: Verdict, reason: impl Into<String>) -> VerdictRow {
    VerdictRow { row: name.to_owned(), verdict, reason: reason.into() }
}

/// The row of all tasks, from the verdicts of their attempts.
pub fn tasks(attempts: &[(String, Verdict)]) -> VerdictRow {
    let count = |verdict| attempts.iter().filter(|(_, found)| *found == verdict).count();
    let named = |verdict| {
        let names: Vec<&str> =
            attempts.iter().filter(|(_, found)| *found == verdict).map(|(name, _)| name.as_str()).collect();
        names.join(", ")
    };
    let of = format!("{} of {} attempts pass", count(Verdict::Pass), attempts.len());
    for verdict in [Verdict::Invalid, Verdict::Fail, Verdict::Incomplete] {
        if count(verdict) > 0 {
            return row(TASKS, verdict, format!("{of}; {verdict}: {}", named(verdict)));
        }
    }
    row(TASKS, if attempts.is_empty() { Verdict::Incomplete } else { Verdict::Pass }, of)
}

/// The row of controls of determinism. `missing` says which of them could not be run, if any.
pub fn determinism(found: &Determinism, missing: Option<&str>) -> VerdictRow {
    match found.differing() {
        Err(reason) => row(DETERMINISM, Verdict::Incomplete, reason),
        Ok(differing) if !differing.is_empty() => {
            row(DETERMINISM, Verdict::Fail, format!("other answers than the first: {}", differing.join(", ")))
        }
        Ok(_) => {
            let names: Vec<&str> = found.runs.iter().map(|run| run.run.as_str()).collect();
            let equal = format!("equal answers: {}", names.join(", "));
            match missing {
                Some(missing) => row(DETERMINISM, Verdict::Incomplete, format!("{equal}; {missing}")),
                None => row(DETERMINISM, Verdict::Pass, equal),
            }
        }
    }
}

/// The row of the harness: every control must have got what it deserves.
pub fn controls(found: &[ControlRow]) -> (Verdict, String) {
    let wrong: Vec<String> = found
        .iter()
        .filter(|control| !control.deserved)
        .map(|control| format!("{} at {}: {} ({})", control.agent, control.task, control.verdict, control.saw))
        .collect();
    let cheats = found.iter().filter(|control| control.kind != "control").count();
    let others = found.len() - cheats;
    if found.is_empty() {
        return (Verdict::Incomplete, "no controls were run".to_owned());
    }
    if wrong.is_empty() {
        let words = format!(
            "{others} controls got the verdicts that they deserve; {cheats} cheats were tried, none got anything"
        );
        return (Verdict::Pass, words);
    }
    (Verdict::Invalid, format!("{} of {} controls went wrong: {}", wrong.len(), found.len(), wrong.join("; ")))
}
