//! What `assay adq run` and `report` print.

use crate::adq::attempt::Judged;
use crate::adq::evidence::KeptAttempt;
use crate::adq::grade::{CaseResult, Grade};
use crate::output::{Answer, Table};
use assay_ledgers::{Body, Record, Sha256, Verdict, VerdictRow};
use serde_json::{Value, json};

/// A set of cases as a verdict.
fn set(grade: Option<&Grade>, of: fn(&Grade) -> &Vec<CaseResult>) -> (Verdict, usize, usize) {
    let Some(cases) = grade.map(of) else { return (Verdict::Incomplete, 0, 0) };
    let passed = cases.iter().filter(|case| case.passed).count();
    (if passed == cases.len() { Verdict::Pass } else { Verdict::Fail }, passed, cases.len())
}

/// An attempt for machines.
pub(super) fn attempt_json(
    kept: &KeptAttempt,
    judged: &Judged,
    evidence: Sha256,
    tool_calls: u64,
    completion_tokens: u64,
) -> Value {
    let (public, public_passed, public_total) = set(kept.grade.as_ref(), |grade| &grade.public);
    let (hidden, hidden_passed, hidden_total) = set(kept.grade.as_ref(), |grade| &grade.hidden);
    json!({
        "task": kept.task, "kind": kept.kind, "attempt": kept.attempt, "verdict": judged.verdict, "public": public, "hidden": hidden,
        "reason": judged.reason, "public_passed": public_passed, "public_total": public_total,
        "hidden_passed": hidden_passed, "hidden_total": hidden_total, "ending": kept.ending,
        "violations": kept.violations, "history_tokens": kept.history_tokens,
        "first_prompt_tokens": kept.first_prompt_tokens, "tool_calls": tool_calls,
        "completion_tokens": completion_tokens, "evidence": evidence,
    })
}

/// A recorded attempt for machines.
pub(super) fn task_json(kept: &KeptAttempt, record: &Record) -> Value {
    let Body::Task(body) = &record.body else { return Value::Null };
    let Some(row) = body.tasks.first().and_then(|row| row.attempts.first()) else { return Value::Null };
    let verdict = record.verdicts.first().map_or(Verdict::Incomplete, |row| row.verdict);
    let judged = Judged { outcome: row.outcome, verdict, reason: row.reason.clone() };
    attempt_json(kept, &judged, record.hash, row.tool_calls, row.completion_tokens)
}

/// A run for machines and readers.
pub(super) fn answer(summary: &Value, rows: &[VerdictRow], evidence: Option<Sha256>) -> anyhow::Result<Answer> {
    let mut json = summary.clone();
    json["evidence"] = serde_json::to_value(evidence)?;
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let title = format!("run {}: {}", text(&summary["run"]), text(&summary["subject"]));
    let mut tasks = Table::new(title, &["task", "verdict", "public", "hidden", "why"]);
    for task in summary["tasks"].as_array().into_iter().flatten() {
        tasks.row(["task", "verdict", "public", "hidden", "reason"].map(|name| text(&task[name])));
    }
    let mut table = Table::new("rows", &["row", "verdict", "why"]);
    for VerdictRow { row, verdict, reason } in rows {
        table.row([row, verdict.as_str(), reason]);
    }
    let mut answer = Answer::new(&json)?.table(tasks).table(table);
    for (name, share) in summary["shares"].as_object().into_iter().flatten() {
        answer = answer.line(format!("{name}: {} of tasks, 95 % interval {}", share["value"], share["ci95"]));
    }
    Ok(answer.line(
        evidence.map_or("no last record: the run ended early".to_owned(), |hash| format!("record {}", hash.short())),
    ))
}
