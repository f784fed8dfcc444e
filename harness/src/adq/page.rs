//! A page on which a person reads a run: every transcript turn by turn, beside the changes and the results of tests.

use super::endpoint::Reply;
use super::evidence::{RecordedAttempt, RecordedRun};
use super::grade::CaseResult;
use super::transcript::Line;
use assay_ledgers::VerdictRow;
use serde_json::Value;

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:80rem;padding:0 1rem}\
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f4f4f2;padding:.6rem;border-radius:4px;margin:.3rem 0;max-height:24rem;overflow:auto}\
.two{display:grid;grid-template-columns:minmax(0,3fr) minmax(0,2fr);gap:1.5rem}\
table{border-collapse:collapse}td,th{text-align:left;padding:.2rem .8rem .2rem 0;vertical-align:top;border-bottom:1px solid #ddd}\
.PASS{color:#17692f}.FAIL,.INVALID{color:#a11}.INCOMPLETE{color:#8a5a00}h3{margin:1rem 0 .2rem}";
/// Most characters of one text; the log has the rest.
const MAX_CHARS: usize = 6_000;

/// The page, complete in itself. `rows` are the run's rows.
pub fn page(run: &RecordedRun, rows: &[VerdictRow]) -> String {
    let plan = &run.plan;
    let mut html = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>ADQ run {0}</title><style>{STYLE}</style>\
         <h1>ADQ run {0}</h1><p>{1}, tier of {2} tokens, {3} attempt(s) at each task. {4}</p>{5}",
        escape(&plan.run),
        escape(&plan.subject),
        plan.tier,
        plan.attempts,
        if run.whole.is_some() { "" } else { "<b>This run ended before it was complete.</b>" },
        table(rows.iter().map(|row| [row.row.as_str(), row.verdict.as_str(), row.reason.as_str()]))
    );
    for attempt in &run.attempts {
        html += &section(attempt);
    }
    html + "</html>\n"
}

fn section(attempt: &RecordedAttempt) -> String {
    let kept = &attempt.kept;
    let verdict = attempt.record.verdicts.first();
    let (word, reason) = verdict.map_or(("", ""), |row| (row.verdict.as_str(), row.reason.as_str()));
    let turns: String = attempt.transcript.lines().iter().map(turn).collect();
    let results = kept.grade.as_ref().map_or("<p>Not graded.</p>".to_owned(), |grade| {
        format!("<h3>Public tests</h3>{}<h3>Hidden tests</h3>{}", cases(&grade.public), cases(&grade.hidden))
    });
    format!(
        "<h2>{}, attempt {} <span class=\"{word}\">{word}</span></h2><p>{}</p><p>Record {}</p>\
         <div class=\"two\"><div>{turns}</div><div><h3>Changes</h3><pre>{}</pre>{results}</div></div>",
        escape(&kept.task),
        kept.attempt,
        escape(reason),
        attempt.record.hash.short(),
        escape(&kept.diff)
    )
}

fn turn(line: &Line) -> String {
    match line {
        Line::Exchange { turn, status, request, response } => {
            let asked: Value = serde_json::from_str(request).unwrap_or_default();
            let asked = if *turn == 1 { format!("<h3>Told</h3>{}", told(&asked)) } else { String::new() };
            let said = match Reply::read(response) {
                Ok(reply) => {
                    let counts = format!("{:?} in, {:?} out", reply.prompt_tokens, reply.completion_tokens);
                    format!(
                        "<pre>{}</pre><p>{} ({})</p>",
                        cut(&reply.content),
                        escape(&reply.finish_reason),
                        escape(&counts)
                    )
                }
                Err(_) => format!("<p>status {status}</p><pre>{}</pre>", cut(response)),
            };
            format!("{asked}<h3>Turn {turn}</h3>{said}")
        }
        Line::Call { tool, arguments, result, .. } => {
            format!("<p><b>{}</b></p><pre>{}</pre><pre>{}</pre>", escape(tool), cut(arguments), cut(result))
        }
    }
}

fn told(request: &Value) -> String {
    let messages = request["messages"].as_array().into_iter().flatten();
    messages.map(|message| format!("<pre>{}</pre>", cut(message["content"].as_str().unwrap_or_default()))).collect()
}

fn cases(results: &[CaseResult]) -> String {
    table(results.iter().map(|case| [case.case.as_str(), if case.passed { "PASS" } else { "FAIL" }, case.saw.as_str()]))
}

fn table<'a>(rows: impl Iterator<Item = [&'a str; 3]>) -> String {
    let row = |[name, verdict, why]: [&str; 3]| {
        format!("<tr><td>{}</td><td class=\"{verdict}\">{verdict}</td><td>{}</td></tr>", escape(name), escape(why))
    };
    format!("<table>{}</table>", rows.map(row).collect::<String>())
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_CHARS) {
        None => escape(text),
        Some((end, _)) => format!("{}\n… ({} bytes in all)", escape(&text[..end]), text.len()),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
