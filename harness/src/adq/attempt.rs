//! One attempt at one task: the loop of requests and tool calls, then the grade.

use super::endpoint::{Endpoint, EndpointError, Reply};
use super::grade::{Bench, Grade};
use super::patch::Patch;
use super::sampling::SamplingContract;
use super::task::Task;
use super::tools::{Workspace, schemas};
use super::transcript::Transcript;
use assay_ledgers::{TaskOutcome, Verdict};
use assay_sandbox::{Outcome, ProbeRow, SandboxError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::time::Instant;

/// What every agent is told first.
const SYSTEM: &str = "You are a software developer. Use the tools to change the repository as you are told, run the tests, \
and call finish when the work is done. An answer without a call of a tool ends the work.";

/// What an attempt is made with.
#[derive(Debug, Clone)]
pub struct Setting<'a> {
    /// Runs tests and grades.
    pub bench: &'a Bench,
    /// The model's name in requests.
    pub model: &'a str,
    /// How tokens are chosen.
    pub sampling: SamplingContract,
    /// What stands in front of the instruction.
    pub history: Option<&'a str>,
    /// Exact tokens that the first request must have, where that is claimed.
    pub first_request_tokens: Option<u64>,
    /// Most tokens of an answer, where the context leaves fewer than the task allows.
    pub completion_tokens: u32,
}

/// How an agent's part ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It said that it was done.
    Finished,
    /// It answered without a call.
    Stopped(String),
    /// It used all its turns.
    OutOfTurns(u32),
    /// It used all its time.
    OutOfTime(u64),
    /// The endpoint refused a later request, as too long for its context.
    Refused(String),
    /// The first request was not as long as claimed.
    WrongLength {
        /// Tokens that were claimed.
        claimed: u64,
        /// Tokens that the endpoint counted, where it does.
        found: Option<u64>,
    },
    /// The endpoint or the sandbox failed.
    Infrastructure(String),
    /// What was sent or done was not the contract.
    Sampling(String),
}

/// A finished attempt.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// Every request, response and call.
    pub transcript: Transcript,
    /// How the agent's part ended.
    pub ending: Ending,
    /// What it changed.
    pub patch: Patch,
    /// What it did that the task forbids.
    pub violations: Vec<String>,
    /// The grade; absent where the sandbox failed.
    pub grade: Option<Grade>,
    /// Calls of tools.
    pub tool_calls: u64,
    /// Tokens of the first request.
    pub first_prompt_tokens: Option<u64>,
    /// Tokens that went in, over all requests.
    pub prompt_tokens: u64,
    /// Tokens that came out, over all requests.
    pub completion_tokens: u64,
    /// Wall time, seconds.
    pub seconds: f64,
    /// What its test runs printed.
    pub test_runs: Vec<Outcome>,
    /// What the probe met that proved the isolation before anything ran; empty where it did not.
    pub probe: Vec<ProbeRow>,
}

/// The judgement of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    /// For the record.
    pub outcome: TaskOutcome,
    /// For the row.
    pub verdict: Verdict,
    /// Why.
    pub reason: String,
}

/// The agent's part, as it goes.
struct Loop<'a> {
    task: &'a Task,
    setting: &'a Setting<'a>,
    workspace: Workspace<'a>,
    messages: Vec<Value>,
    transcript: Transcript,
    tool_calls: u64,
    first_prompt_tokens: Option<u64>,
    prompt_tokens: u64,
    completion_tokens: u64,
}

/// The messages of a first request.
pub fn first_messages(task: &Task, history: Option<&str>) -> Vec<Value> {
    let instruction = task.file.instruction.trim();
    let user = match history {
        Some(history) => format!("{history}\n\n{instruction}"),
        None => instruction.to_owned(),
    };
    vec![json!({"role": "system", "content": SYSTEM}), json!({"role": "user", "content": user})]
}

/// A request with these messages.
pub fn request(task: &Task, setting: &Setting<'_>, messages: &[Value], max_tokens: u32) -> Value {
    let mut request = Map::new();
    request.insert("model".to_owned(), setting.model.into());
    request.insert("messages".to_owned(), messages.into());
    request.insert("tools".to_owned(), schemas(task).into());
    request.insert("tool_choice".to_owned(), "auto".into());
    request.insert("max_tokens".to_owned(), max_tokens.into());
    request.insert("stream".to_owned(), false.into());
    setting.sampling.apply(&mut request);
    request.into()
}

/// Makes an attempt and grades it.
///
/// # Errors
/// Ctrl-C alone; everything else is how the attempt ended.
pub fn attempt(
    task: &Task,
    setting: &Setting<'_>,
    endpoint: &mut dyn Endpoint,
) -> Result<Attempt, crate::exit::Interrupted> {
    let started = Instant::now();
    let mut run = Loop {
        task,
        setting,
        workspace: Workspace::new(task, setting.bench),
        messages: first_messages(task, setting.history),
        transcript: Transcript::default(),
        tool_calls: 0,
        first_prompt_tokens: None,
        prompt_tokens: 0,
        completion_tokens: 0,
    };
    let bench = setting.bench;
    let (mut ending, probe) = match bench.sandbox.probe(&bench.interpreter) {
        Ok(probe) => (run.until_the_end(endpoint, started)?, probe.rows),
        Err(error) => (Ending::Infrastructure(error.to_string()), Vec::new()),
    };
    let patch = Patch::between(&task.repo, &run.workspace.tree);
    let mut violations = run.workspace.violations;
    violations.extend(patch.violations(task));
    let grade = if probe.is_empty() { Ok(None) } else { graded(bench, task, &patch).map(Some) };
    let grade = grade.unwrap_or_else(|reason| {
        ending = Ending::Infrastructure(reason);
        None
    });
    Ok(Attempt {
        transcript: run.transcript,
        ending,
        patch,
        violations,
        grade,
        tool_calls: run.tool_calls,
        first_prompt_tokens: run.first_prompt_tokens,
        prompt_tokens: run.prompt_tokens,
        completion_tokens: run.completion_tokens,
        seconds: started.elapsed().as_secs_f64(),
        test_runs: run.workspace.test_runs,
        probe,
    })
}

fn graded(bench: &Bench, task: &Task, patch: &Patch) -> Result<Grade, String> {
    let tree = patch.apply(task).map_err(|error| error.to_string())?;
    bench.grade(task, &tree).map_err(|error| error.to_string())
}

impl Loop<'_> {
    fn until_the_end(
        &mut self,
        endpoint: &mut dyn Endpoint,
        started: Instant,
    ) -> Result<Ending, crate::exit::Interrupted> {
        let limits = self.task.file.limits;
        for turn in 1..=limits.turns {
            crate::interrupt::check()?;
            let left = limits.seconds as f64 - started.elapsed().as_secs_f64();
            if left <= 0.0 {
                return Ok(Ending::OutOfTime(limits.seconds));
            }
            let tokens = limits.completion_tokens.min(self.setting.completion_tokens);
            let request = request(self.task, self.setting, &self.messages, tokens);
            let exchange = match endpoint.complete(&request, left) {
                Ok(exchange) => exchange,
                Err(EndpointError::Interrupted(interrupted)) => return Err(interrupted),
                Err(EndpointError::TimedOut(_)) => return Ok(Ending::OutOfTime(limits.seconds)),
                Err(error) => return Ok(Ending::Infrastructure(error.to_string())),
            };
            self.transcript.exchange(turn, &exchange);
            let contract = &self.setting.sampling;
            if let Err(reason) =
                contract.check_sent(&exchange.request).and_then(|()| contract.check_reported(&exchange.response))
            {
                return Ok(Ending::Sampling(reason));
            }
            if exchange.status != 200 {
                return Ok(refusal(turn, exchange.status, &exchange.response));
            }
            let reply = match Reply::read(&exchange.response) {
                Ok(reply) => reply,
                Err(reason) => return Ok(Ending::Infrastructure(format!("the endpoint's answer is {reason}"))),
            };
            if let Some(ending) = self.take(turn, reply) {
                return Ok(ending);
            }
        }
        Ok(Ending::OutOfTurns(limits.turns))
    }

    /// Takes an answer: counts, calls, and what the calls gave.
    fn take(&mut self, turn: u32, reply: Reply) -> Option<Ending> {
        self.prompt_tokens += reply.prompt_tokens.unwrap_or(0);
        self.completion_tokens += reply.completion_tokens.unwrap_or(0);
        if turn == 1 {
            self.first_prompt_tokens = reply.prompt_tokens;
            if let Some(claimed) = self.setting.first_request_tokens
                && reply.prompt_tokens != Some(claimed)
            {
                return Some(Ending::WrongLength { claimed, found: reply.prompt_tokens });
            }
        }
        self.messages.push(reply.message);
        if reply.calls.is_empty() {
            return Some(Ending::Stopped(reply.content));
        }
        let mut finished = false;
        for call in &reply.calls {
            self.tool_calls += 1;
            let result = match self.workspace.call(&call.name, &call.arguments) {
                Ok(result) => result,
                Err(error) => return Some(Ending::Infrastructure(dead(&error))),
            };
            self.transcript.call(turn, call, &result);
            self.messages.push(json!({"role": "tool", "tool_call_id": call.id, "content": result.text}));
            finished |= result.finished;
        }
        finished.then_some(Ending::Finished)
    }
}

fn dead(error: &SandboxError) -> String {
    format!("the sandbox failed: {error}")
}

/// What a status that is not 200 says. A conversation that outgrew the context is the agent's; anything else is not.
fn refusal(turn: u32, status: u16, response: &str) -> Ending {
    let said: String = response.chars().take(300).collect();
    let words = format!("status {status}: {said}");
    let too_long = (400..500).contains(&status) && response.to_lowercase().contains("context");
    if turn > 1 && too_long { Ending::Refused(words) } else { Ending::Infrastructure(words) }
}

impl Attempt {
    /// Judges it. Passing takes an agent that came to an end by itself, no violation, and every case.
    pub fn judge(&self) -> Judged {
        judge(&self.ending, &self.patch, &self.violations, self.grade.as_ref())
    }
}

/// As [`Attempt::judge`], from the parts that a record keeps.
pub fn judge(ending: &Ending, patch: &Patch, violations: &[String], grade: Option<&Grade>) -> Judged {
    let judged = |outcome, verdict, reason| Judged { outcome, verdict, reason };
    let infrastructure = |verdict, reason| judged(TaskOutcome::Infrastructure, verdict, reason);
    match ending {
        Ending::Sampling(reason) => return infrastructure(Verdict::Invalid, format!("sampling: {reason}")),
        Ending::Infrastructure(reason) => return infrastructure(Verdict::Incomplete, reason.clone()),
        Ending::WrongLength { claimed, found } => {
            let found = found.map_or("no count".to_owned(), |found| found.to_string());
            let reason = format!("the first request should have {claimed} tokens, the endpoint counts {found}");
            return infrastructure(Verdict::Incomplete, reason);
        }
        _ => {}
    }
    let Some(grade) = grade else { return infrastructure(Verdict::Incomplete, "it was not graded".to_owned()) };
    if !violations.is_empty() {
        return judged(TaskOutcome::Forbidden, Verdict::Fail, violations.join("; "));
    }
    let mut reasons = Vec::new();
    match ending {
        Ending::Stopped(said) if patch.is_empty() => {
            reasons.push(format!("stopped without acting: {:?}", said.chars().take(120).collect::<String>()));
        }
        Ending::OutOfTurns(turns) => reasons.push(format!("did not come to an end in {turns} turns")),
        Ending::OutOfTime(seconds) => reasons.push(format!("did not come to an end in {seconds} s")),
        Ending::Refused(words) => reasons.push(format!("the conversation outgrew the context: {words}")),
        _ => {}
    }
    if patch.is_empty() {
        reasons.push("changed nothing".to_owned());
    }
    for (name, cases) in [("public", &grade.public), ("hidden", &grade.hidden)] {
        let failed = Grade::failed(cases);
        if !failed.is_empty() {
            reasons.push(format!("{} of {} {name} tests fail: {}", failed.len(), cases.len(), failed.join("; ")));
        }
    }
    if reasons.is_empty() {
        return judged(TaskOutcome::Solved, Verdict::Pass, "every public and hidden test passes".to_owned());
    }
    judged(TaskOutcome::Unsolved, Verdict::Fail, reasons.join("; "))
}
