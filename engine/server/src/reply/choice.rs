//! One choice of an answer, event by event.

use std::sync::Arc;

use assay_engine::checkpoint::tokenizer::Tokenizer;
use serde::Serialize;

use super::logprobs::TokenStep;
use super::text::TextStream;
use crate::error::ApiError;
use crate::tools::{Call, Found, Parser};
use crate::worker::{Cancel, End, Event};

/// How a choice is made.
#[derive(Debug)]
pub(crate) struct ChoiceOptions {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) stops: Vec<String>,
    pub(crate) parser: Option<Parser>,
    /// The prompt.
    pub(crate) prompt: Vec<u32>,
    /// What stands in front of the model's words.
    pub(crate) beginning: Beginning,
    /// Whether tokens are kept for log-probabilities.
    pub(crate) logprobs: bool,
    /// Ends the job once a stop text has.
    pub(crate) cancel: Cancel,
}

/// What stands in an answer in front of the model's own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// The beginning of a call, which the request asks for and the prompt ends with; empty for nothing.
    Opening(String),
    /// The prompt, which the request wants back.
    Echo(String),
}

impl Beginning {
    /// The prompt's text, where it is part of the answer.
    pub(crate) fn of_echo(echo: Option<String>) -> Self {
        echo.map_or(Self::Opening(String::new()), Self::Echo)
    }
}

/// Why a choice ended, in OpenAI's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Finish {
    Stop,
    Length,
    ToolCalls,
}

/// What is new in a choice.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<Call>,
    pub(crate) steps: Vec<TokenStep>,
}

impl Delta {
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.reasoning.is_empty() && self.calls.is_empty() && self.steps.is_empty()
    }

    fn add(&mut self, found: Vec<Found>) {
        for found in found {
            match found {
                Found::Text(text) => self.text += &text,
                Found::Reasoning(text) => self.reasoning += &text,
                Found::Call(call) => self.calls.push(call),
            }
        }
    }

    /// Adds a later one.
    pub(crate) fn join(&mut self, later: Delta) {
        self.text += &later.text;
        self.reasoning += &later.reasoning;
        self.calls.extend(later.calls);
        self.steps.extend(later.steps);
    }
}

/// What an event came to.
#[derive(Debug)]
pub(crate) enum Step {
    /// There may be more.
    More(Delta),
    /// The last of it.
    Done(Delta, Finish),
}

/// A choice under way.
#[derive(Debug)]
pub(crate) struct Choice {
    text: TextStream,
    parser: Option<Parser>,
    prompt: Vec<u32>,
    beginning: Option<Beginning>,
    logprobs: bool,
    cancel: Cancel,
    cached_tokens: usize,
    completion_tokens: usize,
    any_calls: bool,
    done: bool,
}

impl Choice {
    pub(crate) fn new(options: ChoiceOptions) -> Self {
        let ChoiceOptions { tokenizer, stops, parser, prompt, beginning, logprobs, cancel } = options;
        Self {
            text: TextStream::new(tokenizer, stops),
            parser,
            prompt,
            beginning: Some(beginning),
            logprobs,
            cancel,
            cached_tokens: 0,
            completion_tokens: 0,
            any_calls: false,
            done: false,
        }
    }

    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompt.len()
    }

    pub(crate) fn completion_tokens(&self) -> usize {
        self.completion_tokens
    }

    pub(crate) fn cached_tokens(&self) -> usize {
        self.cached_tokens
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    /// Takes an event. `None` for what comes after the end.
    pub(crate) fn take(&mut self, event: Event) -> Result<Option<Step>, ApiError> {
        if self.done {
            return Ok(None);
        }
        let mut delta = Delta::default();
        match event {
            Event::Prompt { cached, logprobs } => {
                self.cached_tokens = cached;
                match self.beginning.take() {
                    None => {}
                    Some(Beginning::Opening(text)) => self.found(text, &mut delta),
                    Some(Beginning::Echo(text)) => {
                        delta.text = text;
                        if self.logprobs {
                            let steps = std::iter::once(None).chain(logprobs.into_iter().map(Some));
                            let tokens = self.prompt.iter().zip(steps);
                            delta.steps = tokens.map(|(&id, step)| TokenStep { id, step }).collect();
                        }
                    }
                }
                Ok(Some(Step::More(delta)))
            }
            Event::Token { id, logprobs } => {
                self.completion_tokens += 1;
                if self.logprobs {
                    delta.steps.push(TokenStep { id, step: logprobs });
                }
                let piece = self.text.push(id).map_err(decode_error)?;
                self.found(piece.text, &mut delta);
                if piece.stopped {
                    self.cancel.stop();
                    return Ok(Some(self.end(delta, Finish::Stop, false)));
                }
                Ok(Some(Step::More(delta)))
            }
            Event::End(end) => {
                let piece = self.text.finish().map_err(decode_error)?;
                self.found(piece.text, &mut delta);
                let finish = match end {
                    End::Token(_) | End::Stopped => Finish::Stop,
                    End::Length if piece.stopped => Finish::Stop,
                    End::Length => Finish::Length,
                    End::Cancelled => return Err(ApiError::shutting_down()),
                };
                Ok(Some(self.end(delta, finish, matches!(end, End::Token(_)))))
            }
            Event::Failed(error) => Err(ApiError::engine(error.to_string())),
        }
    }

    fn found(&mut self, text: String, delta: &mut Delta) {
        match &mut self.parser {
            _ if text.is_empty() => {}
            None => delta.text += &text,
            Some(parser) => delta.add(parser.push(&text)),
        }
        self.any_calls |= !delta.calls.is_empty();
    }

    /// `ended`: by the model's own end token.
    fn end(&mut self, mut delta: Delta, finish: Finish, ended: bool) -> Step {
        self.done = true;
        if let Some(parser) = &mut self.parser {
            delta.add(parser.finish(ended));
        }
        self.any_calls |= !delta.calls.is_empty();
        let finish = if self.any_calls && finish == Finish::Stop { Finish::ToolCalls } else { finish };
        Step::Done(delta, finish)
    }
}

fn decode_error(error: assay_engine::checkpoint::tokenizer::TokenizerError) -> ApiError {
    // The error names the tokenizer's file, which is nobody's business here.
    match error {
        assay_engine::checkpoint::tokenizer::TokenizerError::UnknownId { id, .. } => {
            ApiError::engine(format!("token id {id} has no text in this checkpoint's tokenizer"))
        }
        _ => ApiError::engine("the tokenizer cannot decode the answer"),
    }
}
