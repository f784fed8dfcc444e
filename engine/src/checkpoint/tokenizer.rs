//! Text to token ids and back, over the crate `tokenizers`.

use std::cell::Cell;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use super::error::CheckpointError;
use super::open::TOKENIZER_FILE;
use crate::file;
use crate::json;

/// The longest `tokenizer.json` that is read, in bytes. The largest public ones have some 40 MB.
const MAX_TOKENIZER_BYTES: u64 = 256 << 20;

/// Bytes of text per token that the first cut of [`Tokenizer::encode_prefix`] expects.
const FIRST_GUESS_BYTES: usize = 4;
/// Bytes that a longer cut has more at least: several words.
const MORE_BYTES: usize = 256;
/// How many times longer than the cut before it a cut may be.
const MOST_GROWTH: usize = 8;

/// Why text could not be turned into ids, or ids into text.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file could not be read.
    #[error(transparent)]
    File(#[from] CheckpointError),
    /// The file is no tokenizer.
    #[error("{path}: not a tokenizer that can be used: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What the crate `tokenizers` says.
        reason: String,
    },
    /// The tokenizer can produce ids that the model has no embedding for.
    #[error("{path}: the vocabulary reaches id {largest}, expected ids below vocab_size, {vocab_size}, of config.json")]
    Vocabulary {
        /// The file.
        path: PathBuf,
        /// The largest id.
        largest: u32,
        /// The model's vocabulary.
        vocab_size: usize,
    },
    /// An id that no token has.
    #[error(
        "token id {id} at position {position} has no token, expected ids of the tokenizer's vocabulary (largest {largest})"
    )]
    UnknownId {
        /// The id.
        id: u32,
        /// Its place in the list.
        position: usize,
        /// The largest id.
        largest: u32,
    },
    /// A text has fewer tokens than were asked for.
    #[error("the text has {found} tokens, expected at least {needed}")]
    TooShort {
        /// Tokens of the whole text.
        found: usize,
        /// Tokens that were asked for.
        needed: usize,
    },
    /// The crate `tokenizers` failed on this input.
    #[error("{path}: cannot {action}: {reason}")]
    Failed {
        /// The tokenizer's file.
        path: PathBuf,
        /// `encode` or `decode`.
        action: &'static str,
        /// What the crate says.
        reason: String,
    },
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic on this thread now would be caught and become a [`TokenizerError`]; for a program's panic hook, which
/// need not print it.
pub fn is_guarded() -> bool {
    GUARDED.get()
}

/// Calls the crate `tokenizers`, which panics on some files and texts (a normalizer that prepends nothing, for one): that is
/// an error of the file. Nothing of the crate is changed by these calls, so nothing can be left half done.
fn guard<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    let outer = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    GUARDED.set(outer);
    match result {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => {
            let words = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Err(format!("the crate tokenizers gave up: {}", words.unwrap_or("it does not say why")))
        }
    }
}

/// A checkpoint's `tokenizer.json`.
pub struct Tokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
    largest_id: u32,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The vocabulary would fill pages.
        formatter
            .debug_struct("Tokenizer")
            .field("path", &self.path)
            .field("largest_id", &self.largest_id)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads `tokenizer.json` in a checkpoint's folder. Truncation and padding that the file may ask for are switched off.
    ///
    /// # Errors
    /// When the file is missing, too large, malformed, or has no tokens.
    pub fn open(dir: &Path) -> Result<Self, TokenizerError> {
        let path = dir.join(TOKENIZER_FILE);
        let bytes = file::read(&path, MAX_TOKENIZER_BYTES).map_err(CheckpointError::from)?;
        let malformed = |reason: String| TokenizerError::Malformed { path: path.clone(), reason };
        // The crate panics where a text within is not valid JSON.
        json::check(&bytes).map_err(|error| malformed(error.to_string()))?;
        let mut inner = guard(|| tokenizers::Tokenizer::from_bytes(&bytes)).map_err(malformed)?;
        inner.with_truncation(None).map_err(|error| malformed(error.to_string()))?;
        inner.with_padding(None);
        let largest_id =
            inner.get_vocab(true).into_values().max().ok_or_else(|| malformed("its vocabulary is empty".into()))?;
        Ok(Self { path, inner, largest_id })
    }

    /// Checks that every id has a row in the model's embedding. A larger embedding is common and fine.
    ///
    /// # Errors
    /// [`TokenizerError::Vocabulary`].
    pub fn check_vocab_size(&self, vocab_size: usize) -> Result<(), TokenizerError> {
        if (self.largest_id as usize) < vocab_size {
            return Ok(());
        }
        Err(TokenizerError::Vocabulary { path: self.path.clone(), largest: self.largest_id, vocab_size })
    }

    /// The largest token id.
    pub fn largest_id(&self) -> u32 {
        self.largest_id
    }

    /// The id of a token by its content, special tokens included.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Whether an id is a special token: a mark of the format, never part of ordinary text.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.get_added_tokens_decoder().get(&id).is_some_and(|token| token.special)
    }

    /// Token ids of `text`, nothing added to it. Special tokens that the text spells out become their ids.
    ///
    /// # Errors
    /// When the crate `tokenizers` fails.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding = guard(|| self.inner.encode_fast(text, false)).map_err(|reason| self.failed("encode", reason))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The first `tokens` ids of `text`'s encoding, exactly, without encoding much more of a long text than they need.
    ///
    /// Cutting a text anywhere changes its last tokens, and with them possibly more than the last word (a run of white
    /// space is split by what follows it). So a text is cut only between a letter and a single space that a letter follows:
    /// the splitting rules in use (those of GPT-2, cl100k, o200k, Llama 3, Qwen; SentencePiece's) start a new piece there
    /// whatever comes next, and look no further ahead. A tokenizer with tokens of several words is the exception, so the
    /// result must also be the same for a longer cut; otherwise the cut grows, at last to the whole text.
    ///
    /// # Errors
    /// [`TokenizerError::TooShort`] with the number of tokens that the text has; a failure of the crate `tokenizers`.
    pub fn encode_prefix(&self, text: &str, tokens: usize) -> Result<Vec<u32>, TokenizerError> {
        self.encode_prefix_from(text, tokens, tokens.saturating_mul(FIRST_GUESS_BYTES))
    }

    /// As [`Tokenizer::encode_prefix`]; the first cut is the first safe one that has at least `first_bytes`.
    pub(super) fn encode_prefix_from(
        &self,
        text: &str,
        tokens: usize,
        first_bytes: usize,
    ) -> Result<Vec<u32>, TokenizerError> {
        let mut cut = safe_cut(text, first_bytes);
        let mut previous: Option<Vec<u32>> = None;
        loop {
            let mut ids = self.encode(&text[..cut])?;
            let (found, whole) = (ids.len(), cut == text.len());
            if found < tokens && whole {
                return Err(TokenizerError::TooShort { found, needed: tokens });
            }
            ids.truncate(tokens);
            if whole || (found >= tokens && previous.as_ref() == Some(&ids)) {
                return Ok(ids);
            }
            // By the bytes of a token so far where there are too few, and by a tenth more in any case.
            let needed = if found < tokens { cut as f64 / found.max(1) as f64 * tokens as f64 } else { cut as f64 };
            let target = (needed * 1.1) as usize + MORE_BYTES;
            cut = safe_cut(text, target.min(cut.saturating_mul(MOST_GROWTH)).max(cut + 1));
            previous = Some(ids);
        }
    }

    /// The text of `ids`, special tokens spelled out. Bytes that are no UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// An id that no token has; a failure of the crate `tokenizers`.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        if let Some((position, &id)) = ids.iter().enumerate().find(|&(_, &id)| self.inner.id_to_token(id).is_none()) {
            return Err(TokenizerError::UnknownId { id, position, largest: self.largest_id });
        }
        self.decode_known(ids)
    }

    /// Decodes token by token.
    pub fn decode_stream(&self) -> DecodeStream<&Self> {
        DecodeStream::new(self)
    }

    /// The bytes of one token, which need not be whole characters. `None` for an id that no token has.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let spelled = self.inner.id_to_token(id)?;
        let text = self.decode_known(&[id]).unwrap_or_default();
        if !text.contains(char::REPLACEMENT_CHARACTER) {
            return Some(text.into_bytes());
        }
        // SentencePiece names a byte as <0xAB>; byte-level tokens spell bytes as characters.
        let byte = spelled.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        if let Some(byte) = byte.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            return Some(vec![byte]);
        }
        let bytes: Option<Vec<u8>> = spelled.chars().map(byte_of_char).collect();
        Some(bytes.unwrap_or_else(|| text.into_bytes()))
    }

    fn decode_known(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        guard(|| self.inner.decode(ids, false)).map_err(|reason| self.failed("decode", reason))
    }

    fn failed(&self, action: &'static str, reason: String) -> TokenizerError {
        TokenizerError::Failed { path: self.path.clone(), action, reason }
    }
}

/// The byte that a character stands for in byte-level vocabularies (GPT-2's): printable Latin-1 for itself, the other 68 bytes in
/// ascending order from U+0100 on.
fn byte_of_char(char: char) -> Option<u8> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match u32::from(char) {
        code @ 0..=0xff => u8::try_from(code).ok().filter(|&byte| printable(byte)),
        code => (0..=u8::MAX).filter(|&byte| !printable(byte)).nth((code - 0x100) as usize),
    }
}

/// The first place from byte `from` on where a text can be cut without a change to the tokens in front of it: between a
/// letter and a space that a letter follows. The text's end where there is none.
pub(super) fn safe_cut(text: &str, from: usize) -> usize {
    if from >= text.len() {
        return text.len();
    }
    let start = text.ceil_char_boundary(from);
    let (mut letter, mut letter_space) = (false, false);
    for (offset, char) in text[start..].char_indices() {
        if letter_space && char.is_alphabetic() {
            // The space in front of this letter has one byte.
            return start + offset - 1;
        }
        letter_space = letter && char == ' ';
        letter = char.is_alphabetic();
    }
    text.len()
}

/// Text of a growing list of ids, each piece as soon as its characters are complete. The pieces, [`DecodeStream::finish`]'s
/// included, join to what [`Tokenizer::decode`] gives for the whole list.
#[derive(Debug)]
pub struct DecodeStream<T> {
    tokenizer: T,
    /// The ids of the last piece, then those whose text is still incomplete.
    ids: Vec<u32>,
    /// How many of `ids` belong to the last piece. They are decoded again with what follows, since some decoders treat
    /// the first token of a text differently.
    context: usize,
    /// Their text.
    context_text: String,
    /// Ids so far.
    tokens: usize,
}

impl<T: Deref<Target = Tokenizer>> DecodeStream<T> {
    /// An empty list of ids.
    pub fn new(tokenizer: T) -> Self {
        Self { tokenizer, ids: Vec::new(), context: 0, context_text: String::new(), tokens: 0 }
    }

    /// Takes the next id. Returns the text that is now complete, which is empty within a character of several tokens.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        if self.tokenizer.inner.id_to_token(id).is_none() {
            return Err(TokenizerError::UnknownId { id, position: self.tokens, largest: self.tokenizer.largest_id });
        }
        self.tokens += 1;
        self.ids.push(id);
        let text = self.tokenizer.decode_known(&self.ids)?;
        // U+FFFD at the end is most often a character whose last bytes are still to come.
        if text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        let piece = text.strip_prefix(&self.context_text).unwrap_or(&text).to_owned();
        self.ids.drain(..self.context);
        self.context = self.ids.len();
        self.context_text = self.tokenizer.decode_known(&self.ids)?;
        Ok(piece)
    }

    /// Ends the stream. Returns the text of ids that never became complete characters.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn finish(self) -> Result<String, TokenizerError> {
        let text = self.tokenizer.decode_known(&self.ids)?;
        Ok(text.strip_prefix(&self.context_text).unwrap_or(&text).to_owned())
    }
}
