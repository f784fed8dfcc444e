//! The Jinja environment that transformers sets up for chat templates.

use jiff::civil::DateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::python::{self, JsonStyle};

/// Local date and time.
pub(super) type Clock = fn() -> DateTime;

/// What `raise_exception` raises.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(String);

/// A fresh environment; `now` is what `strftime_now` prints.
pub(super) fn new(now: Clock) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(methods);
    environment.set_formatter(format);
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &Value| python::text(value));
    environment.add_test("sequence", |value: &Value| {
        // Python's test asks for a length and an index, which dicts, texts and undefined values have.
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined)
    });
    environment.add_test("iterable", |value: &Value| value.kind() == ValueKind::String || value.try_iter().is_ok());
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "the template raised an exception").with_source(Raised(message)))
    });
    environment.add_function("strftime_now", move |format: &str| strftime(format, now()));
    Ok(environment)
}

/// `{% generation %}` marks what an assistant wrote, for training; it prints nothing. The tags give way to a block that is
/// always rendered, with their white-space marks.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        result.push_str(before);
        let Some(end) = tag.find("%}") else { break };
        let (tag, after) = tag.split_at(end + 2);
        let inner = tag.trim_start_matches("{%").trim_end_matches("%}");
        match inner.trim_matches(|char: char| char.is_whitespace() || char == '-' || char == '+') {
            "generation" => result.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => result.push_str(&tag.replace("endgeneration", "endif")),
            _ => result.push_str(tag),
        }
        rest = after;
    }
    result.push_str(rest);
    result
}

/// `{{ value }}` as Python's `str` has it.
fn format(out: &mut Output, _state: &mut State, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::String => out.write_str(value.as_str().unwrap_or_default()).map_err(Error::from),
        _ => out.write_str(&python::text(value)).map_err(Error::from),
    }
}

/// Methods of Python's types: those of the crate, and what its versions of them leave out.
fn methods(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.kind(), method) {
        (ValueKind::String, "removeprefix" | "removesuffix") => {
            let (affix,): (&str,) = from_args(args)?;
            let text = value.as_str().unwrap_or_default();
            let cut = if method == "removeprefix" { text.strip_prefix(affix) } else { text.strip_suffix(affix) };
            Ok(Value::from(cut.unwrap_or(text)))
        }
        _ => unknown_method_callback(state, value, method, args),
    }
}

/// `json.dumps(value, ensure_ascii=False, …)`: order of keys kept, nothing escaped for HTML.
fn tojson(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let style = JsonStyle {
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent: match kwargs.get::<Option<Value>>("indent")? {
            None => None,
            Some(value) if value.is_none() => None,
            Some(value) => match value.as_str() {
                Some(text) => Some(text.to_owned()),
                None => Some(" ".repeat(usize::try_from(value)?.min(64))),
            },
        },
        separators: kwargs.get::<Option<Vec<String>>>("separators")?,
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    python::json(value, &style)
}

fn strftime(format: &str, now: DateTime) -> Result<String, Error> {
    let failed = |error: jiff::Error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}"));
    jiff::fmt::strtime::format(format, now).map_err(failed)
}
