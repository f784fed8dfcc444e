//! Tokens to text, up to a stop text.

use std::sync::Arc;

use assay_engine::checkpoint::tokenizer::{DecodeStream, Tokenizer, TokenizerError};

/// Text of a growing list of tokens. What may be the beginning of a stop text is held back.
#[derive(Debug)]
pub(super) struct TextStream {
    /// `None` once the text is finished.
    tokens: Option<DecodeStream<Arc<Tokenizer>>>,
    stops: Vec<String>,
    held: String,
}

/// Text that is new, and whether a stop text has ended it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) stopped: bool,
}

impl TextStream {
    pub(super) fn new(tokenizer: Arc<Tokenizer>, stops: Vec<String>) -> Self {
        Self { tokens: Some(DecodeStream::new(tokenizer)), stops, held: String::new() }
    }

    pub(super) fn push(&mut self, id: u32) -> Result<Piece, TokenizerError> {
        let Some(tokens) = &mut self.tokens else { return Ok(Piece::default()) };
        let text = tokens.push(id)?;
        Ok(self.take(text, false))
    }

    /// The text has ended: nothing is held back any more.
    pub(super) fn finish(&mut self) -> Result<Piece, TokenizerError> {
        let Some(tokens) = self.tokens.take() else { return Ok(Piece::default()) };
        let text = tokens.finish()?;
        Ok(self.take(text, true))
    }

    fn take(&mut self, text: String, ended: bool) -> Piece {
        if self.stops.is_empty() {
            return Piece { text, stopped: false };
        }
        self.held += &text;
        if let Some(end) = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.held.truncate(end);
            self.tokens = None;
            return Piece { text: std::mem::take(&mut self.held), stopped: true };
        }
        let keep = if ended { 0 } else { self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0) };
        let rest = self.held.split_off(self.held.len() - keep);
        Piece { text: std::mem::replace(&mut self.held, rest), stopped: false }
    }
}

/// Bytes at the end of `text` that `stop` begins with.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    let ends = |bytes: &usize| stop.is_char_boundary(*bytes) && text.ends_with(&stop[..*bytes]);
    (1..=longest).rev().find(ends).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_overlap_is_held_back() {
        let check = |text: &str, stop: &str, bytes| assert_eq!(overlap(text, stop), bytes, "{text:?} {stop:?}");
        check("one\n", "\n\n", 1);
        check("one", "\n\n", 0);
        check("abab", "babc", 3);
        check("é", "éa", 2);
        check("x", "x", 0);
    }
}
