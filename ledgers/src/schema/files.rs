//! JSON Schemas of what a ledger holds, generated from the types and kept in `ledgers/schema/`.

use schemars::schema_for;

use super::{Head, Record};

/// Makes a schema out of a type.
pub type Generate = fn() -> schemars::Schema;

/// File names in `ledgers/schema/`, each with what generates it.
pub const SCHEMAS: [(&str, Generate); 2] =
    [("record.v2.schema.json", || schema_for!(Record)), ("head.schema.json", || schema_for!(Head))];

/// A schema as it is checked in.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn schema_text(generate: Generate) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string_pretty(&generate())? + "\n")
}
