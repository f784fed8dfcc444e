//! What somebody else answered to an artifact's prompts.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::artifact::{Artifact, Binding, Position};
use crate::error::WitnessError;
use crate::file;
use crate::top_k::TopK;

/// Answers to an artifact's prompts, to be judged by it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Observed {
    /// Version of this schema: 1.
    pub schema_version: u32,
    /// SHA-256 of the artifact that was replayed.
    pub artifact_sha256: String,
    /// Who answered, and how it was set up.
    pub runtime: String,
    /// As many and in the same order as the artifact's.
    pub prompts: Vec<ObservedPrompt>,
}

/// Answers to one prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ObservedPrompt {
    /// The prompt's name.
    pub name: String,
    /// Its own greedy continuation.
    pub greedy_token_ids: Vec<u32>,
    /// The likeliest tokens at each greedy step of the witness, given the witness's tokens before it.
    pub teacher_forced: Vec<TopK>,
    /// The likeliest tokens at the artifact's positions inside the prompt.
    pub prefill: Vec<Position>,
}

impl Observed {
    /// Reads and checks an observation of `artifact`.
    ///
    /// # Errors
    /// A file that cannot be read, is not of the schema or of another version of it, is of another artifact, or contradicts
    /// itself.
    pub fn read(path: &Path, artifact: &Artifact, binding: &Binding) -> Result<Self, WitnessError> {
        let observed: Self = file::parse(path, &file::read(path)?)?;
        if observed.artifact_sha256 != binding.sha256 {
            return Err(WitnessError::Foreign {
                path: path.to_owned(),
                what: "artifact",
                found: observed.artifact_sha256,
                expected: binding.sha256.clone(),
            });
        }
        for prompt in &observed.prompts {
            let tops = prompt.teacher_forced.iter().chain(prompt.prefill.iter().map(|position| &position.top));
            if let Some(id) = prompt.greedy_token_ids.iter().find(|&&id| id >= artifact.model.vocab_size) {
                return Err(WitnessError::Inconsistent {
                    path: path.to_owned(),
                    place: format!("prompt {:?}: greedy_token_ids", prompt.name),
                    found: id.to_string(),
                    expected: format!("ids below vocab_size, {}", artifact.model.vocab_size),
                });
            }
            for top in tops {
                if let Some((found, expected)) = top.problem(artifact.top_k, artifact.model.vocab_size) {
                    let place = format!("prompt {:?}", prompt.name);
                    return Err(WitnessError::Inconsistent { path: path.to_owned(), place, found, expected });
                }
            }
        }
        Ok(observed)
    }
}
