//! Text and calls apart, where a call stands between marks.
//!
//! What is reported depends on the text so far, never on how it was cut: text that may still become a mark, white space that
//! may still turn out to stand beside a call, and a call that is not whole yet are held back.

use super::{Attempt, Found, Grammar, ToolSchemas, first_marker, partial_marker};

/// The longest closing mark has fewer bytes.
const CLOSER_BYTES: usize = 64;

/// Finds calls of one grammar.
#[derive(Debug)]
pub(super) struct Scanner {
    grammar: Grammar,
    tools: ToolSchemas,
    /// What is not reported yet.
    held: String,
    /// Bytes held when a call was last found to be unfinished.
    looked: usize,
    /// Whether the last thing reported was a call: white space after it separates calls and is nobody's.
    after_call: bool,
}

impl Scanner {
    pub(super) fn new(grammar: Grammar, tools: ToolSchemas) -> Self {
        Self { grammar, tools, held: String::new(), looked: 0, after_call: false }
    }

    pub(super) fn push(&mut self, piece: &str) -> Vec<Found> {
        self.held.push_str(piece);
        if self.is_too_soon() { Vec::new() } else { self.scan(false) }
    }

    /// Whether nothing new can be found: a long call that comes token by token is looked at again where it may be whole, and
    /// otherwise as it grows by a quarter, so that all looks together take a time that is linear in its length.
    fn is_too_soon(&self) -> bool {
        if self.looked == 0 || self.held.len() > self.looked + self.looked / 4 {
            return false;
        }
        let mut from = self.looked.saturating_sub(CLOSER_BYTES);
        while !self.held.is_char_boundary(from) {
            from -= 1;
        }
        !self.grammar.closers().iter().any(|closer| self.held[from..].contains(closer))
    }

    pub(super) fn finish(&mut self) -> Vec<Found> {
        self.scan(true)
    }

    fn scan(&mut self, ended: bool) -> Vec<Found> {
        let mut found = Vec::new();
        self.looked = 0;
        // Where the search for a mark goes on: in front of it is text.
        let mut from = 0;
        let openers = self.grammar.openers();
        loop {
            let Some((place, opener)) = first_marker(&self.held[from..], openers) else {
                let keep = if ended { 0 } else { partial_marker(&self.held[from..], openers) };
                let end = self.held.len() - keep;
                self.text(end, ended, &mut found);
                return found;
            };
            let start = from + place;
            match self.grammar.attempt(&self.held[start..], opener, &self.tools) {
                Attempt::Calls(calls, bytes) => {
                    self.text(start, false, &mut found);
                    // White space in front of the call is still there.
                    let space = self.held.len() - self.held.trim_start().len();
                    self.held.drain(..space + bytes);
                    found.extend(calls.into_iter().map(Found::Call));
                    self.after_call = true;
                    from = 0;
                }
                Attempt::Incomplete if !ended => {
                    self.text(start, false, &mut found);
                    self.looked = self.held.len();
                    return found;
                }
                Attempt::Incomplete | Attempt::Malformed => from = start + opener.len(),
            }
        }
    }

    /// Reports the first `end` bytes, except white space beside a call, or what may yet be beside one. `all` reports white
    /// space at the end too.
    fn text(&mut self, end: usize, all: bool, found: &mut Vec<Found>) {
        let text = &self.held[..end];
        if self.after_call && text.trim().is_empty() {
            return;
        }
        let start = if self.after_call { text.len() - text.trim_start().len() } else { 0 };
        let text = if all { &text[start..] } else { text[start..].trim_end() };
        if text.is_empty() {
            return;
        }
        found.push(Found::Text(text.to_owned()));
        let end = start + text.len();
        self.held.drain(..end);
        self.after_call = false;
    }
}
