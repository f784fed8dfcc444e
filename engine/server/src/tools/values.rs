//! The request's tools, and what a bare value means under their schemas.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

/// Why a request's tools cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolsError {
    /// One that is not of the form.
    #[error(
        "tools[{index}]: expected an object of type \"function\" with function.name, 1 to 64 of a-z, A-Z, 0-9, _ and -"
    )]
    Form {
        /// Which.
        index: usize,
    },
    /// A name twice.
    #[error("tools[{index}]: the name {name:?} stands twice")]
    Twice {
        /// Which.
        index: usize,
        /// The name.
        name: String,
    },
}

/// What a parameter's values may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Always a string, whatever it looks like.
    Text,
    /// A string, unless it reads as JSON of another type.
    Either,
    /// JSON, if it can be read as such.
    Json,
}

/// The tools of a request: each function's parameters and their types.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolSchemas {
    functions: BTreeMap<String, BTreeMap<String, Kind>>,
}

impl ToolSchemas {
    /// Reads `tools` of a request.
    ///
    /// # Errors
    /// A tool that is no function, has no usable name, or the name of another.
    pub fn new(tools: &[Value]) -> Result<Self, ToolsError> {
        let mut functions = BTreeMap::new();
        for (index, tool) in tools.iter().enumerate() {
            let function = &tool["function"];
            let name = function["name"].as_str().filter(|name| is_name(name));
            let (Some(name), Some("function")) = (name, tool["type"].as_str()) else {
                return Err(ToolsError::Form { index });
            };
            let properties = function["parameters"]["properties"].as_object();
            let kinds = properties.into_iter().flatten().map(|(name, schema)| (name.clone(), kind(schema)));
            if functions.insert(name.to_owned(), kinds.collect()).is_some() {
                return Err(ToolsError::Twice { index, name: name.to_owned() });
            }
        }
        Ok(Self { functions })
    }

    /// Whether there is a function of this name.
    pub fn has(&self, name: &str) -> bool {
        self.functions.contains_key(name)
    }

    /// The only function, where there is one alone.
    pub(crate) fn only(&self) -> Option<&str> {
        let mut names = self.functions.keys();
        names.next().filter(|_| names.next().is_none()).map(String::as_str)
    }

    /// The JSON of a value that a model wrote bare.
    pub(super) fn json(&self, function: &str, parameter: &str, value: &str) -> String {
        let kind = self.functions.get(function).and_then(|parameters| parameters.get(parameter));
        let json = || serde_json::from_str::<&RawValue>(value).ok().map(|raw| raw.get().to_owned());
        let read = match kind.unwrap_or(&Kind::Either) {
            Kind::Text => None,
            Kind::Either => json().filter(|json| !json.starts_with('"')),
            // Python's words are what several templates print.
            Kind::Json => json().or(match value.trim() {
                "True" => Some("true".to_owned()),
                "False" => Some("false".to_owned()),
                "None" => Some("null".to_owned()),
                _ => None,
            }),
        };
        read.unwrap_or_else(|| quoted(value))
    }
}

/// A JSON string.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A JSON object from names and values in JSON, in their order.
pub(super) fn object(fields: &[(String, String)]) -> String {
    let fields: Vec<String> = fields.iter().map(|(name, json)| format!("{}: {json}", quoted(name))).collect();
    format!("{{{}}}", fields.join(", "))
}

/// OpenAI's rule for names of functions.
fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=64).contains(&name.len()) && name.bytes().all(allowed)
}

fn kind(schema: &Value) -> Kind {
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let alternatives = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|name| schema[name].as_array()).flatten();
    let mut kinds: Vec<Kind> = alternatives.map(kind).collect();
    kinds.extend(types.iter().map(|&name| if name == "string" { Kind::Text } else { Kind::Json }));
    if types.is_empty() && kinds.is_empty() {
        // An enum of strings often has no type.
        let strings = schema["enum"].as_array().is_some_and(|values| values.iter().all(Value::is_string));
        return if strings { Kind::Text } else { Kind::Either };
    }
    match (kinds.contains(&Kind::Either), kinds.contains(&Kind::Text), kinds.contains(&Kind::Json)) {
        (false, true, false) => Kind::Text,
        (false, false, true) => Kind::Json,
        _ => Kind::Either,
    }
}
