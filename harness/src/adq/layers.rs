//! The layers beside the tasks, for a model: fidelity, behaviour, memory, operations. Each gives a row and what it rests on.

use super::behaviour::{Answered, Cases};
use super::http::HttpEndpoint;
use super::operations::Operation;
use super::rows::{BEHAVIOUR, FIDELITY, MEMORY, row};
use crate::config::ConfigArgs;
use crate::repository::Repository;
use crate::runtime::Runtime;
use crate::speed::{low_water, margin_kept};
use anyhow::Context;
use assay_engine::checkpoint::tokenizer::Tokenizer;
use assay_ledgers::{Verdict, VerdictRow};
use serde_json::{Value, json};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// The longest detailed comparison that the standard track has, in tokens.
const STANDARD_TOKENS: u64 = 131_072;
/// Tokens that are decoded to see decode's memory.
const DECODED_TOKENS: usize = 16;
const SECONDS: f64 = 900.0;

/// Replays the witness of a config's checkpoint in a process of its own.
///
/// # Errors
/// When the process cannot be started.
pub fn fidelity(config: &ConfigArgs, repository: &Repository) -> anyhow::Result<(VerdictRow, Value)> {
    let output = Command::new("/proc/self/exe")
        .arg0("assay")
        .arg("reference-test")
        .args(config.to_args())
        .args(["--output", "json"])
        .stdin(Stdio::null())
        .output()
        .context("cannot start the replay of the witness")?;
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let verdicts: Vec<VerdictRow> = serde_json::from_value(answer["verdicts"].clone()).unwrap_or_default();
    if verdicts.is_empty() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().next_back().unwrap_or("it said nothing");
        // A record says nothing of where the repository lies.
        let last = last.replace(&format!("{}/", repository.root().display()), "");
        return Ok((row(FIDELITY, Verdict::Incomplete, format!("not run: {last}")), answer));
    }
    let lengths: Vec<u64> = answer["prompts"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|prompt| prompt["input_tokens"].as_u64())
        .collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let count = |verdict| verdicts.iter().filter(|row| row.verdict == verdict).count();
    let bad = verdicts.iter().find(|row| matches!(row.verdict, Verdict::Fail | Verdict::Invalid));
    let compared = format!("{} prompts of up to {longest} tokens: {} rows pass", lengths.len(), count(Verdict::Pass));
    let found = match bad {
        Some(bad) => row(
            FIDELITY,
            bad.verdict,
            format!("{compared}, {} fail; {}: {}", count(Verdict::Fail), bad.row, bad.reason),
        ),
        None if count(Verdict::Incomplete) > 0 || longest < STANDARD_TOKENS => {
            let missing = format!("{compared}; not run: lengths above {longest} up to {STANDARD_TOKENS}");
            row(FIDELITY, Verdict::Incomplete, missing)
        }
        None => row(FIDELITY, Verdict::Pass, compared),
    };
    Ok((found, answer))
}

/// Asks the frozen cases of a model and, where there is one, of another runtime.
pub fn behaviour(
    cases: &Cases,
    subject: (&HttpEndpoint, &str),
    reference: Option<(&HttpEndpoint, &str)>,
    longest: usize,
) -> (VerdictRow, Vec<Answered>, Vec<Answered>) {
    let (fits, beyond): (Vec<usize>, Vec<usize>) = cases.lengths.iter().partition(|&&tokens| tokens <= longest);
    let ask = |(endpoint, model): (&HttpEndpoint, &str)| -> Vec<Answered> {
        fits.iter().map(|&tokens| cases.ask(endpoint, model, tokens, SECONDS)).collect()
    };
    let own = ask(subject);
    let other = reference.map(ask).unwrap_or_default();
    let words = |answered: &[Answered]| {
        let word = |one: &Answered| {
            let what = match (&one.answer, one.right, one.isolated) {
                (Err(reason), ..) => reason.as_str(),
                (_, true, true) => "right",
                (_, false, true) => "wrong",
                (.., false) => "not isolated",
            };
            format!("{}: {what}", one.tokens)
        };
        answered.iter().map(word).collect::<Vec<_>>().join(", ")
    };
    let good = |one: &Answered| one.right && one.isolated;
    let not_run = if beyond.is_empty() { String::new() } else { format!("; not run: {beyond:?}") };
    let reason = match other.is_empty() {
        true => format!("answers by length: {}{not_run}; no other runtime was asked", words(&own)),
        false => format!("answers by length: {}; the other runtime: {}{not_run}", words(&own), words(&other)),
    };
    let verdict = if own.iter().any(|one| one.answer.is_ok() && !good(one)) {
        Verdict::Fail
    } else if own.is_empty() || own.iter().any(|one| one.answer.is_err()) || other.is_empty() || !beyond.is_empty() {
        Verdict::Incomplete
    } else {
        Verdict::Pass
    };
    (row(BEHAVIOUR, verdict, reason), own, other)
}

/// Runs a prompt of the tier in this process and looks at free memory in every phase. No other engine may be loaded.
///
/// # Errors
/// When the engine cannot be started or fails.
pub fn memory(config: &ConfigArgs, repository: &Repository, tokens: usize) -> anyhow::Result<(VerdictRow, Value)> {
    let loaded = config.load(repository)?;
    let (margin, context) = (loaded.config.memory.margin.0, loaded.config.context.tokens);
    let mut runtime = Runtime::start(loaded, repository)?;
    let vocabulary = Tokenizer::open(runtime.opened.folder.checkpoint.dir())?.largest_id().max(1);
    let longest = runtime.engine.calibration().map_or(0, |calibration| calibration.max_prompt_tokens);
    let length = tokens.min(longest).min(context.saturating_sub(DECODED_TOKENS)).max(1);
    let prompt: Vec<u32> =
        (0..length as u32).map(|place| 16 % vocabulary + place % 64).map(|id| id % vocabulary).collect();
    runtime.engine.reset();
    let mut token = runtime.engine.prefill(&prompt)?;
    for _ in 0..DECODED_TOKENS {
        token = runtime.engine.decode(token)?;
    }
    let marks = low_water(&runtime.engine.low_water());
    let judged = margin_kept(&marks, margin);
    let reason = format!("prompt of {length} tokens, {DECODED_TOKENS} decoded: {}", judged.reason);
    let verdict = if length < tokens && judged.verdict == Verdict::Pass { Verdict::Incomplete } else { judged.verdict };
    Ok((
        row(MEMORY, verdict, reason),
        json!({"low_water_bytes": marks, "margin_bytes": margin, "prompt_tokens": length}),
    ))
}

/// Operations as a verdict, to be joined with the controls.
pub fn operations(found: &[Operation]) -> (Verdict, String) {
    let failed: Vec<String> =
        found.iter().filter(|one| !one.held).map(|one| format!("{}: {}", one.operation, one.saw)).collect();
    match failed.is_empty() {
        true => (Verdict::Pass, format!("{} operations went as they must", found.len())),
        false => (Verdict::Fail, failed.join("; ")),
    }
}
