//! The keys that describe the tokenizer, from `tokenizer.json` and `tokenizer_config.json`.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

use super::error::GgufError;
use super::metadata::{ConfigExtras, IdOrIds};
use super::write::Value;
use crate::checkpoint::CheckpointError;
use crate::file;

const TOKENIZER_FILE: &str = "tokenizer.json";
const TOKENIZER_CONFIG_FILE: &str = "tokenizer_config.json";
/// As for the tokenizer that encodes text.
const MAX_TOKENIZER_BYTES: u64 = 256 << 20;
const MAX_TOKENIZER_CONFIG_BYTES: u64 = 16 << 20;

/// How text is split before merges, by regular expression, and llama.cpp's name for it.
const PRE_TOKENIZERS: &[(&str, &str)] = &[(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2",
)];

/// ggml's kinds of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenType {
    Normal = 1,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
}

#[derive(Deserialize)]
struct TokenizerFile {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    pre_tokenizer: Option<serde_json::Value>,
    model: Model,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    special: bool,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: String,
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
}

/// Older files join the two parts by a space.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Joined(String),
    Pair(String, String),
}

#[derive(Default, Deserialize)]
struct TokenizerConfig {
    #[serde(default)]
    bos_token: Option<SpecialToken>,
    #[serde(default)]
    eos_token: Option<SpecialToken>,
    #[serde(default)]
    pad_token: Option<SpecialToken>,
    #[serde(default)]
    add_bos_token: Option<bool>,
    #[serde(default)]
    chat_template: Option<serde_json::Value>,
}

/// A token's text, alone or in an object.
#[derive(Deserialize)]
#[serde(untagged)]
enum SpecialToken {
    Text(String),
    Object { content: String },
}

impl SpecialToken {
    fn content(&self) -> &str {
        match self {
            Self::Text(content) | Self::Object { content } => content,
        }
    }
}

/// The keys of `tokenizer.*` of the tokenizer in `dir`, for a model of `vocab_size` tokens.
///
/// # Errors
/// A tokenizer of another kind than byte-level BPE with a known way of splitting, or one that does not fit the model.
pub(super) fn keys(dir: &Path, vocab_size: usize, extras: &ConfigExtras) -> Result<Vec<(String, Value)>, GgufError> {
    let path = dir.join(TOKENIZER_FILE);
    let file: TokenizerFile = parse(&path, &read(&path, MAX_TOKENIZER_BYTES)?, "a tokenizer of byte-level BPE")?;
    if file.model.kind != "BPE" {
        return Err(unsupported("the tokenizer's model", &file.model.kind, "BPE"));
    }
    let config_path = dir.join(TOKENIZER_CONFIG_FILE);
    let config = if config_path.exists() {
        parse(&config_path, &read(&config_path, MAX_TOKENIZER_CONFIG_BYTES)?, "a tokenizer's configuration")?
    } else {
        TokenizerConfig::default()
    };
    let pre = pre_tokenizer(file.pre_tokenizer.as_ref())?;
    let (tokens, types) = tokens(&path, &file, vocab_size)?;
    let merges = file.model.merges.iter().map(|merge| Value::String(joined(merge))).collect();
    let mut keys = vec![
        ("tokenizer.ggml.model".to_owned(), Value::String("gpt2".to_owned())),
        ("tokenizer.ggml.pre".to_owned(), Value::String(pre.to_owned())),
        ("tokenizer.ggml.tokens".to_owned(), Value::Array(tokens)),
        ("tokenizer.ggml.token_type".to_owned(), Value::Array(types)),
        ("tokenizer.ggml.merges".to_owned(), Value::Array(merges)),
    ];
    let special = [
        ("bos", &config.bos_token, &extras.bos_token_id),
        ("eos", &config.eos_token, &extras.eos_token_id),
        ("padding", &config.pad_token, &extras.pad_token_id),
    ];
    for (name, token, configured) in special {
        if let Some(id) = special_id(&file, token.as_ref(), configured.as_ref(), vocab_size) {
            keys.push((format!("tokenizer.ggml.{name}_token_id"), Value::U32(id)));
        }
    }
    keys.push(("tokenizer.ggml.add_bos_token".to_owned(), Value::Bool(config.add_bos_token.unwrap_or(false))));
    if let Some(serde_json::Value::String(template)) = config.chat_template {
        keys.push(("tokenizer.chat_template".to_owned(), Value::String(template)));
    }
    Ok(keys)
}

/// By the token's text in `tokenizer_config.json`, else by the id in `config.json`.
fn special_id(
    file: &TokenizerFile,
    token: Option<&SpecialToken>,
    configured: Option<&IdOrIds>,
    vocab_size: usize,
) -> Option<u32> {
    let by_text = token.and_then(|token| {
        let text = token.content();
        let added = file.added_tokens.iter().find(|added| added.content == text).map(|added| added.id);
        added.or_else(|| file.model.vocab.get(text).copied())
    });
    by_text.or_else(|| configured.and_then(IdOrIds::first)).filter(|&id| (id as usize) < vocab_size)
}

/// Text and kind of every id of the model; ids without a token get a placeholder.
fn tokens(path: &Path, file: &TokenizerFile, vocab_size: usize) -> Result<(Vec<Value>, Vec<Value>), GgufError> {
    let mut table: Vec<Option<(&str, TokenType)>> = vec![None; vocab_size];
    let ordinary = file.model.vocab.iter().map(|(text, &id)| (id, text.as_str(), TokenType::Normal));
    let added = file.added_tokens.iter().map(|token| {
        let kind =
            if token.special || looks_special(&token.content) { TokenType::Control } else { TokenType::UserDefined };
        (token.id, token.content.as_str(), kind)
    });
    for (id, text, kind) in ordinary.chain(added) {
        let place = table.get_mut(id as usize).ok_or_else(|| GgufError::Malformed {
            path: path.to_owned(),
            found: format!("token {text:?} has id {id} where the model's vocabulary has {vocab_size}"),
            expected: "ids below vocab_size of config.json",
        })?;
        *place = Some((text, kind));
    }
    let entry = |(id, place): (usize, &Option<(&str, TokenType)>)| match place {
        Some((text, kind)) => (Value::String((*text).to_owned()), Value::I32(*kind as i32)),
        None => (Value::String(format!("[PAD{id}]")), Value::I32(TokenType::Unused as i32)),
    };
    Ok(table.iter().enumerate().map(entry).unzip())
}

/// Tokens that models use as control tokens although their files do not say so: `<|name|>`.
fn looks_special(text: &str) -> bool {
    text.len() > 4 && text.starts_with("<|") && text.ends_with("|>")
}

/// A space within a part would read as the space between the parts; byte-level BPE writes it as its own character.
fn joined(merge: &Merge) -> String {
    match merge {
        Merge::Joined(joined) => joined.clone(),
        Merge::Pair(first, second) => {
            format!("{} {}", first.replace(' ', "\u{120}"), second.replace(' ', "\u{120}"))
        }
    }
}

/// llama.cpp's name for the way of splitting: the regular expression decides.
fn pre_tokenizer(pre_tokenizer: Option<&serde_json::Value>) -> Result<&'static str, GgufError> {
    let expressions: Vec<&str> = pre_tokenizer.map(split_expressions).unwrap_or_default();
    let known = PRE_TOKENIZERS.iter().find(|(expression, _)| expressions == [*expression]);
    known.map(|&(_, name)| name).ok_or_else(|| {
        let found = if expressions.is_empty() { "no regular expression".to_owned() } else { expressions.join(", ") };
        let names: Vec<&str> = PRE_TOKENIZERS.iter().map(|&(_, name)| name).collect();
        unsupported("the tokenizer's way of splitting", found, format!("that of: {}", names.join(", ")))
    })
}

/// The regular expressions of the steps that split text.
fn split_expressions(step: &serde_json::Value) -> Vec<&str> {
    match step.get("type").and_then(serde_json::Value::as_str) {
        Some("Sequence") => step
            .get("pretokenizers")
            .and_then(serde_json::Value::as_array)
            .map(|steps| steps.iter().flat_map(split_expressions).collect())
            .unwrap_or_default(),
        Some("Split") => step.pointer("/pattern/Regex").and_then(serde_json::Value::as_str).into_iter().collect(),
        _ => Vec::new(),
    }
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path, bytes: &[u8], expected: &'static str) -> Result<T, GgufError> {
    serde_json::from_slice(bytes).map_err(|error| GgufError::Malformed {
        path: path.to_owned(),
        found: error.to_string(),
        expected,
    })
}

fn read(path: &Path, limit: u64) -> Result<Vec<u8>, GgufError> {
    Ok(file::read(path, limit).map_err(CheckpointError::from)?)
}

fn unsupported(what: &'static str, found: impl Into<String>, expected: impl Into<String>) -> GgufError {
    GgufError::Unsupported { what, found: found.into(), expected: expected.into() }
}
