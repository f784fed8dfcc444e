//! Pinned texts, and what is cut from them.
//!
//! A prompt set is six books, pinned in `fixtures/corpus/manifest.toml` (`manifest.rs`), found in a folder or by cargo
//! (`locate.rs`), brought to one canonical form (`canonical.rs`) and checked (`book.rs`). Every book is divided: timed
//! prompts, warm-up text and heatmaps come from regions that do not touch. `prompts.rs` cuts prompts of exact length. The set
//! of random token ids has no books.
//!
//! Invariant: text of a [`Region::Heatmap`] never reaches a prompt, and warm-up text is never timed.

mod book;
mod canonical;
mod locate;
mod manifest;
mod prompts;

pub use book::{Book, CorpusError, Region, TextSpan, check_disjoint};
pub use locate::CORPUS_DIR_VARIABLE;
pub use manifest::{BookPin, Manifest, PromptSet};
pub use prompts::{Prompt, PromptCutter, PromptError, PromptUse};

use crate::repository::Repository;

/// The books of one prompt set, checked; none for random token ids.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// Which set.
    pub set: PromptSet,
    /// Its books, in the manifest's order.
    pub books: Vec<Book>,
}

impl Corpus {
    /// Finds, reads and checks the books of `set`.
    ///
    /// # Errors
    /// When they are not found, cannot be read, or are not the pinned ones.
    pub fn load(set: PromptSet, repository: &Repository) -> Result<Self, CorpusError> {
        let manifest = manifest::Manifest::read(repository)?;
        let Some(pins) = manifest.set(set) else { return Ok(Corpus { set, books: Vec::new() }) };
        let folder = locate::folder(set, pins, repository)?;
        let books = pins.books.iter().map(|pin| Book::read(&folder.join(&pin.file), pin)).collect::<Result<_, _>>()?;
        Ok(Corpus { set, books })
    }
}

#[cfg(test)]
mod tests;
