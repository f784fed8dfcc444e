//! What happens to messages before a template sees them.

use minijinja::value::{Value, ValueKind};

/// Names that reasoning goes by. The first is the one that templates read.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// What is wrong with a request's messages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessagesError {
    /// None at all.
    #[error("messages: expected at least one")]
    Empty,
    /// A message of another form.
    #[error("messages[{index}]: expected an object with a role")]
    Form {
        /// Which.
        index: usize,
    },
    /// Content that is no text.
    #[error("messages[{index}].content: expected a text, or a list of parts of type \"text\"")]
    Content {
        /// Which.
        index: usize,
    },
    /// A call whose arguments are not JSON.
    #[error("messages[{index}].tool_calls[{call}].function.arguments: expected the text of a JSON object")]
    Arguments {
        /// Which message.
        index: usize,
        /// Which call.
        call: usize,
    },
}

type Fields = Vec<(String, Value)>;

/// The messages as the template gets them.
pub(super) fn prepare(messages: &[Value], takes_parts: bool) -> Result<Vec<Value>, MessagesError> {
    if messages.is_empty() {
        return Err(MessagesError::Empty);
    }
    let prepared = messages.iter().enumerate().map(|(index, message)| {
        let mut fields = fields(message).ok_or(MessagesError::Form { index })?;
        if get(&fields, "role").is_none_or(|role| role.as_str().is_none()) {
            return Err(MessagesError::Form { index });
        }
        fields.retain(|(_, value)| !value.is_none());
        alias_reasoning(&mut fields);
        if let Some(content) = get_mut(&mut fields, "content") {
            prepare_content(content, takes_parts).ok_or(MessagesError::Content { index })?;
        }
        if let Some(calls) = get_mut(&mut fields, "tool_calls") {
            *calls = prepare_calls(calls, index)?;
        }
        Ok(Value::from_pairs(fields))
    });
    prepared.collect()
}

/// An object's fields in their order.
fn fields(object: &Value) -> Option<Fields> {
    if object.kind() != ValueKind::Map {
        return None;
    }
    let keys = object.try_iter().ok()?;
    keys.map(|key| Some((key.as_str()?.to_owned(), object.get_item(&key).ok()?))).collect()
}

fn get<'f>(fields: &'f Fields, name: &str) -> Option<&'f Value> {
    fields.iter().find(|(field, _)| field == name).map(|(_, value)| value)
}

fn get_mut<'f>(fields: &'f mut Fields, name: &str) -> Option<&'f mut Value> {
    fields.iter_mut().find(|(field, _)| field == name).map(|(_, value)| value)
}

/// `reasoning_content` and `thinking` both, where there is one of its names.
fn alias_reasoning(fields: &mut Fields) {
    let Some(reasoning) = REASONING.iter().find_map(|name| get(fields, name)).cloned() else { return };
    match get_mut(fields, "reasoning_content") {
        Some(content) => *content = reasoning.clone(),
        None => fields.push(("reasoning_content".to_owned(), reasoning.clone())),
    }
    if get(fields, "thinking").is_none() {
        fields.insert(0, ("thinking".to_owned(), reasoning));
    }
}

/// Checks that content is text, and joins parts where the template takes none.
fn prepare_content(content: &mut Value, takes_parts: bool) -> Option<()> {
    match content.kind() {
        ValueKind::String => Some(()),
        ValueKind::Seq => {
            let parts: Option<Vec<String>> = content.try_iter().ok()?.map(|part| part_text(&part)).collect();
            let parts = parts?;
            if !takes_parts {
                *content = Value::from(parts.join("\n"));
            }
            Some(())
        }
        _ => None,
    }
}

fn part_text(part: &Value) -> Option<String> {
    let kind = part.get_attr("type").ok()?;
    kind.as_str().filter(|&kind| kind == "text")?;
    Some(part.get_attr("text").ok()?.as_str()?.to_owned())
}

/// Calls with their arguments as objects.
fn prepare_calls(calls: &Value, index: usize) -> Result<Value, MessagesError> {
    let list = calls.try_iter().map_err(|_| MessagesError::Form { index })?;
    let prepared = list.enumerate().map(|(call, value)| {
        let wrong = || MessagesError::Arguments { index, call };
        let mut outer = fields(&value).ok_or_else(wrong)?;
        let Some(function) = get_mut(&mut outer, "function") else { return Ok(value) };
        let mut inner = fields(function).ok_or_else(wrong)?;
        if let Some(arguments) = get_mut(&mut inner, "arguments") {
            let text = arguments.as_str().map(str::to_owned);
            if let Some(text) = text {
                let text = if text.trim().is_empty() { "{}" } else { &text };
                *arguments = serde_json::from_str(text).map_err(|_| wrong())?;
            }
            if arguments.kind() != ValueKind::Map {
                return Err(wrong());
            }
        }
        *function = Value::from_pairs(inner);
        Ok(Value::from_pairs(outer))
    });
    Ok(Value::from(prepared.collect::<Result<Vec<_>, _>>()?))
}
