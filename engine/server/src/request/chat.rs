//! `/v1/chat/completions`

use minijinja::value::{Value, ValueKind};
use serde::Deserialize;

use super::tools::{Tools, tools};
use super::{Fields, Generation, MAX_TOP_LOGPROBS};
use crate::error::ApiError;
use crate::model::ServedModel;
use crate::template::Chat;
use crate::tools::Parser;

/// Names that a request's template variables may not have: they are fields of their own.
const OWN_VARIABLES: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];

/// A checked request.
#[derive(Debug)]
pub(crate) struct ChatRequest {
    pub(crate) chat: Chat,
    pub(crate) generation: Generation,
    /// Likeliest tokens to report; `None` for no log-probabilities.
    pub(crate) logprobs: Option<usize>,
    tools: Tools,
}

#[derive(Deserialize)]
struct ResponseFormat {
    #[serde(rename = "type")]
    kind: String,
}

impl ChatRequest {
    pub(crate) fn parse(body: &[u8], model: &ServedModel, random_seed: u64) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let mut generation = Generation::take(&mut fields, &model.id, random_seed)?;
        if let Some(tokens) = fields.integer("max_completion_tokens", 1, i64::from(u32::MAX))? {
            generation.max_tokens = usize::try_from(tokens).ok();
        }
        if generation.max_tokens == Some(0) {
            return Err(ApiError::field("max_tokens", "max_tokens is 0, expected at least 1"));
        }
        if let Some(format) = fields.take::<ResponseFormat>("response_format")?
            && format.kind != "text"
        {
            let message = "response_format: this server supports the type \"text\" alone";
            return Err(ApiError::unsupported("response_format", message));
        }
        let logprobs = fields.take("logprobs")?.unwrap_or(false);
        let top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)?;
        if top.is_some() && !logprobs {
            return Err(ApiError::field("top_logprobs", "top_logprobs is for requests with logprobs = true"));
        }
        let top = top.and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
        let (chat, tools) = chat(&mut fields, model)?;
        fields.finish()?;
        Ok(Self { chat, generation, logprobs: logprobs.then_some(top), tools })
    }

    /// A parser for this request's answer, where its form has any.
    pub(crate) fn parser(&self) -> Option<Parser> {
        self.tools.calls.clone().map(|(grammar, tools)| Parser::new(grammar, tools))
    }

    /// What the answer begins with, whatever the model would write: the beginning of a call that the request asks for. Empty for
    /// nothing.
    pub(crate) fn opening(&self) -> &str {
        &self.tools.opening
    }
}

/// Takes what a template renders.
pub(super) fn chat(fields: &mut Fields, model: &ServedModel) -> Result<(Chat, Tools), ApiError> {
    let Some(template) = &model.template else {
        return Err(ApiError::invalid("this checkpoint has no chat template: use /v1/completions"));
    };
    let messages: Vec<Value> = fields.require("messages")?;
    let documents = fields.take("documents")?;
    if documents.is_some() && !template.mentions("documents") {
        return Err(ApiError::unsupported("documents", "documents: this checkpoint's chat template knows none"));
    }
    let mut variables = Vec::new();
    if let Some(effort) = fields.take::<Value>("reasoning_effort")? {
        variables.push(("reasoning_effort".to_owned(), effort));
    }
    if let Some(own) = fields.take::<Value>("chat_template_kwargs")? {
        let wrong = || ApiError::field("chat_template_kwargs", "chat_template_kwargs: expected an object");
        if own.kind() != ValueKind::Map {
            return Err(wrong());
        }
        for name in own.try_iter().map_err(|_| wrong())? {
            let value = own.get_item(&name).map_err(|_| wrong())?;
            variables.push((name.as_str().ok_or_else(wrong)?.to_owned(), value));
        }
    }
    for (name, _) in &variables {
        if OWN_VARIABLES.contains(&name.as_str()) {
            return Err(ApiError::field("chat_template_kwargs", format!("{name} is a field of its own")));
        }
        if !template.mentions(name) {
            let message = format!("{name}: this checkpoint's chat template knows no such variable");
            return Err(ApiError::unsupported(name, message));
        }
    }
    let mut tools = tools(fields, model.grammar, template.source())?;
    let shown = tools.shown.take();
    let chat = Chat { messages, tools: shown, documents, add_generation_prompt: true, variables };
    Ok((chat, tools))
}
