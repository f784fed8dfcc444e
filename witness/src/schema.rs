//! JSON Schemas of the files of this crate, generated from the types.

use schemars::schema_for;

use crate::{Artifact, Observed};

/// Makes a schema out of a type.
pub type Generate = fn() -> schemars::Schema;

/// File names in `witness/schema/`, each with what generates it.
pub const SCHEMAS: [(&str, Generate); 2] =
    [("artifact.v1.schema.json", || schema_for!(Artifact)), ("observed.v1.schema.json", || schema_for!(Observed))];

/// A schema as it is checked in.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn schema_text(generate: Generate) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string_pretty(&generate())? + "\n")
}
