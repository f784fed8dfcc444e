//! `/v1/completions`

use serde::Deserialize;

use super::{Fields, Generation, MAX_TOP_LOGPROBS};
use crate::error::ApiError;

/// Tokens of an answer when a request does not say: OpenAI's default.
const DEFAULT_MAX_TOKENS: usize = 16;
/// Most prompts of one request.
const MAX_PROMPTS: usize = 128;

/// A prompt as a client gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prompts {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

/// A checked request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CompletionRequest {
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) generation: Generation,
    pub(crate) max_tokens: usize,
    /// Likeliest tokens to report; `None` for no log-probabilities.
    pub(crate) logprobs: Option<usize>,
    pub(crate) echo: bool,
}

impl CompletionRequest {
    pub(crate) fn parse(body: &[u8], served: &str, random_seed: u64) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let generation = Generation::take(&mut fields, served, random_seed)?;
        fields.only("suffix", &String::new(), "no suffix")?;
        let echo = fields.take("echo")?.unwrap_or(false);
        let logprobs = fields.integer("logprobs", 0, MAX_TOP_LOGPROBS)?.and_then(|count| usize::try_from(count).ok());
        let prompts = fields.require::<Prompts>("prompt").map_err(|_| {
            ApiError::field("prompt", "prompt: expected a text, a list of token ids, or a list of either")
        })?;
        fields.finish()?;
        let prompts = match prompts {
            Prompts::Text(text) => vec![Prompt::Text(text)],
            Prompts::Tokens(tokens) => vec![Prompt::Tokens(tokens)],
            Prompts::Texts(texts) => texts.into_iter().map(Prompt::Text).collect(),
            Prompts::TokenLists(lists) => lists.into_iter().map(Prompt::Tokens).collect(),
        };
        if !(1..=MAX_PROMPTS).contains(&prompts.len()) {
            return Err(ApiError::field("prompt", format!("prompt: expected 1 to {MAX_PROMPTS} prompts")));
        }
        let max_tokens = generation.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
        if max_tokens == 0 && !echo {
            return Err(ApiError::field("max_tokens", "max_tokens is 0, which is for requests with echo = true"));
        }
        Ok(Self { prompts, generation, max_tokens, logprobs, echo })
    }
}
