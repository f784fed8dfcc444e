//! What a client may ask, checked field by field.
//!
//! - [`Fields`]: a body's fields, each taken once; what nobody took is refused
//! - `generation`: what both endpoints share: lengths, sampling, stops, streaming
//! - `chat`, `completion`: the two endpoints; `tools`: which calls a chat asks for; `text`: tokenizing and rendering

mod chat;
mod completion;
mod fields;
mod generation;
#[cfg(test)]
mod tests;
mod text;
mod tools;

pub(crate) use chat::ChatRequest;
pub(crate) use completion::{CompletionRequest, Prompt};
pub(crate) use fields::Fields;
pub(crate) use generation::{Generation, MAX_TOP_LOGPROBS};
pub(crate) use text::{ApplyTemplateRequest, DetokenizeRequest, TokenizeRequest};
