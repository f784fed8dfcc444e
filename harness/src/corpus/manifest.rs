//! The schema of `fixtures/corpus/manifest.toml`.

use super::CorpusError;
use crate::repository::Repository;
use assay_engine::file;
use assay_ledgers::Sha256;
use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::path::{Component, Path};

/// Where the manifest lies, under the repository's root. Its own folder is what `package.manifest` is relative to.
pub(super) const MANIFEST: &str = "fixtures/corpus/manifest.toml";
/// The version of the form that this code reads.
const FORMAT: u32 = 1;
/// The largest manifest that is read, in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// The largest canonical text, in bytes. War and Peace has 3 million.
pub(super) const MAX_BOOK_BYTES: usize = 64 << 20;

/// Which six books.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum PromptSet {
    /// The six books inside the Rust crate scrunch, which cargo fetches
    Packaged,
    /// The white paper's six, from Project Gutenberg, in $ASSAY_CORPUS_DIR
    Six,
    /// Random token ids, for synthetic models
    Random,
}

impl PromptSet {
    /// Its name, as in suite files and records.
    pub fn name(self) -> &'static str {
        match self {
            PromptSet::Packaged => "packaged",
            PromptSet::Six => "six",
            PromptSet::Random => "random",
        }
    }
}

/// The whole manifest.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    format: u32,
    packaged: SetPins,
    six: SetPins,
}

/// One prompt set.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SetPins {
    /// What the books are, for messages.
    pub(super) title: String,
    /// The package that carries them.
    pub(super) package: Option<PackagePin>,
    /// The books.
    pub(super) books: Vec<BookPin>,
}

/// A package in cargo's registry that carries books.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PackagePin {
    /// A manifest that depends on the package, relative to this file's folder.
    pub(super) manifest: String,
    /// The package.
    pub(super) name: String,
    /// Its version.
    pub(super) version: String,
    /// The books' folder in it.
    pub(super) folder: String,
}

/// One pinned book.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BookPin {
    /// File name.
    pub file: String,
    /// Title.
    pub title: String,
    /// Number at Project Gutenberg.
    pub gutenberg: u32,
    /// SHA-256 of the file.
    pub sha256: Sha256,
    /// SHA-256 of the canonical text.
    pub canonical_sha256: Sha256,
    /// Bytes of the canonical text.
    pub canonical_bytes: usize,
}

impl SetPins {
    /// Books within their folder, and of a size that can be read; a package within its own.
    fn check(&self) -> Result<(), String> {
        if self.books.is_empty() {
            return Err("a set without books, expected at least one".to_owned());
        }
        let name = |book: &BookPin| Path::new(&book.file).file_name() == Some(OsStr::new(&book.file));
        if let Some(book) = self.books.iter().find(|book| !name(book)) {
            return Err(format!("a book's file is {:?}, expected a plain file name", book.file));
        }
        if let Some(book) = self.books.iter().find(|book| book.canonical_bytes > MAX_BOOK_BYTES) {
            let (file, bytes) = (&book.file, book.canonical_bytes);
            return Err(format!("canonical_bytes of {file} is {bytes}, expected at most {MAX_BOOK_BYTES}"));
        }
        let paths = self.package.iter().flat_map(|package| [&package.manifest, &package.folder]);
        let within = |path: &str| Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
        match paths.into_iter().find(|path| !within(path)) {
            None => Ok(()),
            Some(path) => Err(format!("a package's path is {path:?}, expected one that stays below its folder")),
        }
    }
}

impl BookPin {
    /// The book's page at Project Gutenberg.
    pub fn url(&self) -> String {
        format!("https://www.gutenberg.org/ebooks/{}", self.gutenberg)
    }
}

impl Manifest {
    pub(super) fn read(repository: &Repository) -> Result<Self, CorpusError> {
        let path = repository.path(MANIFEST);
        let text = file::read_text(&path, MAX_BYTES)?;
        Self::parse(&text).map_err(|reason| CorpusError::Manifest { path, reason })
    }

    /// The manifest that a text holds, or what is wrong with it.
    ///
    /// # Errors
    /// Another form, another version of it, books or packages outside their folder, a book that is too large.
    pub fn parse(text: &str) -> Result<Self, String> {
        let manifest: Manifest = toml::from_str(text).map_err(|error| error.to_string())?;
        if manifest.format != FORMAT {
            return Err(format!("format {}, expected {FORMAT}", manifest.format));
        }
        for set in [&manifest.packaged, &manifest.six] {
            set.check()?;
        }
        Ok(manifest)
    }

    /// The set's pins; `None` for one without texts.
    pub(super) fn set(&self, set: PromptSet) -> Option<&SetPins> {
        match set {
            PromptSet::Packaged => Some(&self.packaged),
            PromptSet::Six => Some(&self.six),
            PromptSet::Random => None,
        }
    }
}
