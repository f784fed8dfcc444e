//! The HTTP leg: the same prompts through a server in a process of its own, timed at the client, each repetition beside one inside
//! this process.
//!
//! What lies between the two is the server's work: the request's JSON, the queue, text from tokens, events, two system calls
//! and two switches of thread a token. The server's own clock, read from its metrics, tells how much of it is the engine's.

use super::plan::{PlannedRow, SpeedPlan};
use super::summary::time_row;
use crate::config::ConfigArgs;
use crate::corpus::Prompt;
use crate::evidence::RunLog;
use crate::interrupt;
use crate::progress::Progress;
use crate::statistics::{Estimate, median, paired_ratio};
use anyhow::{Context, bail, ensure};
use assay_engine::Engine;
use assay_engine::checkpoint::tokenizer::Tokenizer;
use assay_engine::device::Device;
use assay_ledgers::{Measure, Run, SpeedRow, TimingOff, Verdict, VerdictRow};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Most that HTTP may add to the time of a token, as a ratio.
const MAX_TOKEN_RATIO: f64 = 1.05;
/// Most that HTTP may add to the time to the first token, in ms.
const MAX_FIRST_TOKEN_MS: f64 = 3.0;

/// One repetition, through HTTP and inside this process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HttpSample {
    /// From the request's first byte to the first token.
    pub first_token_ms: f64,
    /// From the request's first byte to the last token.
    pub last_token_ms: f64,
    /// Mean time between two tokens.
    pub inter_token_ms: f64,
    /// The server's own time to the first token.
    pub server_first_token_ms: f64,
    /// The server's own mean time between two tokens.
    pub server_inter_token_ms: f64,
    /// Prefill in this process.
    pub prefill_ms: f64,
    /// Decode in this process, a token.
    pub decode_ms: f64,
    /// Processor time of all of the server's threads for the request, a token; 0 where the system does not say.
    pub server_processor_ms: f64,
    /// Processor time of all of this process' threads for prefill and decode, a token; 0 where the system does not say.
    pub processor_ms: f64,
}

/// A length with its repetitions.
#[derive(Debug, Clone, Serialize)]
pub struct HttpMeasured {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens after the first.
    pub tokens: usize,
    /// Every repetition, in the order they ran.
    pub samples: Vec<HttpSample>,
}

/// Rows and judgements.
#[derive(Debug, Clone)]
pub struct HttpSummary {
    /// For the record.
    pub rows: Vec<SpeedRow>,
    /// A row each.
    pub verdicts: Vec<VerdictRow>,
    /// What explains the difference, for readers.
    pub lines: Vec<String>,
}

/// A server of the same config in a process of its own; it ends with this value.
struct Server {
    child: Child,
    url: String,
    agent: ureq::Agent,
    model: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Runs the decode rows of the plan through a server that runs what `config` names.
///
/// # Errors
/// When the server does not start or fails, its text is not the engine's, or the user interrupts.
pub fn run_http<D: Device>(
    _timing: &Run<TimingOff>,
    config: &ConfigArgs,
    engine: &mut Engine<D>,
    tokenizer: &Tokenizer,
    plan: &SpeedPlan,
    log: &mut RunLog,
) -> anyhow::Result<Vec<HttpMeasured>> {
    let server = Server::start(config)?;
    let rows: Vec<&PlannedRow> = plan.rows.iter().filter(|row| row.measure == Measure::Decode).collect();
    let runs: usize = rows.iter().map(|row| row.warm_up.len() + row.timed.len()).sum();
    let progress = Progress::start("timing HTTP", runs as u64, "runs");
    let mut measured: Vec<HttpMeasured> = Vec::new();
    for row in &rows {
        let samples = Vec::with_capacity(row.timed.len());
        let prompt_tokens = row.timed.first().map_or(0, |prompt| prompt.tokens.len());
        measured.push(HttpMeasured { prompt_tokens, tokens: row.tokens, samples });
        for prompt in &row.warm_up {
            pair(engine, &server, tokenizer, row, prompt, false)?;
            progress.advance(1);
        }
    }
    let rounds = rows.iter().map(|row| row.timed.len()).max().unwrap_or(0);
    for round in 0..rounds {
        for (row, measured) in rows.iter().zip(&mut measured) {
            let Some(prompt) = row.timed.get(round) else { continue };
            interrupt::check()?;
            // Now one first, now the other: a drift of the machine touches both alike.
            let sample = pair(engine, &server, tokenizer, row, prompt, round % 2 == 1)?;
            log.line(&json!({ "phase": "http", "tokens": row.tokens, "text": prompt.span, "sample": sample }));
            measured.samples.push(sample);
            progress.advance(1);
        }
    }
    Ok(measured)
}

/// One repetition on both sides.
fn pair<D: Device>(
    engine: &mut Engine<D>,
    server: &Server,
    tokenizer: &Tokenizer,
    row: &PlannedRow,
    prompt: &Prompt,
    http_first: bool,
) -> anyhow::Result<HttpSample> {
    let early = if http_first { Some(server.generate(&prompt.tokens, row.tokens)?) } else { None };
    engine.reset();
    let used = processor_ms("self");
    let start = Instant::now();
    let mut tokens = vec![engine.prefill(&prompt.tokens)?];
    let prefill_ms = ms(start);
    let start = Instant::now();
    while tokens.len() <= row.tokens {
        tokens.push(engine.decode(tokens[tokens.len() - 1])?);
    }
    let decode_ms = ms(start) / row.tokens as f64;
    let processor_ms = (processor_ms("self") - used) / row.tokens as f64;
    let streamed = match early {
        Some(streamed) => streamed,
        None => server.generate(&prompt.tokens, row.tokens)?,
    };
    ensure!(streamed.text == tokenizer.decode(&tokens)?, "the server's text is not the engine's");
    Ok(HttpSample { prefill_ms, decode_ms, processor_ms, ..streamed.sample })
}

/// Processor time that the threads of a process have had, by Linux's scheduler.
fn processor_ms(process: &str) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let had = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    had.sum::<f64>() / 1e6
}

fn ms(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

struct Streamed {
    text: String,
    sample: HttpSample,
}

impl Server {
    fn start(config: &ConfigArgs) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut command = Command::new(program);
        command.arg("serve").args(config.to_args()).args(["--port", "0", "--output", "json"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = child.context("starting the server")?;
        let stdout = child.stdout.take();
        // From here on the process ends with the value.
        let mut server =
            Server { child, url: String::new(), agent: ureq::Agent::new_with_defaults(), model: String::new() };
        let mut line = String::new();
        if let Some(stdout) = stdout {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let summary: Value = serde_json::from_str(&line).context("the server did not start")?;
        let (Some(address), Some(model)) = (summary["address"].as_str(), summary["model"].as_str()) else {
            bail!("the server did not say where it is: {summary}");
        };
        server.url = format!("http://{address}");
        server.model = model.to_owned();
        Ok(server)
    }

    /// The prompt, then `tokens` tokens after the first, greedily and whatever they are.
    fn generate(&self, prompt: &[u32], tokens: usize) -> anyhow::Result<Streamed> {
        let body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": tokens + 1, "temperature": 0, "ignore_eos": true,
            "cache_prompt": false, "stream": true,
        });
        let body = body.to_string();
        let (before, process) = (self.clocks()?, self.child.id().to_string());
        let used = processor_ms(&process);
        let start = Instant::now();
        let request = self.agent.post(format!("{}/v1/completions", self.url)).content_type("application/json");
        let mut response = request.send(body).context("asking the server")?;
        // The clock first, the JSON afterwards: the client shares the machine with what it measures.
        let mut arrived = Vec::with_capacity(tokens + 4);
        for line in BufReader::new(response.body_mut().as_reader()).lines() {
            arrived.push((ms(start), line?));
        }
        let (mut first, mut last, mut text, mut done) = (None, 0.0, String::new(), false);
        for (now, line) in &arrived {
            let Some(data) = line.strip_prefix("data: ") else { continue };
            if data == "[DONE]" {
                done = true;
                continue;
            }
            let (now, event) = (*now, serde_json::from_str::<Value>(data).context("reading the server's stream")?);
            let piece =
                event["choices"][0]["text"].as_str().context("the server's stream has an event without text")?;
            if !piece.is_empty() {
                first.get_or_insert(now);
                last = now;
                text += piece;
            }
        }
        ensure!(done, "the server's stream broke off");
        let first = first.context("the server answered without a token")?;
        let server_processor_ms = (processor_ms(&process) - used) / tokens as f64;
        let after = self.clocks()?;
        let sample = HttpSample {
            first_token_ms: first,
            last_token_ms: last,
            inter_token_ms: (last - first) / tokens as f64,
            server_first_token_ms: (after.0 - before.0) * 1e3,
            server_inter_token_ms: (after.1 - before.1) * 1e3 / tokens as f64,
            prefill_ms: 0.0,
            decode_ms: 0.0,
            server_processor_ms,
            processor_ms: 0.0,
        };
        Ok(Streamed { text, sample })
    }

    /// Seconds to first tokens and between tokens, by the server's clock, since it started.
    fn clocks(&self) -> anyhow::Result<(f64, f64)> {
        let text = self.agent.get(format!("{}/metrics", self.url)).call()?.body_mut().read_to_string()?;
        let value = |name: &str| -> anyhow::Result<f64> {
            let line =
                text.lines().find_map(|line| line.strip_prefix(name)).context("the server has no such metric")?;
            Ok(line.trim().parse()?)
        };
        Ok((value("assay_first_token_seconds_sum ")?, value("assay_between_tokens_seconds_sum ")?))
    }
}

/// Rows, and whether HTTP adds no more than it may.
///
/// # Errors
/// When a row has no sample or a sample is not a number.
pub fn summarise_http(measured: &[HttpMeasured]) -> anyhow::Result<HttpSummary> {
    let (mut rows, mut verdicts, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    for row in measured {
        let column = |value: fn(&HttpSample) -> f64| row.samples.iter().map(value).collect::<Vec<f64>>();
        let (prompt, tokens) = (row.prompt_tokens as u64, row.tokens as u64);
        rows.push(time_row(Measure::HttpFirstToken, prompt, column(|sample| sample.first_token_ms))?);
        rows.push(time_row(Measure::HttpInterToken, tokens, column(|sample| sample.inter_token_ms))?);
        rows.push(time_row(Measure::HttpLastToken, tokens + 1, column(|sample| sample.last_token_ms))?);
        let ratio = paired_ratio(&column(|sample| sample.inter_token_ms), &column(|sample| sample.decode_ms))?;
        let added = median(&column(|sample| sample.first_token_ms - sample.prefill_ms))?;
        verdicts.push(judged(
            format!("HTTP time per token, {tokens} tokens"),
            ratio,
            [1.0 / MAX_TOKEN_RATIO, MAX_TOKEN_RATIO],
            |value| format!("{:+.2} %", (value - 1.0) * 100.0),
        ));
        verdicts.push(judged(
            format!("HTTP time to first token, {tokens} tokens"),
            added,
            [-MAX_FIRST_TOKEN_MS, MAX_FIRST_TOKEN_MS],
            |value| format!("{value:+.3} ms"),
        ));
        let middle = |value: fn(&HttpSample) -> f64| anyhow::Ok(median(&column(value))?.value);
        lines.push(format!(
            "{tokens} tokens over HTTP: to the first token {:.3} ms at the client, {:.3} by the server's clock, {:.3} of prefill in this \
             process; between tokens {:.4} ms, {:.4}, {:.4}; processor time, prompt and answer, a token of the answer: {:.4} ms of the \
             server, {:.4} of this process",
            middle(|sample| sample.first_token_ms)?,
            middle(|sample| sample.server_first_token_ms)?,
            middle(|sample| sample.prefill_ms)?,
            middle(|sample| sample.inter_token_ms)?,
            middle(|sample| sample.server_inter_token_ms)?,
            middle(|sample| sample.decode_ms)?,
            middle(|sample| sample.server_processor_ms)?,
            middle(|sample| sample.processor_ms)?,
        ));
    }
    Ok(HttpSummary { rows, verdicts, lines })
}

/// PASS where the whole interval is below `limit`, FAIL where it is above, INCOMPLETE where the limit lies in it. A server cannot make
/// the engine faster: an interval that is wholly below `least` says that the two sides did not have the same machine.
fn judged(row: String, estimate: Estimate, [least, limit]: [f64; 2], words: impl Fn(f64) -> String) -> VerdictRow {
    let (verdict, interval) = match estimate.ci95 {
        Some(interval) if interval.high < least => {
            let interval = format!("{} to {}", words(interval.low), words(interval.high));
            (Verdict::Incomplete, format!("{interval}: faster than without, so the machine was not quiet"))
        }
        None => (Verdict::Incomplete, "too few repetitions for an interval".to_owned()),
        Some(interval) => {
            let verdict = match (interval.high < limit, interval.low > limit) {
                (true, _) => Verdict::Pass,
                (_, true) => Verdict::Fail,
                _ => Verdict::Incomplete,
            };
            (verdict, format!("{} to {}", words(interval.low), words(interval.high)))
        }
    };
    let reason = format!("HTTP adds {} ({interval}), the limit is {}", words(estimate.value), words(limit));
    VerdictRow { row, verdict, reason }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn measured(added_ms: f64, ratio: f64) -> HttpMeasured {
        let sample = |index: usize| {
            let noise = index as f64 / 1000.0;
            HttpSample {
                first_token_ms: 20.0 + added_ms + noise,
                last_token_ms: 200.0,
                inter_token_ms: 2.0 * ratio,
                server_first_token_ms: 20.0,
                server_inter_token_ms: 2.0,
                prefill_ms: 20.0,
                decode_ms: 2.0,
                server_processor_ms: 2.1,
                processor_ms: 2.0,
            }
        };
        HttpMeasured { prompt_tokens: 512, tokens: 50, samples: (0..6).map(sample).collect() }
    }

    #[test]
    fn what_http_adds_is_judged_by_its_interval() {
        let check = |added, ratio, expected: [Verdict; 2]| {
            let summary = summarise_http(&[measured(added, ratio)]).unwrap();
            assert_eq!(summary.verdicts.iter().map(|row| row.verdict).collect::<Vec<_>>(), expected);
            assert_eq!(
                summary.rows.iter().map(|row| row.measure.as_str()).collect::<Vec<_>>(),
                ["http_first_token", "http_inter_token", "http_last_token"]
            );
        };
        check(1.0, 1.02, [Verdict::Pass, Verdict::Pass]);
        check(2.999, 1.06, [Verdict::Fail, Verdict::Incomplete]);
        check(4.0, 1.02, [Verdict::Pass, Verdict::Fail]);
        check(-4.0, 0.9, [Verdict::Incomplete, Verdict::Incomplete]);
        let mut short = measured(1.0, 1.0);
        short.samples.truncate(3);
        assert_eq!(summarise_http(&[short]).unwrap().verdicts[0].verdict, Verdict::Incomplete);
    }
}
