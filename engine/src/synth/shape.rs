//! From a shape, the `config.json` of a real model, to the `config.json` of a synthetic one.

use std::path::Path;

use serde_json::{Map, Value};

use super::error::SynthError;
use super::recipe::{FIELD, Recipe, SyntheticRecord};

/// The field that says how many layers there are, and those that say something of each.
const LAYERS: &str = "num_hidden_layers";
const LAYER_LISTS: [&str; 2] = ["layer_types", "mlp_only_layers"];

/// A shape: its name and its `config.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// As `qwen3-30b-a3b`.
    pub name: String,
    fields: Map<String, Value>,
}

impl Shape {
    /// Reads a shape. `path` says where the bytes come from.
    ///
    /// # Errors
    /// Bytes that are no JSON object.
    pub fn parse(name: &str, json: &[u8], path: &Path) -> Result<Self, SynthError> {
        let fields = serde_json::from_slice(json).map_err(|error| SynthError::Malformed {
            path: path.to_owned(),
            found: error.to_string(),
            expected: "a model's configuration, as a JSON object".to_owned(),
        })?;
        Ok(Self { name: name.to_owned(), fields })
    }

    /// The same model with its first `layers` layers.
    ///
    /// # Errors
    /// No layer, or more than the shape has.
    pub fn with_layers(mut self, layers: usize) -> Result<Self, SynthError> {
        let all = self.fields.get(LAYERS).and_then(Value::as_u64).unwrap_or(0);
        if layers == 0 || layers as u64 > all {
            return Err(SynthError::Recipe {
                what: "the number of layers",
                found: layers.to_string(),
                expected: format!("1 to {all}, as {} has", self.name),
            });
        }
        self.fields.insert(LAYERS.to_owned(), layers.into());
        for field in LAYER_LISTS {
            match self.fields.get_mut(field) {
                Some(Value::Array(kinds)) if kinds.iter().all(Value::is_string) => kinds.truncate(layers),
                Some(Value::Array(indices)) => indices.retain(|index| index.as_u64() < Some(layers as u64)),
                _ => {}
            }
        }
        Ok(self)
    }

    /// `config.json` of the synthetic model.
    pub(super) fn config(&self, recipe: &Recipe) -> serde_json::Result<Vec<u8>> {
        let mut fields = self.fields.clone();
        fields.insert(FIELD.to_owned(), serde_json::to_value(SyntheticRecord::new(&self.name, recipe))?);
        let mut json = serde_json::to_vec_pretty(&fields)?;
        json.push(b'\n');
        Ok(json)
    }
}
