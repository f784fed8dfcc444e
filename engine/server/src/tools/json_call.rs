//! `{"name": …, "arguments": {…}}` between tags.

use serde::Deserialize;
use serde_json::error::Category;
use serde_json::value::RawValue;

use super::{Attempt, Call};

const CLOSER: &str = "</tool_call>";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body<'a> {
    name: String,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

/// A closing tag may stand within a string of the arguments: the call ends at the first one in front of which the JSON is whole.
pub(super) fn attempt(text: &str, opener: &str) -> Attempt {
    let mut from = opener.len();
    while let Some(place) = text[from..].find(CLOSER) {
        let end = from + place;
        match serde_json::from_str::<Body<'_>>(&text[opener.len()..end]) {
            Ok(body) if body.name.is_empty() => return Attempt::Malformed,
            Ok(body) => {
                let Some(arguments) = arguments(body.arguments) else { return Attempt::Malformed };
                return Attempt::Calls(vec![Call { name: body.name, arguments }], end + CLOSER.len());
            }
            Err(error) if error.classify() == Category::Eof => from = end + CLOSER.len(),
            Err(_) => return Attempt::Malformed,
        }
    }
    Attempt::Incomplete
}

/// An object, as the model wrote it; or one spelled out in a string, as some models do; or nothing, for none.
pub(super) fn arguments(raw: Option<&RawValue>) -> Option<String> {
    let Some(raw) = raw else { return Some("{}".to_owned()) };
    let text = match raw.get().starts_with('"') {
        true => serde_json::from_str::<String>(raw.get()).ok()?,
        false => raw.get().to_owned(),
    };
    is_object(&text).then_some(text)
}

/// Whether `text` is a JSON object.
pub(super) fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{') && serde_json::from_str::<&RawValue>(text).is_ok()
}
