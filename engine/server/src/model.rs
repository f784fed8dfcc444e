//! What of a checkpoint is fixed while it is served.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use assay_engine::ModelFolder;
use assay_engine::checkpoint::MAX_CONFIG_BYTES;
use assay_engine::checkpoint::tokenizer::{Tokenizer, TokenizerError};
use assay_engine::file::{self, FileError};
use minijinja::value::Value;
use serde::Deserialize;

use crate::template::{Chat, ChatTemplate, TemplateError, TemplateFileError, TemplateSource};
use crate::tools::Grammar;

/// Files that name end tokens.
const END_FILES: [&str; 2] = ["generation_config.json", "config.json"];

/// Why a checkpoint cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Its tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Its template's file.
    #[error(transparent)]
    TemplateFile(#[from] TemplateFileError),
    /// Its template.
    #[error("{path}: {source}")]
    Template {
        /// The file that it is in.
        path: PathBuf,
        /// Why.
        source: TemplateError,
    },
    /// A file of it.
    #[error(transparent)]
    File(#[from] FileError),
}

/// What handlers know of the model.
#[derive(Debug)]
pub struct ServedModel {
    /// The name that requests use.
    pub id: String,
    /// Fingerprint of the checkpoint.
    pub checkpoint_sha256: String,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
    /// Text to ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template, where the checkpoint has one.
    pub template: Option<ChatTemplate>,
    /// The form of its tool calls, where it is known.
    pub grammar: Option<Grammar>,
    /// Tokens that end a text.
    pub end_ids: Arc<[u32]>,
    /// Tokens that end a chat's answer: those, and what the template writes behind an answer.
    pub chat_end_ids: Arc<[u32]>,
    /// Ids below this exist.
    pub vocab_size: usize,
    /// The longest sequence.
    pub context_tokens: usize,
    /// The longest prompt.
    pub max_prompt_tokens: usize,
}

/// What both files may say of end tokens.
#[derive(Debug, Default, Deserialize)]
struct EndConfig {
    eos_token_id: Option<EndIds>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum EndIds {
    One(u32),
    Several(Vec<u32>),
}

impl ServedModel {
    /// Reads what a checkpoint's folder says; `id` is its name for clients, `limits` the context and the longest prompt in tokens.
    ///
    /// # Errors
    /// A tokenizer that is missing or too large for the model; a template that does not compile; a file that is damaged.
    pub fn open(
        folder: &ModelFolder,
        id: String,
        (context_tokens, max_prompt_tokens): (usize, usize),
    ) -> Result<Self, ModelError> {
        let (dir, vocab_size) = (folder.checkpoint.dir(), folder.spec.vocab_size);
        let tokenizer = Tokenizer::open(dir)?;
        tokenizer.check_vocab_size(vocab_size)?;
        let source = TemplateSource::read(dir)?;
        let compile = |(path, text): &(PathBuf, String)| {
            let wrong = |source| ModelError::Template { path: path.clone(), source };
            ChatTemplate::new(text, &source.special_tokens).map_err(wrong)
        };
        let template = source.template.as_ref().map(compile).transpose()?;
        let mut end_ids = end_ids(dir)?;
        end_ids.extend(source.special_tokens.get("eos_token").and_then(|token| tokenizer.token_id(token)));
        let mut chat_end_ids = end_ids.clone();
        chat_end_ids.extend(template.as_ref().and_then(|template| turn_end(template, &tokenizer)));
        let unique = |mut ids: Vec<u32>| {
            ids.sort_unstable();
            ids.dedup();
            Arc::from(ids)
        };
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Ok(Self {
            id,
            checkpoint_sha256: folder.sha256(),
            created,
            grammar: template.as_ref().and_then(ChatTemplate::grammar),
            tokenizer: Arc::new(tokenizer),
            template,
            end_ids: unique(end_ids),
            chat_end_ids: unique(chat_end_ids),
            vocab_size,
            context_tokens,
            max_prompt_tokens,
        })
    }
}

/// End tokens of the first file that names any.
fn end_ids(dir: &Path) -> Result<Vec<u32>, ModelError> {
    for name in END_FILES {
        let path = dir.join(name);
        if !path.exists() {
            continue;
        }
        let text = file::read(&path, MAX_CONFIG_BYTES)?;
        // The engine has judged config.json already; a generation config of another form names no token.
        let config: EndConfig = serde_json::from_slice(&text).unwrap_or_default();
        match config.eos_token_id {
            Some(EndIds::One(id)) => return Ok(vec![id]),
            Some(EndIds::Several(ids)) => return Ok(ids),
            None => {}
        }
    }
    Ok(Vec::new())
}

/// The token that the template writes right behind an assistant's words: what a model trained on it writes at the end of its
/// turn. A checkpoint's list of end tokens often lacks it.
fn turn_end(template: &ChatTemplate, tokenizer: &Tokenizer) -> Option<u32> {
    const WORDS: &str = "words of an answer";
    let message = |role: &str, content: &str| Value::from_pairs([("role", role), ("content", content)]);
    let chat = Chat { messages: vec![message("user", "words"), message("assistant", WORDS)], ..Chat::default() };
    let rendered = template.render(&chat).ok()?;
    let (_, behind) = rendered.rsplit_once(WORDS)?;
    let first = *tokenizer.encode(behind.trim_start()).ok()?.first()?;
    // An ordinary token (a line break, a word) may stand within an answer as well.
    tokenizer.is_special(first).then_some(first)
}
