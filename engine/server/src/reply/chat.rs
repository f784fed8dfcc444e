//! A chat's answer, whole and in chunks.

use assay_engine::checkpoint::tokenizer::Tokenizer;
use serde::Serialize;

use super::logprobs::ChatLogprobs;
use super::{Delta, Finish, Head, Usage};
use crate::error::ApiError;
use crate::tools::Call;

#[derive(Debug, Serialize)]
struct Body<'a, C: Serialize> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [C],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

#[derive(Debug, Serialize)]
struct Whole {
    index: usize,
    message: Message,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Finish,
}

#[derive(Debug, Serialize)]
struct Message {
    role: &'static str,
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
}

#[derive(Debug, Serialize)]
struct Chunk {
    index: usize,
    delta: DeltaBody,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<Finish>,
}

#[derive(Debug, Default, Serialize)]
struct DeltaBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
}

#[derive(Debug, Serialize)]
struct ToolCall {
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    function: Function,
}

#[derive(Debug, Serialize)]
struct Function {
    name: String,
    arguments: String,
}

/// How chats are written.
#[derive(Debug)]
pub(crate) struct Chats {
    pub(crate) head: Head,
    pub(crate) logprobs: bool,
    /// Calls so far.
    pub(crate) calls: usize,
    /// Whether the first chunk, which names the role, is out.
    pub(crate) opened: bool,
}

impl Chats {
    fn body<C: Serialize>(&self, object: &'static str, choices: &[C], usage: Option<Usage>) -> String {
        let Head { id, created, model } = &self.head;
        let body = Body { id, object, created: *created, model, choices, usage };
        serde_json::to_string(&body).unwrap_or_default()
    }

    fn logprobs(&self, delta: &Delta, tokenizer: &Tokenizer) -> Option<ChatLogprobs> {
        self.logprobs.then(|| ChatLogprobs::new(tokenizer, &delta.steps))
    }

    fn tool_calls(&mut self, calls: Vec<Call>, numbered: bool) -> Result<Vec<ToolCall>, ApiError> {
        let written = calls.into_iter().map(|Call { name, arguments }| {
            let index = numbered.then_some(self.calls);
            self.calls += 1;
            Ok(ToolCall { index, id: unique("call_")?, kind: "function", function: Function { name, arguments } })
        });
        written.collect()
    }

    /// A chunk's JSON.
    pub(crate) fn chunk(
        &mut self,
        index: usize,
        delta: Delta,
        finish: Option<Finish>,
        tokenizer: &Tokenizer,
    ) -> Result<String, ApiError> {
        let logprobs = self.logprobs(&delta, tokenizer);
        let role = (!std::mem::replace(&mut self.opened, true)).then_some("assistant");
        let delta = DeltaBody {
            role,
            // The first chunk has a content even where it is empty, as clients expect.
            content: (role.is_some() || !delta.text.is_empty()).then_some(delta.text),
            reasoning_content: (!delta.reasoning.is_empty()).then_some(delta.reasoning),
            tool_calls: self.tool_calls(delta.calls, true)?,
        };
        let chunk = Chunk { index, delta, logprobs, finish_reason: finish };
        Ok(self.body("chat.completion.chunk", &[chunk], None))
    }

    /// The last chunk's JSON: no choice, the usage.
    pub(crate) fn usage(&self, usage: Usage) -> String {
        self.body::<Chunk>("chat.completion.chunk", &[], Some(usage))
    }

    /// The whole answer's JSON.
    pub(crate) fn whole(
        &mut self,
        delta: Delta,
        finish: Finish,
        usage: Usage,
        tokenizer: &Tokenizer,
    ) -> Result<String, ApiError> {
        let logprobs = self.logprobs(&delta, tokenizer);
        let content = (!delta.text.is_empty() || delta.calls.is_empty()).then_some(delta.text);
        let message = Message {
            role: "assistant",
            content,
            reasoning_content: (!delta.reasoning.is_empty()).then_some(delta.reasoning),
            tool_calls: self.tool_calls(delta.calls, false)?,
        };
        let whole = Whole { index: 0, message, logprobs, finish_reason: finish };
        Ok(self.body("chat.completion", &[whole], Some(usage)))
    }
}

/// An id that nothing else has.
pub(crate) fn unique(prefix: &str) -> Result<String, ApiError> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(|error| ApiError::engine(format!("no random numbers: {error}")))?;
    Ok(bytes.iter().fold(prefix.to_owned(), |id, byte| id + &format!("{byte:02x}")))
}
