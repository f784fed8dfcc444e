//! Values as Python prints them: `str`, `repr` and `json.dumps`.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Deeper values are an error.
const MAX_DEPTH: usize = 128;

/// Arguments of `json.dumps`.
#[derive(Debug, Clone, Default)]
pub(super) struct JsonStyle {
    pub(super) ensure_ascii: bool,
    /// One level's indentation; `None` for one line.
    pub(super) indent: Option<String>,
    /// Between items, and between key and value.
    pub(super) separators: Option<Vec<String>>,
    pub(super) sort_keys: bool,
}

/// Python's `str(value)`.
pub(super) fn text(value: &Value) -> String {
    match (value.kind(), value.as_str()) {
        (ValueKind::String, Some(text)) => text.to_owned(),
        (ValueKind::Undefined, _) => String::new(),
        _ => {
            let mut out = String::new();
            repr(value, 0, &mut out);
            out
        }
    }
}

/// Python's `repr(value)`.
fn repr(value: &Value, depth: usize, out: &mut String) {
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value, ("nan", "inf"))),
        ValueKind::String if value.is_safe() || value.as_str().is_some() => {
            repr_string(value.as_str().unwrap_or_default(), out);
        }
        ValueKind::Seq if depth < MAX_DEPTH => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(&item, depth + 1, out);
            }
            if value.is_tuple() && value.len() == Some(1) {
                out.push(',');
            }
            out.push(close);
        }
        // A namespace or a loop is an object, not a dict.
        ValueKind::Map if depth < MAX_DEPTH => {
            out.push('{');
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(&key, depth + 1, out);
                out.push_str(": ");
                repr(&value.get_item(&key).unwrap_or_default(), depth + 1, out);
            }
            out.push('}');
        }
        _ => {
            let _infallible = write!(out, "{value}");
        }
    }
}

/// Single quotes, unless the text has some and no double ones.
fn repr_string(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for char in text.chars() {
        match char {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            char if char == quote => {
                out.push('\\');
                out.push(char);
            }
            char if (char.is_control() || char == '\u{ad}') && u32::from(char) < 0x100 => {
                let _infallible = write!(out, "\\x{:02x}", u32::from(char));
            }
            char => out.push(char),
        }
    }
    out.push(quote);
}

/// A number; `(nan, inf)` are the words for those.
fn number(value: &Value, (nan, infinity): (&str, &str)) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(number) = f64::try_from(value.clone()) else { return value.to_string() };
    if number.is_nan() {
        return nan.to_owned();
    }
    if number.is_infinite() {
        return format!("{}{infinity}", if number < 0.0 { "-" } else { "" });
    }
    float(number)
}

/// Python's `repr` of a finite float: the shortest digits that give it back, with an exponent below 1e-4 and from 1e16 on.
fn float(number: f64) -> String {
    let scientific = format!("{number:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{number}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Python's `json.dumps`.
///
/// # Errors
/// What has no JSON form: undefined values, functions; a value that is too deep.
pub(super) fn json(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut out = String::new();
    write_json(value, style, 0, &mut out)?;
    Ok(out)
}

fn write_json(value: &Value, style: &JsonStyle, depth: usize, out: &mut String) -> Result<(), Error> {
    let refuse = |what: &str| Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: {what}")));
    if depth > MAX_DEPTH {
        return refuse("the value is too deep");
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value, ("NaN", "Infinity"))),
        ValueKind::String => json_string(value.as_str().unwrap_or_default(), style.ensure_ascii, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            let write = |item: &Value, out: &mut String| write_json(item, style, depth + 1, out);
            container(('[', ']'), &items, style, depth, out, write)?;
        }
        ValueKind::Map => {
            let mut fields: Vec<(String, Value)> = Vec::new();
            for key in value.try_iter()? {
                fields.push((json_key(&key)?, value.get_item(&key)?));
            }
            if style.sort_keys {
                fields.sort_by(|a, b| a.0.cmp(&b.0));
            }
            let colon = style.separators.as_ref().and_then(|both| both.get(1)).map_or(": ", String::as_str);
            container(('{', '}'), &fields, style, depth, out, |(key, value), out| {
                json_string(key, style.ensure_ascii, out);
                out.push_str(colon);
                write_json(value, style, depth + 1, out)
            })?;
        }
        ValueKind::Undefined => return refuse("an undefined value has no JSON form"),
        kind => return refuse(&format!("a value of type {kind} has no JSON form")),
    }
    Ok(())
}

fn container<T>(
    (open, close): (char, char),
    items: &[T],
    style: &JsonStyle,
    depth: usize,
    out: &mut String,
    mut write: impl FnMut(&T, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    let own = style.separators.as_ref().and_then(|both| both.first());
    let comma = own.map_or(if style.indent.is_some() { "," } else { ", " }, String::as_str);
    let new_line = |depth: usize, out: &mut String| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    };
    out.push(open);
    for (index, item) in items.iter().enumerate() {
        out.push_str(if index > 0 { comma } else { "" });
        new_line(depth + 1, out);
        write(item, out)?;
    }
    if !items.is_empty() {
        new_line(depth, out);
    }
    out.push(close);
    Ok(())
}

fn json_key(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number => Ok(number(key, ("NaN", "Infinity"))),
        kind => Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: a key of type {kind}"))),
    }
}

fn json_string(text: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            char if char < ' ' || (ensure_ascii && char > '~') => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    let _infallible = write!(out, "\\u{unit:04x}");
                }
            }
            char => out.push(char),
        }
    }
    out.push('"');
}
