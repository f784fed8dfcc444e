//! Hashing an identity, and naming the fields in which two differ.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::schema::Identity;
use crate::{Error, Result, Sha256};

/// A field in which two identities, or other values, differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FieldDifference {
    /// The field, such as `precision.experts` or `checkpoint.shards["model.safetensors"]`.
    pub path: String,
    /// Its value in the first; absent where the first has no such field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub a: Option<Value>,
    /// Its value in the second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub b: Option<Value>,
}

impl Identity {
    /// SHA-256 of the identity's canonical JSON.
    ///
    /// # Errors
    /// [`Error::NotCanonical`] if a number is not finite or is an integer above 2^53.
    pub fn hash(&self) -> Result<Sha256> {
        let bytes = crate::hash::canonical(self)?;
        // Two byte counts that a double cannot tell apart must not share a hash.
        let read: Self = serde_json::from_slice(&bytes).map_err(|error| Error::NotCanonical(error.to_string()))?;
        if read == *self {
            Ok(Sha256::of(&bytes))
        } else {
            Err(Error::NotCanonical("the identity reads back changed".to_owned()))
        }
    }
}

/// The fields in which two identities, or two values of another type, differ, in the order of their names; empty for equal ones.
///
/// # Errors
/// [`Error::NotCanonical`] if a value cannot be written as JSON.
pub fn diff<T: Serialize>(a: &T, b: &T) -> Result<Vec<FieldDifference>> {
    let value = |value| serde_json::to_value(value).map_err(|error| Error::NotCanonical(error.to_string()));
    let mut differences = Vec::new();
    compare("", Some(&value(a)?), Some(&value(b)?), &mut differences);
    Ok(differences)
}

fn compare(path: &str, a: Option<&Value>, b: Option<&Value>, differences: &mut Vec<FieldDifference>) {
    match (a, b) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => compare_objects(path, a, b, differences),
        (a, b) if a == b => {}
        (a, b) => differences.push(FieldDifference { path: path.to_owned(), a: a.cloned(), b: b.cloned() }),
    }
}

fn compare_objects(path: &str, a: &Map<String, Value>, b: &Map<String, Value>, differences: &mut Vec<FieldDifference>) {
    let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        compare(&join(path, key), a.get(key), b.get(key), differences);
    }
}

fn join(path: &str, key: &str) -> String {
    let plain = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    match (plain, path) {
        (true, "") => key.to_owned(),
        (true, path) => format!("{path}.{key}"),
        (false, path) => format!("{path}[{key:?}]"),
    }
}
