//! Log-probabilities in OpenAI's two forms.

use std::collections::BTreeMap;

use assay_engine::checkpoint::tokenizer::Tokenizer;
use assay_engine::sampling::logprobs::{Logprob, StepLogprobs};
use serde::Serialize;

/// A token of a chat's answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ChatToken {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
    top_logprobs: Vec<ChatTop>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct ChatTop {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
}

/// `choices[].logprobs` of a chat.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct ChatLogprobs {
    content: Vec<ChatToken>,
}

/// `choices[].logprobs` of a completion: lists of equal length.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f64>>,
    top_logprobs: Vec<Option<BTreeMap<String, f64>>>,
    /// Where each token begins, in characters, from the beginning of `text`.
    text_offset: Vec<usize>,
}

/// A token of a text, with its log-probabilities where it has some.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TokenStep {
    pub(crate) id: u32,
    pub(crate) step: Option<StepLogprobs>,
}

/// A token's text. Bytes that are no characters are spelled out, so that different tokens keep different names.
fn name(tokenizer: &Tokenizer, id: u32) -> String {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_else(|error| {
        let bytes = error.into_bytes().into_iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
        format!("bytes:{bytes}")
    })
}

impl ChatLogprobs {
    pub(crate) fn new(tokenizer: &Tokenizer, steps: &[TokenStep]) -> Self {
        let top = |logprob: &Logprob| ChatTop {
            token: name(tokenizer, logprob.id),
            logprob: logprob.logprob,
            bytes: tokenizer.token_bytes(logprob.id).unwrap_or_default(),
        };
        let token = |step: &TokenStep| {
            let logprobs = step.step.as_ref()?;
            let ChatTop { token, logprob, bytes } = top(&logprobs.chosen);
            Some(ChatToken { token, logprob, bytes, top_logprobs: logprobs.top.iter().map(top).collect() })
        };
        Self { content: steps.iter().filter_map(token).collect() }
    }
}

impl CompletionLogprobs {
    /// `offset`: characters of the text in front of the first of `steps`; it is moved on.
    pub(crate) fn new(tokenizer: &Tokenizer, steps: &[TokenStep], offset: &mut usize) -> Self {
        let mut lists = Self::default();
        for TokenStep { id, step } in steps {
            let token = name(tokenizer, *id);
            lists.text_offset.push(*offset);
            // A character counts where its first byte is.
            let bytes = tokenizer.token_bytes(*id).unwrap_or_default();
            *offset += bytes.iter().filter(|&&byte| !(0x80..0xc0).contains(&byte)).count();
            lists.token_logprobs.push(step.as_ref().map(|step| step.chosen.logprob));
            lists.top_logprobs.push(step.as_ref().map(|step| {
                // The chosen token is always among them, as OpenAI has it.
                let all = step.top.iter().chain([&step.chosen]);
                all.map(|logprob| (name(tokenizer, logprob.id), logprob.logprob)).collect()
            }));
            lists.tokens.push(token);
        }
        lists
    }
}
