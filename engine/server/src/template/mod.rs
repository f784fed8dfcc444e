//! The checkpoint's chat template, rendered as Hugging Face transformers renders it.
//!
//! - [`ChatTemplate`]: compiled once, rendered for each request
//! - `environment`: transformers' Jinja environment: filters, functions, white space
//! - `python`: numbers and JSON as Python prints them
//! - `source`: where a checkpoint keeps its template and its special tokens
//!
//! What transformers does to messages before rendering is done here too: fields that are null are left out, and reasoning
//! is known by all its names. Two things are this server's: a call's arguments come from OpenAI clients as text and are objects for the
//! template, and a list of text parts becomes one text where the template knows no lists.

mod environment;
mod messages;
mod python;
mod source;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use minijinja::value::Value;
use minijinja::{Environment, ErrorKind};
use sha2::{Digest, Sha256};

pub use messages::MessagesError;
pub use source::{SpecialTokens, TemplateFileError, TemplateSource};

use crate::tools::Grammar;

const NAME: &str = "chat_template";
/// Steps that a template may take, of which a token of prompt needs few: a template that never ends is an error.
const FUEL: u64 = 50_000_000;

/// Why a chat could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The template cannot be compiled.
    #[error("the chat template does not compile: {0}")]
    Compile(String),
    /// The template refuses these messages, in its own words.
    #[error("{0}")]
    Refused(String),
    /// The template failed on these messages.
    #[error("the chat template failed: {0}")]
    Failed(String),
    /// The messages are none.
    #[error(transparent)]
    Messages(#[from] MessagesError),
}

/// What a chat is rendered from.
#[derive(Debug, Clone, Default)]
pub struct Chat {
    /// Objects with a role.
    pub messages: Vec<Value>,
    /// OpenAI's `tools`.
    pub tools: Option<Vec<Value>>,
    /// Documents for retrieval.
    pub documents: Option<Vec<Value>>,
    /// Whether the answer's header follows the messages.
    pub add_generation_prompt: bool,
    /// Further variables of the template.
    pub variables: Vec<(String, Value)>,
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: Arc<str>,
    sha256: String,
    special_tokens: Vec<(String, Value)>,
    /// Whether it renders content that is a list of parts.
    takes_parts: bool,
}

impl ChatTemplate {
    /// Compiles a template's source.
    ///
    /// # Errors
    /// When it is no Jinja template.
    pub fn new(source: &str, special_tokens: &SpecialTokens) -> Result<Self, TemplateError> {
        Self::with_clock(source, special_tokens, || jiff::Zoned::now().datetime())
    }

    fn with_clock(
        source: &str,
        special_tokens: &SpecialTokens,
        now: environment::Clock,
    ) -> Result<Self, TemplateError> {
        // minijinja counts lines, and the characters of one, in 16 bits.
        let most = usize::from(u16::MAX);
        if source.lines().count() >= most || source.lines().any(|line| line.len() >= most) {
            let message = format!("it has {most} lines or more, or a line of so many bytes");
            return Err(TemplateError::Compile(message));
        }
        let compile = |error: minijinja::Error| TemplateError::Compile(error.to_string());
        let mut environment = environment::new(now).map_err(compile)?;
        environment.set_fuel(Some(FUEL));
        environment.add_template_owned(NAME, environment::without_generation_tags(source)).map_err(compile)?;
        let special_tokens = special_tokens.iter().map(|(name, token)| (name.to_owned(), Value::from(token))).collect();
        let sha256 = Sha256::digest(source).iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        let mut template = Self { environment, source: source.into(), sha256, special_tokens, takes_parts: false };
        template.takes_parts = template.probe_parts();
        Ok(template)
    }

    /// The source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Fingerprint of the source.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// The form of tool calls that it teaches.
    pub fn grammar(&self) -> Option<Grammar> {
        Grammar::of_template(&self.source)
    }

    /// Whether it mentions a variable, so that one given to it may matter.
    pub fn mentions(&self, variable: &str) -> bool {
        self.source.contains(variable)
    }

    /// The prompt's text.
    ///
    /// # Errors
    /// Messages that are none; what the template raises; what it fails at.
    pub fn render(&self, chat: &Chat) -> Result<String, TemplateError> {
        let messages = messages::prepare(&chat.messages, self.takes_parts)?;
        self.render_prepared(messages, chat)
    }

    fn render_prepared(&self, messages: Vec<Value>, chat: &Chat) -> Result<String, TemplateError> {
        let list =
            |values: &Option<Vec<Value>>| values.as_ref().map_or(Value::from(()), |values| Value::from(values.clone()));
        let own = [
            ("messages".to_owned(), Value::from(messages)),
            ("tools".to_owned(), list(&chat.tools)),
            ("documents".to_owned(), list(&chat.documents)),
            ("add_generation_prompt".to_owned(), Value::from(chat.add_generation_prompt)),
        ];
        // A later one of a name counts, as in transformers: a request's variables before special tokens, but not before
        // these four.
        let pairs = self.special_tokens.iter().chain(&chat.variables).cloned().chain(own);
        let context = Value::from_pairs(pairs);
        let template =
            self.environment.get_template(NAME).map_err(|error| TemplateError::Compile(error.to_string()))?;
        template.render(context).map_err(|error| failure(&error))
    }

    /// Renders one part and looks whether its text is there, bare.
    fn probe_parts(&self) -> bool {
        const PROBE: &str = "a text that is there";
        let part = Value::from_pairs([("type", "text"), ("text", PROBE)]);
        let message = Value::from_pairs([("role", Value::from("user")), ("content", Value::from(vec![part]))]);
        let rendered = self.render_prepared(vec![message], &Chat::default());
        rendered.is_ok_and(|text| text.contains(PROBE) && !text.contains("'type'") && !text.contains("\"type\""))
    }
}

/// The template's own words, where it raised an exception.
fn failure(error: &minijinja::Error) -> TemplateError {
    let mut cause: &(dyn std::error::Error + 'static) = error;
    loop {
        if let Some(raised) = cause.downcast_ref::<environment::Raised>() {
            return TemplateError::Refused(raised.to_string());
        }
        match cause.source() {
            Some(next) => cause = next,
            None => break,
        }
    }
    let detail = error.detail().unwrap_or_default();
    let line = error.line().map_or(String::new(), |line| format!(" in line {line}"));
    match error.kind() {
        ErrorKind::OutOfFuel => TemplateError::Failed("it takes too many steps".to_owned()),
        kind => TemplateError::Failed(format!("{kind}{line}{}{detail}", if detail.is_empty() { "" } else { ": " })),
    }
}
