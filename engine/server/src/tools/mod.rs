//! Tool calls that a model writes into its text, in the form that its chat template teaches it.
//!
//! - [`Grammar`]: the forms, and which one a template has
//! - `scanner`: text and calls apart, chunk by chunk
//! - `json_call`, `xml_call`, `gemma`: one call's text; `harmony`: gpt-oss's channels
//! - `reader`: a call's text, read from front to back
//! - `values`: what a bare value means under a tool's JSON schema
//!
//! A call is reported once it is whole, so no border between chunks can cut its arguments. What turns out to be no call, or is
//! never finished, is text, byte for byte.

mod gemma;
mod grammar;
mod harmony;
mod json_call;
mod reader;
mod scanner;
#[cfg(test)]
mod tests;
mod values;
mod xml_call;

pub use grammar::Grammar;
pub use values::{ToolSchemas, ToolsError};

use harmony::Harmony;
use scanner::Scanner;

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The function.
    pub name: String,
    /// A JSON object.
    pub arguments: String,
}

/// What was found in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Words for the reader.
    Text(String),
    /// What the model thinks before it answers, where its form tells the two apart.
    Reasoning(String),
    /// A call.
    Call(Call),
}

/// What one call's text is.
#[derive(Debug, PartialEq, Eq)]
enum Attempt {
    /// More text may make it a call.
    Incomplete,
    /// No text can.
    Malformed,
    /// Calls, and the bytes that they take.
    Calls(Vec<Call>, usize),
}

/// Finds calls in a growing text.
#[derive(Debug)]
pub struct Parser {
    form: Form,
}

#[derive(Debug)]
enum Form {
    Tagged(Scanner),
    Harmony(Harmony),
}

impl Parser {
    /// A parser of one answer. `tools` are those of the request.
    pub fn new(grammar: Grammar, tools: ToolSchemas) -> Self {
        let form = match grammar {
            Grammar::GptOss => Form::Harmony(Harmony::default()),
            grammar => Form::Tagged(Scanner::new(grammar, tools)),
        };
        Self { form }
    }

    /// Takes the next piece of the text.
    pub fn push(&mut self, piece: &str) -> Vec<Found> {
        match &mut self.form {
            Form::Tagged(scanner) => scanner.push(piece),
            Form::Harmony(harmony) => harmony.push(piece),
        }
    }

    /// The text has ended: by the model's own end token (`ended`), or cut off.
    pub fn finish(&mut self, ended: bool) -> Vec<Found> {
        match &mut self.form {
            Form::Tagged(scanner) => scanner.finish(),
            Form::Harmony(harmony) => harmony.finish(ended),
        }
    }
}

/// Bytes at the end of `text` that may be the beginning of one of `markers`.
fn partial_marker(text: &str, markers: &[&str]) -> usize {
    let longest = markers.iter().map(|marker| marker.len() - 1).max().unwrap_or(0).min(text.len());
    let starts = |tail: &str| markers.iter().any(|marker| marker.len() > tail.len() && marker.starts_with(tail));
    (1..=longest)
        .rev()
        .find(|&bytes| text.is_char_boundary(text.len() - bytes) && starts(&text[text.len() - bytes..]))
        .unwrap_or(0)
}

/// The first of `markers` in `text`: its place and the marker. Of two at one place, the longer.
fn first_marker<'m>(text: &str, markers: &[&'m str]) -> Option<(usize, &'m str)> {
    let places = markers.iter().filter_map(|&marker| Some((text.find(marker)?, marker)));
    places.min_by_key(|(place, marker)| (*place, std::cmp::Reverse(marker.len())))
}
