//! What was said and done, whole, one JSON object a line.

use super::endpoint::{Call, Exchange, Reply};
use super::tools::ToolResult;
use assay_ledgers::Sha256;
use serde::{Deserialize, Serialize};

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Line {
    /// A request and its response, as they went over the wire.
    Exchange {
        /// From 1.
        turn: u32,
        /// HTTP status.
        status: u16,
        /// Bytes of the body.
        request: String,
        /// Bytes of the body.
        response: String,
    },
    /// A call of a tool.
    Call {
        /// Of the answer that made it.
        turn: u32,
        /// The tool.
        tool: String,
        /// As the model wrote them.
        arguments: String,
        /// What the model was told.
        result: String,
    },
}

/// The lines of one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transcript {
    lines: Vec<Line>,
}

impl Transcript {
    pub(super) fn exchange(&mut self, turn: u32, exchange: &Exchange) {
        let Exchange { request, response, status } = exchange.clone();
        self.lines.push(Line::Exchange { turn, status, request, response });
    }

    pub(super) fn call(&mut self, turn: u32, call: &Call, result: &ToolResult) {
        let (tool, arguments, result) = (call.name.clone(), call.arguments.clone(), result.text.clone());
        self.lines.push(Line::Call { turn, tool, arguments, result });
    }

    /// All lines.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// As it is kept.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for line in &self.lines {
            // A line holds text and numbers alone: it can always be written.
            bytes.extend(serde_json::to_vec(line).unwrap_or_default());
            bytes.push(b'\n');
        }
        bytes
    }

    /// Reads what [`Transcript::bytes`] wrote.
    ///
    /// # Errors
    /// The line that cannot be read.
    pub fn read(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        let lines = bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        Ok(Self { lines: lines.map(serde_json::from_slice).collect::<Result<_, _>>()? })
    }

    /// What must be the same whenever the same is run: of each turn the request, the message, why it ended, and the counts.
    /// Names and times that a server makes up for each response are left out.
    pub fn essence(&self) -> Vec<String> {
        let mut essence = Vec::new();
        for line in &self.lines {
            essence.push(match line {
                Line::Exchange { turn, status, request, response } => {
                    let answer = match Reply::read(response) {
                        Ok(reply) => {
                            let calls: Vec<_> = reply.calls.iter().map(|call| (&call.name, &call.arguments)).collect();
                            format!(
                                "{:?} {calls:?} {} {:?} {:?}",
                                reply.content, reply.finish_reason, reply.prompt_tokens, reply.completion_tokens
                            )
                        }
                        Err(_) => response.clone(),
                    };
                    format!("{turn} {status} {} {answer}", Sha256::of(without_ids(request).as_bytes()))
                }
                Line::Call { turn, tool, arguments, result } => {
                    format!("{turn} {tool} {arguments} {}", without_times(result))
                }
            });
        }
        essence
    }
}

/// A request without the ids that a server drew for calls, and without the name that it goes by.
fn without_ids(request: &str) -> String {
    let Ok(mut value) = serde_json::from_str::<serde_json::Value>(request) else { return request.to_owned() };
    if let Some(request) = value.as_object_mut() {
        request.remove("model");
    }
    if let Some(messages) = value.get_mut("messages").and_then(serde_json::Value::as_array_mut) {
        for message in messages {
            if let Some(message) = message.as_object_mut() {
                message.remove("tool_call_id");
                let calls = message.get_mut("tool_calls").and_then(serde_json::Value::as_array_mut);
                for call in calls.into_iter().flatten().filter_map(serde_json::Value::as_object_mut) {
                    call.remove("id");
                }
                if message.get("role").and_then(serde_json::Value::as_str) == Some("tool")
                    && let Some(content) = message.get_mut("content")
                {
                    *content = without_times(content.as_str().unwrap_or_default()).into();
                }
            }
        }
    }
    value.to_string()
}

/// A test run without how long it took.
fn without_times(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("Ran ")).collect::<Vec<_>>().join("\n")
}
