//! The schema of `fixtures/corpus/manifest.toml`.

use super::CorpusError;
use crate::repository::Repository;
use assay_ledgers::Sha256;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Where the manifest lies, under the repository's root. Its own folder is what `package.manifest` is relative to.
pub(super) const MANIFEST: &str = "fixtures/corpus/manifest.toml";
/// The version of the form that this code reads.
const FORMAT: u32 = 1;

/// Which six books.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
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
pub(super) struct Manifest {
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

impl BookPin {
    /// The book's page at Project Gutenberg.
    pub fn url(&self) -> String {
        format!("https://www.gutenberg.org/ebooks/{}", self.gutenberg)
    }
}

impl Manifest {
    pub(super) fn read(repository: &Repository) -> Result<Self, CorpusError> {
        let path = repository.path(MANIFEST);
        let text = std::fs::read_to_string(&path).map_err(|source| CorpusError::Read { path: path.clone(), source })?;
        let invalid = |reason: String| CorpusError::Manifest { path: path.clone(), reason };
        let manifest: Manifest = toml::from_str(&text).map_err(|error| invalid(error.to_string()))?;
        if manifest.format != FORMAT {
            return Err(invalid(format!("format {}, expected {FORMAT}", manifest.format)));
        }
        if [&manifest.packaged, &manifest.six].iter().any(|set| set.books.is_empty()) {
            return Err(invalid("a set without books".to_owned()));
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
