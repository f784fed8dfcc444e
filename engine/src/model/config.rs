//! Checked reading of the fields of a `config.json`.
//!
//! A field that is `null` counts as absent, as it does for transformers' readers.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::Path;

use serde_json::{Map, Value};

use super::error::ModelError;

/// A `config.json`, or an object inside one.
#[derive(Clone)]
pub(super) struct Config<'a> {
    path: &'a Path,
    /// What stands in front of a field's name in errors: nothing, or the object's own name and a dot.
    prefix: String,
    fields: &'a Map<String, Value>,
}

impl<'a> Config<'a> {
    pub(super) fn new(path: &'a Path, fields: &'a Map<String, Value>) -> Self {
        Self { path, prefix: String::new(), fields }
    }

    /// All names, also of fields that are `null`.
    pub(super) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.fields.keys().map(String::as_str)
    }

    /// The value of a field that is there and not `null`.
    pub(super) fn get(&self, field: &str) -> Option<&'a Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    /// An object inside this one.
    pub(super) fn object(&self, field: &str) -> Result<Option<Config<'a>>, ModelError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Object(fields)) => {
                Ok(Some(Config { path: self.path, prefix: format!("{}{field}.", self.prefix), fields }))
            }
            Some(other) => Err(self.wrong(field, other, "an object or null")),
        }
    }

    /// A whole number within `range`, or `None` where the field is absent.
    pub(super) fn optional_usize(
        &self,
        field: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let number =
            value.as_u64().and_then(|number| usize::try_from(number).ok()).filter(|number| range.contains(number));
        number.map(Some).ok_or_else(|| self.wrong(field, value, whole_number(&range)))
    }

    /// A whole number within `range`.
    pub(super) fn usize(&self, field: &str, range: RangeInclusive<usize>) -> Result<usize, ModelError> {
        self.any_usize(&[field], range)
    }

    /// A whole number that goes by one of several names. Where more than one is there they must agree.
    pub(super) fn any_usize(&self, fields: &[&str], range: RangeInclusive<usize>) -> Result<usize, ModelError> {
        let mut found: Option<(&str, usize)> = None;
        for &field in fields {
            let Some(value) = self.optional_usize(field, range.clone())? else { continue };
            match found {
                Some((first, number)) if number != value => {
                    return Err(self.wrong(field, value, format!("{number}, the value of {}{first}", self.prefix)));
                }
                _ => found = Some((field, value)),
            }
        }
        found.map(|(_, value)| value).ok_or_else(|| self.missing(&fields.join(" or "), whole_number(&range)))
    }

    /// A finite number above 0, or `None` where the field is absent.
    pub(super) fn optional_positive(&self, field: &str) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite() && *number > 0.0);
        number.map(Some).ok_or_else(|| self.wrong(field, value, "a number above 0"))
    }

    /// A finite number above 0.
    pub(super) fn positive(&self, field: &str) -> Result<f64, ModelError> {
        self.optional_positive(field)?.ok_or_else(|| self.missing(field, "a number above 0"))
    }

    /// True or false; `default` where the field is absent.
    pub(super) fn bool_or(&self, field: &str, default: bool) -> Result<bool, ModelError> {
        match self.get(field) {
            None => Ok(default),
            Some(Value::Bool(value)) => Ok(*value),
            Some(other) => Err(self.wrong(field, other, "true or false")),
        }
    }

    /// A list of texts, or `None` where the field is absent.
    pub(super) fn optional_strs(&self, field: &str) -> Result<Option<Vec<&'a str>>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let texts = value.as_array().and_then(|items| items.iter().map(Value::as_str).collect());
        texts.map(Some).ok_or_else(|| self.wrong(field, value, "a list of texts"))
    }

    /// A text, or `None` where the field is absent.
    pub(super) fn optional_str(&self, field: &str) -> Result<Option<&'a str>, ModelError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong(field, other, "a text")),
        }
    }

    /// A list of whole numbers below `limit`; a single number counts as a list of one, an absent field as none.
    pub(super) fn indices(&self, field: &str, limit: usize) -> Result<Vec<usize>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(Vec::new()) };
        let items = match value {
            Value::Array(items) => items.as_slice(),
            single => std::slice::from_ref(single),
        };
        let index = |item: &Value| {
            item.as_u64().and_then(|number| usize::try_from(number).ok()).filter(|&number| number < limit)
        };
        items
            .iter()
            .map(|item| index(item).ok_or_else(|| self.wrong(field, value, format!("whole numbers below {limit}"))))
            .collect()
    }

    /// Refuses a field whose value is not one that is supported.
    pub(super) fn require(&self, supported: bool, field: &str, expected: impl Display) -> Result<(), ModelError> {
        if supported {
            return Ok(());
        }
        let found = self.fields.get(field).map_or_else(|| "absent".to_owned(), shorten);
        Err(ModelError::Unsupported {
            path: self.path.to_owned(),
            field: format!("{}{field}", self.prefix),
            found,
            expected: expected.to_string(),
        })
    }

    pub(super) fn wrong(&self, field: &str, found: impl Display, expected: impl Display) -> ModelError {
        ModelError::Wrong {
            path: self.path.to_owned(),
            field: format!("{}{field}", self.prefix),
            found: shorten(found),
            expected: expected.to_string(),
        }
    }

    pub(super) fn missing(&self, field: &str, expected: impl Display) -> ModelError {
        ModelError::Missing {
            path: self.path.to_owned(),
            field: format!("{}{field}", self.prefix),
            expected: expected.to_string(),
        }
    }
}

fn whole_number(range: &RangeInclusive<usize>) -> String {
    format!("a whole number from {} to {}", range.start(), range.end())
}

/// A value for an error message: a config can hold one of megabytes.
fn shorten(value: impl Display) -> String {
    const MAX_CHARS: usize = 80;
    let text = value.to_string();
    match text.char_indices().nth(MAX_CHARS) {
        None => text,
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}
