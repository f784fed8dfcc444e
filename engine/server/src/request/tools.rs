//! `tools` and `tool_choice`.

use minijinja::value::Value;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Fields;
use crate::error::ApiError;
use crate::tools::{Grammar, ToolSchemas};

/// What a request says of tools.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    /// Those that the template shows to the model.
    pub(super) shown: Option<Vec<Value>>,
    /// The form in which calls are looked for in the answer, and the request's tools.
    pub(super) calls: Option<(Grammar, ToolSchemas)>,
    /// What the answer is made to begin with.
    pub(super) opening: String,
}

/// `tool_choice`, as it is understood here.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    Auto,
    None,
    /// A call of any tool, or of this one.
    Call(Option<String>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Word(String),
    Function(Function),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Function {
    #[serde(rename = "type")]
    kind: String,
    function: Name,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Name {
    name: String,
}

fn choice(fields: &mut Fields) -> Result<Choice, ApiError> {
    const FIELD: &str = "tool_choice";
    let wrong = || {
        let message = "tool_choice: expected \"auto\", \"none\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": …}}";
        ApiError::unsupported(FIELD, message)
    };
    match fields.take::<Written>(FIELD).map_err(|_| wrong())? {
        None => Ok(Choice::Auto),
        Some(Written::Word(word)) => match word.as_str() {
            "auto" => Ok(Choice::Auto),
            "none" => Ok(Choice::None),
            "required" => Ok(Choice::Call(None)),
            _ => Err(wrong()),
        },
        Some(Written::Function(Function { kind, function })) if kind == "function" => {
            Ok(Choice::Call(Some(function.name)))
        }
        Some(Written::Function(_)) => Err(wrong()),
    }
}

/// Takes `tools` and `tool_choice`. With "none" the tools are not shown to the model, so that it calls none; where a call is asked for,
/// the answer begins as one does.
pub(super) fn tools(fields: &mut Fields, grammar: Option<Grammar>, template: &str) -> Result<Tools, ApiError> {
    // Once in their own order for the template, once for their schemas.
    let raw = fields.take::<Box<RawValue>>("tools")?;
    let choice = choice(fields)?;
    fields.only("parallel_tool_calls", &true, "true: calls are as many as the model makes")?;
    let wrong = |error: serde_json::Error| ApiError::field("tools", format!("tools: {error}"));
    let shown: Vec<Value> =
        raw.as_ref().map_or(Ok(Vec::new()), |raw| serde_json::from_str(raw.get())).map_err(wrong)?;
    let schemas: Vec<serde_json::Value> =
        raw.as_ref().map_or(Ok(Vec::new()), |raw| serde_json::from_str(raw.get())).map_err(wrong)?;
    let schemas = ToolSchemas::new(&schemas).map_err(|error| ApiError::field("tools", error.to_string()))?;
    if let Choice::Call(name) = &choice {
        if shown.is_empty() {
            return Err(ApiError::field("tool_choice", "tool_choice asks for a call, and there are no tools"));
        }
        if let Some(name) = name.as_ref().filter(|name| !schemas.has(name)) {
            let shown: String = name.chars().filter(|char| !char.is_control()).take(80).collect();
            return Err(ApiError::field("tool_choice", format!("tool_choice: {shown:?} is none of the tools")));
        }
    }
    if shown.is_empty() || choice == Choice::None {
        // gpt-oss writes channels whether there are tools or not.
        let always = grammar.filter(|&grammar| grammar == Grammar::GptOss);
        return Ok(Tools { calls: always.map(|grammar| (grammar, ToolSchemas::default())), ..Tools::default() });
    }
    let Some(grammar) = grammar else {
        let message = "tools: the form of tool calls in this checkpoint's chat template is not known to this server";
        return Err(ApiError::unsupported("tools", message));
    };
    let opening = match &choice {
        Choice::Call(name) => grammar.opening(template, name.as_deref().or_else(|| schemas.only())),
        _ => String::new(),
    };
    Ok(Tools { shown: Some(shown), calls: Some((grammar, schemas)), opening })
}
