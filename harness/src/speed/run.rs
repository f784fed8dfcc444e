//! Warm-ups, then timed repetitions in rounds over all rows, so that a drift of the machine touches every row alike.

use super::plan::{PlannedRow, SpeedPlan};
use crate::corpus::Prompt;
use crate::evidence::RunLog;
use crate::interrupt;
use crate::progress::Progress;
use crate::runtime::Watch;
use anyhow::ensure;
use assay_engine::Engine;
use assay_engine::device::Device;
use assay_engine::engine::ColdPath;
use assay_engine::residency::ResidencyCounters;
use assay_ledgers::{Measure, Run, TimingOff};
use serde::Serialize;
use std::time::Instant;

/// One timed repetition.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sample {
    /// Wall time of the timed tokens.
    pub seconds: f64,
    /// Experts resident when it ended.
    pub resident: usize,
    /// Routes in decode that found the expert resident.
    pub hits: u64,
    /// Routes in decode that did not.
    pub misses: u64,
    /// Bytes of experts that crossed the link.
    pub link_bytes: u64,
    /// Experts that the host computed where they lay.
    pub by_host: u64,
    /// Time that the declared link takes for them.
    pub modelled_link_s: f64,
}

/// A row with its repetitions.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// What was measured.
    pub measure: Measure,
    /// Tokens timed in each repetition.
    pub tokens: usize,
    /// Tokens of the prompt before them, in decode.
    pub depth: Option<usize>,
    /// Every repetition, in the order they ran.
    pub samples: Vec<Sample>,
}

/// Runs the plan; `watch` looks up between repetitions. The token says that no timing instrumentation is in the engine.
///
/// # Errors
/// When the engine fails, a count of tokens is not the planned one, or the user interrupts.
pub fn run<D: Device>(
    _timing: &Run<TimingOff>,
    engine: &mut Engine<D>,
    plan: &SpeedPlan,
    watch: &mut Watch,
    log: &mut RunLog,
) -> anyhow::Result<Vec<Measured>> {
    ensure!(!engine.is_traced(), "a trace is being written: a traced run gives no speed row");
    let progress = Progress::start("timing", plan.runs() as u64, "runs");
    for row in &plan.rows {
        for prompt in &row.warm_up {
            interrupt::check()?;
            log.line(&entry("warm-up", row, prompt, &time(engine, row, prompt)?));
            progress.advance(1);
        }
    }
    let mut measured: Vec<Measured> = plan
        .rows
        .iter()
        .map(|row| {
            let samples = Vec::with_capacity(row.timed.len());
            Measured { measure: row.measure, tokens: row.tokens, depth: row.depth, samples }
        })
        .collect();
    let rounds = plan.rows.iter().map(|row| row.timed.len()).max().unwrap_or(0);
    for round in 0..rounds {
        for (row, measured) in plan.rows.iter().zip(&mut measured) {
            let Some(prompt) = row.timed.get(round) else { continue };
            interrupt::check()?;
            let sample = time(engine, row, prompt)?;
            watch.look();
            log.line(&entry("timed", row, prompt, &sample));
            measured.samples.push(sample);
            progress.advance(1);
        }
    }
    Ok(measured)
}

fn entry(phase: &str, row: &PlannedRow, prompt: &Prompt, sample: &Sample) -> serde_json::Value {
    serde_json::json!({
        "phase": phase, "measure": row.measure, "tokens": row.tokens, "prompt_tokens": prompt.tokens.len(),
        "text": prompt.span, "sample": sample,
    })
}

fn time<D: Device>(engine: &mut Engine<D>, row: &PlannedRow, prompt: &Prompt) -> anyhow::Result<Sample> {
    engine.reset();
    engine.take_counters();
    let prefilled = match row.measure {
        Measure::Decode => Some(engine.prefill(&prompt.tokens)?),
        _ => None,
    };
    let link = engine.link();
    let start = Instant::now();
    let timed = match prefilled {
        None => {
            engine.prefill(&prompt.tokens)?;
            prompt.tokens.len()
        }
        Some(mut token) => {
            // An end-of-sequence token does not end the run: every repetition times the same number of tokens.
            for left in (0..row.tokens).rev() {
                token = engine.decode_ahead(token, left > 0)?;
            }
            engine.position() - prompt.tokens.len()
        }
    };
    let seconds = start.elapsed().as_secs_f64();
    ensure!(timed == row.tokens, "{timed} tokens were timed, expected {}", row.tokens);
    let after = engine.link();
    let ResidencyCounters { hits, misses, cold_bytes, .. } = engine.take_counters();
    // What kernels fetch out of mapped memory themselves is no copy, and the device does not count it.
    let by_host = after.by_host - link.by_host;
    let fetched = match engine.cold_path() {
        ColdPath::CopyEngine => 0,
        ColdPath::Multiprocessors | ColdPath::WithHost => {
            cold_bytes.saturating_sub(by_host * engine.plan().slot_bytes())
        }
    };
    Ok(Sample {
        seconds,
        resident: engine.residents().resident,
        hits,
        misses,
        link_bytes: after.bytes - link.bytes + fetched,
        by_host,
        modelled_link_s: after.modelled_s - link.modelled_s,
    })
}
