//! Prompts of exact length, the same ones in every run.

use super::book::{Book, Region, TextSpan};
use super::{Corpus, PromptSet};
use assay_engine::checkpoint::tokenizer::{Tokenizer, TokenizerError};
use assay_engine::synth::routing::random_ids;
use assay_ledgers::Sha256 as Digest256;
use sha2::{Digest, Sha256};
use std::ops::Range;

/// Bytes that a token of English text takes at most, on average, with the vocabularies in use. A start is preferred
/// that leaves this much text; one that turns out to leave too little is passed over all the same.
const AMPLE_BYTES_PER_TOKEN: usize = 6;

/// As many stretches of random ids as the other sets have books.
const RANDOM_BOOKS: usize = 6;

/// What a prompt is for; each use has a region of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptUse {
    /// It is measured.
    Timed,
    /// It is thrown away, so that the measured one is not the first.
    WarmUp,
}

/// Token ids and where their text lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Exactly as many ids as were asked for, nothing added.
    pub tokens: Vec<u32>,
    /// The text they were cut from the front of.
    pub span: TextSpan,
}

/// Why no prompt could be cut.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// No book has that much text.
    #[error(
        "no text of prompt set {} has {needed} tokens for this use: the longest found has {longest}",
        set.name()
    )]
    TooLong {
        /// The set.
        set: PromptSet,
        /// Tokens that were asked for.
        needed: usize,
        /// Tokens of the longest text tried.
        longest: usize,
    },
    /// One stretch of a book has too little text.
    #[error("{book} has stretches of {found} tokens where {needed} are needed: ask for fewer or shorter ones")]
    StretchTooShort {
        /// The book.
        book: String,
        /// Tokens of the stretch.
        found: usize,
        /// Tokens that were asked for.
        needed: usize,
    },
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// Cuts prompts from a corpus by a model's own tokenizer.
#[derive(Debug, Clone, Copy)]
pub struct PromptCutter<'a> {
    corpus: &'a Corpus,
    tokenizer: &'a Tokenizer,
}

impl<'a> PromptCutter<'a> {
    /// A cutter for `corpus`.
    pub fn new(corpus: &'a Corpus, tokenizer: &'a Tokenizer) -> Self {
        PromptCutter { corpus, tokenizer }
    }

    /// The prompt for one repetition (from 0) of one length: a book and the start of a paragraph in it, both fixed by
    /// set, use, length and repetition. Repetitions take the books in turn. Where a text ends early, the next book's
    /// takes its place, at last from a region's very beginning.
    ///
    /// # Errors
    /// When no book's region has `tokens` tokens, or the tokenizer fails.
    pub fn cut(&self, prompt_use: PromptUse, tokens: usize, repetition: usize) -> Result<Prompt, PromptError> {
        let region = match prompt_use {
            PromptUse::Timed => Region::Timed,
            PromptUse::WarmUp => Region::WarmUp,
        };
        let books = &self.corpus.books;
        let key = format!("{}/{prompt_use:?}/{tokens}", self.corpus.set.name());
        if self.corpus.set == PromptSet::Random {
            return Ok(self.random(&format!("{key}/{repetition}"), tokens));
        }
        let first = choose(&key, books.len()) + repetition;
        let in_turn = || (0..books.len()).map(|step| &books[(first + step) % books.len()]);
        let chosen = in_turn().map(|book| {
            let starts = ample_starts(book, region, tokens);
            (book, starts[choose(&format!("{key}/{repetition}/{}", book.file), starts.len())])
        });
        let whole = in_turn().map(|book| (book, paragraph_starts(book, book.range(region))[0]));
        let mut longest = 0;
        for (book, start) in chosen.chain(whole) {
            match self.tokenize(book, start..book.range(region).end, tokens) {
                Err(PromptError::StretchTooShort { found, .. }) => longest = longest.max(found),
                result => return result,
            }
        }
        Err(PromptError::TooLong { set: self.corpus.set, needed: tokens, longest })
    }

    /// `per_book` texts of `tokens` tokens out of every book's region, from separate places: the region is divided
    /// evenly, and each text begins with a part's first paragraph and ends in it.
    ///
    /// # Errors
    /// When a part has too few tokens, or the tokenizer fails.
    pub fn spread(&self, region: Region, per_book: usize, tokens: usize) -> Result<Vec<Prompt>, PromptError> {
        if self.corpus.set == PromptSet::Random {
            let key = |index| format!("{}/{region:?}/{tokens}/{index}", self.corpus.set.name());
            return Ok((0..per_book * RANDOM_BOOKS).map(|index| self.random(&key(index), tokens)).collect());
        }
        let mut prompts = Vec::with_capacity(per_book * self.corpus.books.len());
        for book in &self.corpus.books {
            let range = book.range(region);
            let part = range.len() / per_book.max(1);
            for index in 0..per_book {
                let bytes = range.start + index * part..range.start + (index + 1) * part;
                let bytes = book.floor(bytes.start)..book.floor(bytes.end);
                let start = paragraph_starts(book, bytes.clone())[0];
                prompts.push(self.tokenize(book, start..bytes.end, tokens)?);
            }
        }
        Ok(prompts)
    }

    /// Random ids of the vocabulary. What stands for their text is the ids.
    fn random(&self, key: &str, tokens: usize) -> Prompt {
        let vocab_size = self.tokenizer.largest_id() as usize + 1;
        let ids = random_ids(choose(key, usize::MAX), tokens, vocab_size);
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let span = TextSpan {
            book: "random token ids".to_owned(),
            canonical_sha256: Digest256::of(&bytes),
            start: 0,
            end: bytes.len(),
        };
        Prompt { tokens: ids, span }
    }

    fn tokenize(&self, book: &Book, bytes: Range<usize>, needed: usize) -> Result<Prompt, PromptError> {
        match self.tokenizer.encode_prefix(book.slice(bytes.clone()), needed) {
            Ok(tokens) => Ok(Prompt { tokens, span: book.span(bytes) }),
            Err(TokenizerError::TooShort { found, needed }) => {
                Err(PromptError::StretchTooShort { book: book.file.clone(), found, needed })
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Starts that leave ample text for `tokens` tokens; where none does, the region's first.
fn ample_starts(book: &Book, region: Region, tokens: usize) -> Vec<usize> {
    let range = book.range(region);
    let last = range.end.saturating_sub(tokens.saturating_mul(AMPLE_BYTES_PER_TOKEN));
    let mut starts = paragraph_starts(book, range);
    starts.truncate(starts.iter().take_while(|&&start| start <= last).count().max(1));
    starts
}

/// Where paragraphs begin in `range`: characters after an empty line, other than white space. Never empty: without any,
/// the range's own start.
fn paragraph_starts(book: &Book, range: Range<usize>) -> Vec<usize> {
    let text = book.slice(range.clone());
    let starts: Vec<usize> = text
        .match_indices("\n\n")
        .map(|(offset, blank)| offset + blank.len())
        .filter(|&offset| text[offset..].starts_with(|first: char| !first.is_whitespace()))
        .map(|offset| range.start + offset)
        .collect();
    if starts.is_empty() { vec![range.start] } else { starts }
}

/// A choice among `count` that depends on `key` alone: the first eight bytes of its SHA-256, modulo `count`.
fn choose(key: &str, count: usize) -> usize {
    let digest = Sha256::digest(key.as_bytes());
    let number = digest.iter().take(8).fold(0u64, |number, &byte| number << 8 | u64::from(byte));
    usize::try_from(number % count.max(1) as u64).unwrap_or(0)
}
