//! Where a checkpoint's folder has its chat template and its special tokens.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use assay_engine::checkpoint::MAX_CONFIG_BYTES;
use assay_engine::file::{self, FileError};
use assay_engine::json;
use serde::Deserialize;

/// A template of its own file comes before one within `tokenizer_config.json`, as in transformers.
const TEMPLATE_FILE: &str = "chat_template.jinja";
const TOKENIZER_CONFIG_FILE: &str = "tokenizer_config.json";
/// The longest template, in bytes: large ones have some 20 kB.
const MAX_TEMPLATE_BYTES: u64 = 1 << 20;
/// The name of the template to take where there are several.
const DEFAULT: &str = "default";

/// Why a checkpoint's template could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TemplateFileError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file is not what it should be.
    #[error("{path}: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
}

/// Special tokens by the names that templates know them by: `bos_token`, `eos_token` and others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens(BTreeMap<String, String>);

impl SpecialTokens {
    /// Names and tokens.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, token)| (name.as_str(), token.as_str()))
    }

    /// The token of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

impl<N: Into<String>, T: Into<String>> FromIterator<(N, T)> for SpecialTokens {
    fn from_iter<I: IntoIterator<Item = (N, T)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, token)| (name.into(), token.into())).collect())
    }
}

/// A checkpoint's template, not compiled yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TemplateSource {
    /// The file that the template is in, and the template, where there is one.
    pub template: Option<(PathBuf, String)>,
    /// Tokens that it may name.
    pub special_tokens: SpecialTokens,
}

/// The fields of `tokenizer_config.json` that matter here; it has many more.
#[derive(Debug, Default, Deserialize)]
struct TokenizerConfig {
    chat_template: Option<Templates>,
    bos_token: Option<Token>,
    eos_token: Option<Token>,
    unk_token: Option<Token>,
    sep_token: Option<Token>,
    pad_token: Option<Token>,
    cls_token: Option<Token>,
    mask_token: Option<Token>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Several(Vec<NamedTemplate>),
}

#[derive(Debug, Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Token {
    Plain(String),
    Object { content: String },
}

impl TemplateSource {
    /// Reads what a checkpoint's folder has.
    ///
    /// # Errors
    /// When a file is there that cannot be read or is not what it should be.
    pub fn read(dir: &Path) -> Result<Self, TemplateFileError> {
        let path = dir.join(TOKENIZER_CONFIG_FILE);
        let mut config = TokenizerConfig::default();
        if path.exists() {
            let text = file::read(&path, MAX_CONFIG_BYTES)?;
            let wrong = |source| TemplateFileError::Json { path: path.clone(), source };
            json::check(&text).map_err(wrong)?;
            config = serde_json::from_slice(&text).map_err(wrong)?;
        }
        let own = dir.join(TEMPLATE_FILE);
        let template = match config.chat_template.take() {
            _ if own.exists() => {
                let text = file::read_text(&own, MAX_TEMPLATE_BYTES)?;
                Some((own, text))
            }
            Some(Templates::One(template)) => Some((path, template)),
            Some(Templates::Several(several)) => {
                several.into_iter().find(|named| named.name == DEFAULT).map(|named| (path, named.template))
            }
            None => None,
        };
        let tokens = [
            ("bos_token", config.bos_token),
            ("eos_token", config.eos_token),
            ("unk_token", config.unk_token),
            ("sep_token", config.sep_token),
            ("pad_token", config.pad_token),
            ("cls_token", config.cls_token),
            ("mask_token", config.mask_token),
        ];
        let tokens = tokens.into_iter().filter_map(|(name, token)| {
            Some((
                name,
                match token? {
                    Token::Plain(content) | Token::Object { content } => content,
                },
            ))
        });
        Ok(Self { template, special_tokens: tokens.collect() })
    }
}
