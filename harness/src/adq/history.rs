//! A history of exactly as many tokens as are asked for: notes at their places, small talk between them.

use super::task::TaskError;
use assay_engine::checkpoint::tokenizer::Tokenizer;
use assay_engine::file;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

const MAX_BYTES: u64 = 1 << 20;
/// Tokens that are left to the last step, which fills up exactly.
const TAIL_TOKENS: usize = 48;
/// How often the length is corrected before it is given up.
const MAX_CORRECTIONS: usize = 64;
/// What fills up, coarsest first: a word that common tokenizers have as one token, and what is one byte or two where they have
/// not.
const FILL: [&str; 4] = [" so", " a", ".", "~"];

/// What a history is made of.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistorySpec {
    /// Of the small talk.
    pub seed: u64,
    /// What matters, in the order of places.
    pub note: Vec<Note>,
    /// What does not.
    pub small_talk: SmallTalk,
}

/// A line at its place.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Note {
    /// Share of the history in front of it, 0 to 1.
    pub at: f64,
    /// The line.
    pub text: String,
    /// Whether it still holds at the end.
    #[serde(default)]
    pub active: bool,
}

/// Words that lines of small talk are drawn from.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SmallTalk {
    who: Vec<String>,
    did: Vec<String>,
    what: Vec<String>,
    when: Vec<String>,
}

/// A history, and where its notes came to stand.
#[derive(Debug, Clone, Serialize)]
pub struct History {
    /// The text.
    #[serde(skip)]
    pub text: String,
    /// Its exact length.
    pub tokens: usize,
    /// Share of the text in front of each note, by bytes.
    pub places: Vec<f64>,
}

/// A history that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The tokenizer failed.
    #[error("cannot count tokens: {0}")]
    Counter(String),
    /// The notes alone are longer.
    #[error("the notes and little else have {found} tokens, expected at most the {wanted} that were asked for")]
    TooShort {
        /// Tokens that were asked for.
        wanted: usize,
        /// Tokens that are needed.
        found: usize,
    },
    /// This tokenizer jumps over the length.
    #[error("no text of exactly {wanted} tokens was found, the nearest has {found}")]
    NotExact {
        /// Tokens that were asked for.
        wanted: usize,
        /// Tokens that were reached.
        found: usize,
    },
}

/// Counts the tokens of texts, as a checkpoint's tokenizer has them.
pub trait Counter {
    /// Tokens of a text, nothing added to it.
    ///
    /// # Errors
    /// When the tokenizer fails, in words.
    fn count(&self, text: &str) -> Result<usize, String>;
}

impl Counter for Tokenizer {
    fn count(&self, text: &str) -> Result<usize, String> {
        Ok(self.encode(text).map_err(|error| error.to_string())?.len())
    }
}

impl Counter for super::http::HttpEndpoint {
    fn count(&self, text: &str) -> Result<usize, String> {
        self.tokens(text)
    }
}

/// Counts a text once.
pub struct Remembering<'a> {
    counter: &'a dyn Counter,
    known: RefCell<HashMap<String, usize>>,
}

impl<'a> Remembering<'a> {
    /// Around a counter.
    pub fn new(counter: &'a dyn Counter) -> Self {
        Self { counter, known: RefCell::default() }
    }
}

impl Counter for Remembering<'_> {
    fn count(&self, text: &str) -> Result<usize, String> {
        if let Some(&count) = self.known.borrow().get(text) {
            return Ok(count);
        }
        let count = self.counter.count(text)?;
        self.known.borrow_mut().insert(text.to_owned(), count);
        Ok(count)
    }
}

impl HistorySpec {
    pub(super) fn read(path: &Path) -> Result<Self, TaskError> {
        let invalid = |reason: String| TaskError::Invalid { path: path.to_owned(), reason };
        let spec: Self =
            toml::from_str(&file::read_text(path, MAX_BYTES)?).map_err(|error| invalid(error.to_string()))?;
        let SmallTalk { who, did, what, when } = &spec.small_talk;
        if [who, did, what, when].iter().any(|words| words.is_empty()) {
            return Err(invalid("small_talk has an empty list".to_owned()));
        }
        let ordered = spec.note.windows(2).all(|pair| pair[0].at <= pair[1].at);
        if !ordered || spec.note.iter().any(|note| !(0.0..1.0).contains(&note.at)) {
            return Err(invalid("notes: expected places from 0 to 1, in their order".to_owned()));
        }
        Ok(spec)
    }

    /// A history of exactly `tokens` tokens by this counter, when it is encoded alone.
    ///
    /// # Errors
    /// When the notes alone are longer, or this tokenizer has no text of that length.
    pub fn write(&self, counter: &dyn Counter, tokens: usize) -> Result<History, HistoryError> {
        let body = tokens.saturating_sub(TAIL_TOKENS);
        let (mut text, places) = self.body(counter, body)?;
        let found = counter.count(&text).map_err(HistoryError::Counter)?;
        if found >= tokens {
            return Err(HistoryError::TooShort { wanted: tokens, found });
        }
        fill(&mut text, found, counter, tokens)?;
        let places = places.iter().map(|&at| at as f64 / text.len() as f64).collect();
        Ok(History { text, tokens, places })
    }

    /// Lines up to `tokens` tokens, a little less, and the byte at which each note starts.
    fn body(&self, counter: &dyn Counter, tokens: usize) -> Result<(String, Vec<usize>), HistoryError> {
        let mut random = Random(self.seed);
        let (mut text, mut places, mut used, mut number) = (String::new(), Vec::new(), 0, 0_u64);
        let mut notes = self.note.iter().peekable();
        loop {
            let due = notes.next_if(|note| used as f64 >= note.at * tokens as f64);
            number += 1;
            let line = match due {
                Some(note) => format!("[{number}] {}\n", note.text),
                None => format!("[{number}] {}\n", self.small_talk.line(&mut random)),
            };
            // Lines end a token in the tokenizers in use; the exact count is taken of the whole text at the end.
            let length = counter.count(&line).map_err(HistoryError::Counter)?;
            let left: usize = tokens.saturating_sub(used);
            if due.is_none() && (length > left || (notes.peek().is_none() && left == 0)) {
                // Notes that are left come last: a short history is notes alone.
                let Some(note) = notes.next() else { return Ok((text, places)) };
                places.push(text.len());
                text += &format!("[{number}] {}\n", note.text);
                used += counter.count(&note.text).map_err(HistoryError::Counter)?;
                continue;
            }
            if due.is_some() {
                places.push(text.len());
            }
            text += &line;
            used += length;
        }
    }
}

/// Adds words to a text of `found` tokens until it has exactly `tokens`: as many of each kind as fit, the coarsest first.
fn fill(text: &mut String, mut found: usize, counter: &dyn Counter, tokens: usize) -> Result<(), HistoryError> {
    let mut corrections = 0;
    for word in FILL {
        // What the word was last seen to take: tokenizers differ, and some join what stands together.
        let mut each = 1;
        let mut most = usize::MAX;
        while found < tokens && corrections < MAX_CORRECTIONS {
            corrections += 1;
            let words = ((tokens - found) / each).clamp(1, most);
            let bytes = text.len();
            (0..words).for_each(|_| text.push_str(word));
            let now = counter.count(text).map_err(HistoryError::Counter)?;
            if now > tokens || now < found {
                text.truncate(bytes);
                if words == 1 {
                    break;
                }
                most = words / 2;
            } else {
                each = (now - found).div_ceil(words).max(1);
                found = now;
            }
        }
    }
    if found == tokens { Ok(()) } else { Err(HistoryError::NotExact { wanted: tokens, found }) }
}

impl SmallTalk {
    fn line(&self, random: &mut Random) -> String {
        let mut pick = |words: &[String]| words[random.below(words.len())].clone();
        format!("{} {} {} {}.", pick(&self.who), pick(&self.did), pick(&self.what), pick(&self.when))
    }
}

/// SplitMix64 (Steele, Lea, Flood, 2014): the same text for a seed on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % bound.max(1) as u64) as usize
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Every byte a token, or every third of a text: a tokenizer that lacks the word.
    struct Bytes(usize);

    impl Counter for Bytes {
        fn count(&self, text: &str) -> Result<usize, String> {
            Ok(text.len().div_ceil(self.0))
        }
    }

    #[test]
    fn tokenizers_that_cut_the_filling_word_reach_every_length() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let spec = HistorySpec::read(&root.join("fixtures/adq/history/history.toml")).unwrap();
        for counter in [Bytes(1), Bytes(2), Bytes(3), Bytes(7)] {
            for tokens in 8000..8020 {
                let history = spec.write(&counter, tokens).unwrap();
                assert_eq!(counter.count(&history.text).unwrap(), tokens, "{} bytes a token", counter.0);
            }
        }
    }

    #[test]
    fn a_history_has_exactly_the_tokens_asked_for_and_its_notes_in_place() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let tokenizer = Tokenizer::open(&root.join("fixtures/models/tiny-moe")).unwrap();
        let spec = HistorySpec::read(&root.join("fixtures/adq/history/history.toml")).unwrap();
        for tokens in [1024, 2000, 4096, 16_384] {
            let history = spec.write(&tokenizer, tokens).unwrap();
            assert_eq!((history.tokens, tokenizer.encode(&history.text).unwrap().len()), (tokens, tokens));
            assert!(spec.note.iter().all(|note| history.text.contains(&note.text)));
            if tokens >= 4096 {
                for (note, place) in spec.note.iter().zip(&history.places) {
                    assert!((note.at - place).abs() < 0.03, "{} stands at {place} of {tokens}", note.text);
                }
            }
        }
        assert!(matches!(spec.write(&tokenizer, 100), Err(HistoryError::TooShort { .. })));
    }
}
