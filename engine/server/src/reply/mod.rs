//! From a job's events to what a client reads.
//!
//! - `text`: tokens to text, up to a stop text
//! - `choice`: one choice of an answer, event by event
//! - `completion`, `chat`: the two forms of an answer, whole and in chunks
//! - `logprobs`: the two forms of log-probabilities

pub(crate) mod chat;
mod choice;
pub(crate) mod completion;
mod logprobs;
#[cfg(test)]
mod tests;
mod text;

pub(crate) use choice::{Beginning, Choice, ChoiceOptions, Delta, Finish, Step};

use serde::Serialize;

/// Tokens of a request, as OpenAI counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

impl Usage {
    /// Of all choices of an answer.
    pub(crate) fn of(choices: &[Choice]) -> Self {
        let sum = |count: fn(&Choice) -> usize| choices.iter().map(count).sum::<usize>();
        let (prompt_tokens, completion_tokens) = (sum(Choice::prompt_tokens), sum(Choice::completion_tokens));
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptDetails { cached_tokens: sum(Choice::cached_tokens) },
        }
    }
}

/// What every chunk and answer of one request says of itself.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
}
