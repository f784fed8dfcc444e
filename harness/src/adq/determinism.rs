//! Whether the same request gets the same answer: from a cold process, a warm one, after another conversation, and from a
//! fresh process. Under the greedy contract all of them must be equal to the last byte of text and count.

use super::attempt::{Setting, first_messages, request};
use super::endpoint::{Endpoint, Reply};
use super::http::HttpEndpoint;
use super::task::Task;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Tokens of each answer: enough for a difference to show, few enough to be asked often.
const COMPLETION_TOKENS: u32 = 48;
const SECONDS: f64 = 600.0;

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    /// The lifecycle, such as `cold first`.
    pub run: String,
    /// Text, calls, reason and counts; or what went wrong.
    pub answer: Result<String, String>,
    /// The response, whole.
    pub response: String,
}

/// A finished control.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Determinism {
    /// The request, whole.
    pub request: String,
    /// The first is what the others are compared with.
    pub runs: Vec<Answered>,
}

/// A request that a task would begin with, and another one to come between.
pub fn requests(tasks: &[Task], setting: &Setting<'_>) -> Option<(Value, Value)> {
    let of = |task: &Task| request(task, setting, &first_messages(task, None), COMPLETION_TOKENS);
    Some((of(tasks.first()?), of(tasks.last()?)))
}

/// Asks a server that has answered nothing yet: cold first, warmed, another conversation, replay.
pub fn lifecycle(endpoint: &HttpEndpoint, asked: &Value, between: &Value, cold: bool) -> Vec<Answered> {
    let mut endpoint = endpoint.clone();
    let mut runs = vec![ask(&mut endpoint, if cold { "cold first" } else { "first" }, asked)];
    runs.push(ask(&mut endpoint, "warmed", asked));
    let _ = ask(&mut endpoint, "between", between);
    runs.push(ask(&mut endpoint, "replay", asked));
    runs
}

/// One answer under a name.
pub fn ask(endpoint: &mut dyn Endpoint, run: &str, request: &Value) -> Answered {
    let run = run.to_owned();
    match endpoint.complete(request, SECONDS) {
        Err(error) => Answered { run, answer: Err(error.to_string()), response: String::new() },
        Ok(exchange) if exchange.status != 200 => {
            let said: String = exchange.response.chars().take(200).collect();
            Answered { run, answer: Err(format!("status {}: {said}", exchange.status)), response: exchange.response }
        }
        Ok(exchange) => {
            let essence = Reply::read(&exchange.response).map(|reply| {
                let calls: Vec<_> = reply.calls.iter().map(|call| (&call.name, &call.arguments)).collect();
                let counts = (reply.prompt_tokens, reply.completion_tokens);
                format!("{:?} {calls:?} {} {counts:?}", reply.content, reply.finish_reason)
            });
            Answered { run, answer: essence, response: exchange.response }
        }
    }
}

impl Determinism {
    /// Names of the runs that differ from the first; what went wrong in the first that could not be had.
    ///
    /// # Errors
    /// The first run that has no answer.
    pub fn differing(&self) -> Result<Vec<String>, String> {
        for run in &self.runs {
            if let Err(reason) = &run.answer {
                return Err(format!("{}: {reason}", run.run));
            }
        }
        let first = self.runs.first().map(|run| &run.answer);
        Ok(self.runs.iter().filter(|run| Some(&run.answer) != first).map(|run| run.run.clone()).collect())
    }
}
