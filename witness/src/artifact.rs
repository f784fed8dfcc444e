//! What the witness answered: schema version 1.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::WitnessError;
use crate::file;
use crate::gate::Weights;
use crate::top_k::TopK;

/// Limits on what a file may ask for.
const MAX_PROMPTS: usize = 10_000;
const MAX_TOP_K: usize = 1_000;
/// Experts as they are in the checkpoint.
const UNQUANTISED: &str = "bf16";

/// Answers of an independent implementation to exact token ids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Artifact {
    /// Version of this schema: 1.
    pub schema_version: u32,
    /// The weights.
    pub model: ModelFingerprint,
    /// The tokenizer that made the ids.
    pub tokenizer: TokenizerFingerprint,
    /// Who answered, and how it was set up.
    pub witness: Witness,
    /// How many of the likeliest tokens each position has (all of them where the vocabulary is smaller).
    pub top_k: usize,
    /// The prompts.
    pub prompts: Vec<Prompt>,
}

/// Exactly which weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelFingerprint {
    /// What the checkpoint is called; decides nothing.
    pub name: String,
    /// SHA-256 of every safetensors file, by file name: 64 lowercase hexadecimal digits.
    pub weights_sha256: BTreeMap<String, String>,
    /// Tokens of the model's vocabulary.
    pub vocab_size: u32,
    /// What the routed experts' weights were rounded to before the witness got them: `bf16` (as in the checkpoint) or an
    /// encoding of the expert cache, such as `int4-search`.
    pub experts: String,
}

/// Exactly which tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenizerFingerprint {
    /// SHA-256 of `tokenizer.json`.
    pub sha256: String,
}

/// Who answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Witness {
    /// The program, such as `llama.cpp`.
    pub runtime: String,
    /// Package and version that it came in.
    pub package: String,
    /// How it held the weights and computed, such as `BF16 weights widened to F32, F32 KV`.
    pub arithmetic: String,
    /// SHA-256 of the file that it loaded.
    pub file_sha256: String,
    /// Processor threads.
    pub threads: u32,
}

/// One prompt and the answer to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    /// Its name, once in the artifact.
    pub name: String,
    /// Where its text is from; decides nothing.
    pub source: String,
    /// What went in.
    pub input_token_ids: Vec<u32>,
    /// What came out, greedily, token by token.
    pub greedy: Vec<Step>,
    /// Predictions inside the prompt, by rising position; the one after its last token is the first of `greedy`.
    pub prefill: Vec<Position>,
}

/// One greedy step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The token that was chosen: the first of `top`.
    pub token_id: u32,
    /// The likeliest tokens.
    pub top: TopK,
}

/// A prediction inside the prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// Index of the last input token that the prediction has seen.
    pub position: usize,
    /// The likeliest tokens after it.
    pub top: TopK,
}

/// What an artifact must be of, and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The file.
    pub path: PathBuf,
    /// SHA-256 of its bytes.
    pub sha256: String,
}

impl Artifact {
    /// Reads and checks an artifact.
    ///
    /// # Errors
    /// A file that cannot be read, is not of the schema or of another version of it, or contradicts itself.
    pub fn read(path: &Path) -> Result<(Self, Binding), WitnessError> {
        let bytes = file::read(path)?;
        let artifact: Self = file::parse(path, &bytes)?;
        artifact.check(path)?;
        let sha256 = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((artifact, Binding { path: path.to_owned(), sha256 }))
    }

    /// Refuses an artifact of other weights or another tokenizer. `experts` is what the routed experts that are judged were
    /// rounded to; the answer says how they compare with the witness's.
    ///
    /// # Errors
    /// [`WitnessError::Foreign`] with both fingerprints.
    pub fn check_fingerprints(
        &self,
        path: &Path,
        weights_sha256: &BTreeMap<String, String>,
        tokenizer_sha256: Option<&str>,
        experts: &str,
    ) -> Result<Weights, WitnessError> {
        let foreign = |what, found: String, expected: String| WitnessError::Foreign {
            path: path.to_owned(),
            what,
            found,
            expected,
        };
        if self.model.weights_sha256 != *weights_sha256 {
            return Err(foreign("checkpoint", listed(&self.model.weights_sha256), listed(weights_sha256)));
        }
        if tokenizer_sha256 != Some(self.tokenizer.sha256.as_str()) {
            let expected =
                tokenizer_sha256.map_or("without one".to_owned(), |sha256| format!("tokenizer.json {sha256}"));
            return Err(foreign("tokenizer", format!("tokenizer.json {}", self.tokenizer.sha256), expected));
        }
        if self.model.experts == experts {
            return Ok(Weights::Same);
        }
        if self.model.experts == UNQUANTISED {
            return Ok(Weights::Int4AgainstBf16);
        }
        Err(foreign("experts in", self.model.experts.clone(), experts.to_owned()))
    }

    /// Refuses an artifact that gives the model another vocabulary than it has.
    ///
    /// # Errors
    /// [`WitnessError::Inconsistent`].
    pub fn check_vocab_size(&self, path: &Path, vocab_size: usize) -> Result<(), WitnessError> {
        if self.model.vocab_size as usize == vocab_size {
            return Ok(());
        }
        Err(WitnessError::Inconsistent {
            path: path.to_owned(),
            place: "model.vocab_size".to_owned(),
            found: self.model.vocab_size.to_string(),
            expected: format!("{vocab_size}, as the checkpoint with these weights has it"),
        })
    }

    /// Tokens of the longest prompt with its answer.
    pub fn context_tokens(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.input_token_ids.len() + prompt.greedy.len()).max().unwrap_or(0)
    }

    fn check(&self, path: &Path) -> Result<(), WitnessError> {
        let wrong = |place: &str, found: String, expected: &str| WitnessError::Inconsistent {
            path: path.to_owned(),
            place: place.to_owned(),
            found,
            expected: expected.to_owned(),
        };
        if !(1..=MAX_PROMPTS).contains(&self.prompts.len()) {
            return Err(wrong("prompts", format!("{} of them", self.prompts.len()), "1 to 10000"));
        }
        if !(2..=MAX_TOP_K).contains(&self.top_k) {
            return Err(wrong("top_k", self.top_k.to_string(), "2 to 1000"));
        }
        let hashes = self.model.weights_sha256.values().chain([&self.tokenizer.sha256, &self.witness.file_sha256]);
        if let Some(hash) = hashes.into_iter().find(|hash| !is_sha256(hash)) {
            return Err(wrong("a fingerprint", format!("{hash:?}"), "64 lowercase hexadecimal digits"));
        }
        if self.model.weights_sha256.is_empty() {
            return Err(wrong("model.weights_sha256", "no file".to_owned(), "at least one"));
        }
        let mut names = BTreeSet::new();
        for prompt in &self.prompts {
            if !names.insert(&prompt.name) {
                return Err(wrong("prompts", format!("{:?} twice", prompt.name), "each name once"));
            }
            if let Some((place, found, expected)) = prompt.problem(self.top_k, self.model.vocab_size) {
                return Err(wrong(&format!("prompt {:?}: {place}", prompt.name), found, &expected));
            }
        }
        Ok(())
    }
}

impl Prompt {
    /// The first thing that is wrong: where, what was found, what was expected.
    fn problem(&self, top_k: usize, vocab_size: u32) -> Option<(String, String, String)> {
        let tokens = self.input_token_ids.len();
        let at_least_one = || "at least one".to_owned();
        if tokens == 0 {
            return Some(("input_token_ids".to_owned(), "no token".to_owned(), at_least_one()));
        }
        if self.greedy.is_empty() {
            return Some(("greedy".to_owned(), "no step".to_owned(), at_least_one()));
        }
        if let Some(id) = self.input_token_ids.iter().find(|&&id| id >= vocab_size) {
            return Some(("input_token_ids".to_owned(), id.to_string(), format!("ids below vocab_size, {vocab_size}")));
        }
        for (index, step) in self.greedy.iter().enumerate() {
            let place = || format!("greedy[{index}]");
            if let Some((found, expected)) = step.top.problem(top_k, vocab_size) {
                return Some((place(), found, expected));
            }
            if step.top.first() != Some(step.token_id) {
                let found = format!("token_id {} where {:?} is likeliest", step.token_id, step.top.first());
                return Some((place(), found, "the likeliest".to_owned()));
            }
        }
        for (index, position) in self.prefill.iter().enumerate() {
            let place = || format!("prefill[{index}]");
            if let Some((found, expected)) = position.top.problem(top_k, vocab_size) {
                return Some((place(), found, expected));
            }
            let rises = index == 0 || self.prefill[index - 1].position < position.position;
            if !rises || position.position >= tokens - 1 {
                let expected = format!("rising positions before the last of {tokens} tokens");
                return Some((place(), format!("position {}", position.position), expected));
            }
        }
        None
    }
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// A set of files for a message.
fn listed(files: &BTreeMap<String, String>) -> String {
    /// Files that a message names; the largest checkpoints have hundreds.
    const SHOWN: usize = 3;
    let mut shown: Vec<String> = files.iter().take(SHOWN).map(|(name, sha256)| format!("{name} {sha256}")).collect();
    if files.len() > SHOWN {
        shown.push(format!("{} more", files.len() - SHOWN));
    }
    shown.join(", ")
}
