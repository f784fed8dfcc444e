//! What is scored.

use crate::corpus::{Corpus, PromptCutter, PromptSet, Region};
use crate::repository::Repository;
use anyhow::{Context, ensure};
use assay_engine::checkpoint::tokenizer::Tokenizer;
use assay_engine::file;
use assay_engine::json::UniqueMap;
use assay_ledgers::Sha256;
use std::collections::BTreeMap;
use std::path::Path;

/// Texts from each book of a prompt set: 24 of them, more than the 20 that a comparison needs.
const PER_BOOK: usize = 4;

/// Tokens of each: one full window.
const TOKENS: usize = 2048;

/// Largest file of token ids that is read.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// One document.
#[derive(Debug, Clone)]
pub struct Document {
    /// Its name, unique in its set.
    pub name: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
}

/// A set of documents, with its place in an identity.
#[derive(Debug, Clone)]
pub struct Documents {
    /// Name of the set.
    pub set: String,
    /// Hash of every file or text.
    pub texts: BTreeMap<String, Sha256>,
    /// Whether text went through the tokenizer.
    pub tokenized: bool,
    /// The documents.
    pub documents: Vec<Document>,
}

impl Documents {
    /// From a JSON object of token-id lists.
    ///
    /// # Errors
    /// When the file cannot be read, is no such object, or a list is empty of targets.
    pub fn from_token_ids(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let text = file::read(path, MAX_FILE_BYTES)?;
        let UniqueMap(lists): UniqueMap<Vec<u32>> = serde_json::from_slice(&text)
            .with_context(|| format!("{name}: expected a JSON object of token-id lists"))?;
        ensure!(!lists.is_empty(), "{name}: no list of token ids, expected at least one");
        for (document, tokens) in &lists {
            ensure!(tokens.len() >= 2, "{name}: {document:?} has {} tokens, expected at least 2", tokens.len());
        }
        let file = path.file_name().map_or_else(|| name.to_string(), |file| file.to_string_lossy().into_owned());
        Ok(Documents {
            set: "token ids".to_owned(),
            texts: BTreeMap::from([(file, Sha256::of(&text))]),
            tokenized: false,
            documents: lists.into_iter().map(|(name, tokens)| Document { name, tokens }).collect(),
        })
    }

    /// The first `count` tokens of each document, or all of a shorter one.
    #[must_use]
    pub fn first_tokens(mut self, count: usize) -> Self {
        self.documents.iter_mut().for_each(|document| document.tokens.truncate(count));
        self
    }

    /// Out of separate places of every book of a prompt set.
    ///
    /// # Errors
    /// When the texts are missing or not the pinned ones, or too short.
    pub fn from_set(set: PromptSet, repository: &Repository, tokenizer: &Tokenizer) -> anyhow::Result<Self> {
        let corpus = Corpus::load(set, repository)?;
        let prompts = PromptCutter::new(&corpus, tokenizer).spread(Region::Timed, PER_BOOK, TOKENS)?;
        let texts = corpus.books.iter().map(|book| (book.file.clone(), book.canonical_sha256)).collect();
        let documents = prompts
            .into_iter()
            .map(|prompt| Document {
                name: format!("{}@{}", prompt.span.book, prompt.span.start),
                tokens: prompt.tokens,
            })
            .collect();
        Ok(Documents { set: set.name().to_owned(), texts, tokenized: true, documents })
    }
}
