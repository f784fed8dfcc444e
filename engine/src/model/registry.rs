//! The known model families.

use std::path::Path;

use serde_json::Value;

use super::config::Config;
use super::error::ModelError;
use super::families;
use super::spec::ModelSpec;
use crate::json::UniqueValue;

/// One family: Hugging Face's `model_type`, and how its config is read.
struct Family {
    model_type: &'static str,
    build: fn(&Config<'_>) -> Result<ModelSpec, ModelError>,
}

/// One line a family.
const FAMILIES: &[Family] = &[
    Family { model_type: "glm4_moe", build: families::glm4_moe::build },
    Family { model_type: "gpt_oss", build: families::gpt_oss::build },
    Family { model_type: "granitemoe", build: families::granitemoe::build },
    Family { model_type: "minimax_m2", build: families::minimax_m2::build },
    Family { model_type: "mixtral", build: families::mixtral::build },
    Family { model_type: "olmoe", build: families::olmoe::build },
    Family { model_type: "qwen2_moe", build: families::qwen2_moe::build },
    Family { model_type: "qwen3_moe", build: families::qwen3_moe::build },
];

/// Every `model_type` that can be loaded.
pub fn model_types() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.model_type)
}

/// Reads a `config.json`. `path_for_errors` says where the bytes come from.
///
/// # Errors
/// Bytes that are no JSON object, an unknown family (the error lists the known ones), a field that is missing, makes no
/// sense or asks for what is not implemented.
pub fn load_spec(config_json: &[u8], path_for_errors: &Path) -> Result<ModelSpec, ModelError> {
    let not_an_object = |found: String| ModelError::NotAnObject { path: path_for_errors.to_owned(), found };
    let fields = match serde_json::from_slice(config_json) {
        Ok(UniqueValue(Value::Object(fields))) => fields,
        Ok(_) => return Err(not_an_object("another JSON value".into())),
        Err(error) => return Err(not_an_object(format!("no JSON ({error})"))),
    };
    let config = Config::new(path_for_errors, &fields);
    let known = || format!("one of: {}", model_types().collect::<Vec<_>>().join(", "));
    let model_type = config.optional_str("model_type")?.ok_or_else(|| config.missing("model_type", known()))?;
    match FAMILIES.iter().find(|family| family.model_type == model_type) {
        Some(family) => (family.build)(&config),
        None => {
            config.require(false, "model_type", known())?;
            Err(config.wrong("model_type", model_type, known()))
        }
    }
}
