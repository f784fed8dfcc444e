//! A completion, whole and in chunks.

use assay_engine::checkpoint::tokenizer::Tokenizer;
use serde::Serialize;

use super::logprobs::CompletionLogprobs;
use super::{Delta, Finish, Head, Usage};

#[derive(Debug, Serialize)]
struct Body<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ChoiceBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

#[derive(Debug, Serialize)]
struct ChoiceBody {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<Finish>,
}

/// How completions are written.
#[derive(Debug)]
pub(crate) struct Completions {
    pub(crate) head: Head,
    pub(crate) logprobs: bool,
    /// Of each choice: characters so far.
    pub(crate) offsets: Vec<usize>,
}

impl Completions {
    fn choice(&mut self, index: usize, delta: Delta, finish: Option<Finish>, tokenizer: &Tokenizer) -> ChoiceBody {
        let logprobs =
            self.logprobs.then(|| CompletionLogprobs::new(tokenizer, &delta.steps, &mut self.offsets[index]));
        ChoiceBody { index, text: delta.text, logprobs, finish_reason: finish }
    }

    fn body(&self, choices: Vec<ChoiceBody>, usage: Option<Usage>) -> String {
        let Head { id, created, model } = &self.head;
        let body = Body { id, object: "text_completion", created: *created, model, choices, usage };
        serde_json::to_string(&body).unwrap_or_default()
    }

    /// A chunk's JSON.
    pub(crate) fn chunk(
        &mut self,
        index: usize,
        delta: Delta,
        finish: Option<Finish>,
        tokenizer: &Tokenizer,
    ) -> String {
        let choice = self.choice(index, delta, finish, tokenizer);
        self.body(vec![choice], None)
    }

    /// The last chunk's JSON: no choice, the usage.
    pub(crate) fn usage(&self, usage: Usage) -> String {
        self.body(Vec::new(), Some(usage))
    }

    /// The whole answer's JSON.
    pub(crate) fn whole(&mut self, choices: Vec<(Delta, Finish)>, usage: Usage, tokenizer: &Tokenizer) -> String {
        let choices = choices.into_iter().enumerate();
        let choices = choices.map(|(index, (delta, finish))| self.choice(index, delta, Some(finish), tokenizer));
        let choices = choices.collect();
        self.body(choices, Some(usage))
    }
}
