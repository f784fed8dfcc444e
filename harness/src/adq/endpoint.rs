//! What answers an agent's requests, in the form of OpenAI's chat completions, and how an answer is read.

use serde::Deserialize;
use serde_json::Value;

/// One request and its response, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// As it was sent.
    pub request: String,
    /// As it came.
    pub response: String,
    /// The HTTP status; 200 of what is no server.
    pub status: u16,
}

/// An endpoint that could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// No answer came.
    #[error("the endpoint did not answer: {0}")]
    Unreachable(String),
    /// It did not answer within the attempt's time.
    #[error("the endpoint did not answer in time: {0}")]
    TimedOut(String),
    /// Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] crate::exit::Interrupted),
}

/// Answers requests.
pub trait Endpoint: Send {
    /// Sends a request of at most `seconds`.
    ///
    /// # Errors
    /// When no answer comes. An answer that refuses is an [`Exchange`] with its status.
    fn complete(&mut self, request: &Value, seconds: f64) -> Result<Exchange, EndpointError>;
}

/// An answer, read.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// The message, as the next request repeats it.
    pub message: Value,
    /// Its text.
    pub content: String,
    /// Its calls.
    pub calls: Vec<Call>,
    /// Why it ended.
    pub finish_reason: String,
    /// Tokens that went in, where the endpoint says.
    pub prompt_tokens: Option<u64>,
    /// Tokens that came out, where the endpoint says.
    pub completion_tokens: Option<u64>,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// To be repeated with the result.
    pub id: String,
    /// The tool.
    pub name: String,
    /// JSON, as the model wrote it.
    pub arguments: String,
}

#[derive(Deserialize)]
struct Body {
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice {
    message: Value,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: Option<u64>,
    #[serde(default)]
    completion_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<ToolCall>>,
}

#[derive(Deserialize)]
struct ToolCall {
    #[serde(default)]
    id: String,
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    #[serde(default)]
    arguments: String,
}

impl Reply {
    /// Reads a response.
    ///
    /// # Errors
    /// What it lacks, in words.
    pub fn read(response: &str) -> Result<Self, String> {
        let body: Body = serde_json::from_str(response).map_err(|error| format!("no chat completion: {error}"))?;
        let choice = body.choices.into_iter().next().ok_or("no chat completion: it has no choices")?;
        let message: Message =
            serde_json::from_value(choice.message.clone()).map_err(|error| format!("no message: {error}"))?;
        let usage = body.usage.unwrap_or(Usage { prompt_tokens: None, completion_tokens: None });
        let calls = message.tool_calls.unwrap_or_default().into_iter();
        Ok(Reply {
            content: message.content.unwrap_or_default(),
            calls: calls
                .map(|call| Call { id: call.id, name: call.function.name, arguments: call.function.arguments })
                .collect(),
            finish_reason: choice.finish_reason.unwrap_or_default(),
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            message: choice.message,
        })
    }
}
