//! Gemma's calls: `call:name{key:value,…}`, with strings between marks of their own, which nothing escapes.

use super::values::{object, quoted};
use super::{Attempt, Call};

/// How deep objects and lists may lie in each other.
const MAX_DEPTH: usize = 64;

/// Marks of one generation of Gemma.
pub(super) struct Marks {
    closer: &'static str,
    quote: &'static str,
}

/// Gemma 4.
pub(super) const GEMMA: Marks = Marks { closer: "<tool_call|>", quote: "<|\"|>" };
/// FunctionGemma.
pub(super) const FUNCTION_GEMMA: Marks = Marks { closer: "<end_function_call>", quote: "<escape>" };

pub(super) fn attempt(text: &str, opener: &str, marks: &Marks) -> Attempt {
    let mut reader = Reader { text, at: opener.len(), marks };
    reader.call().unwrap_or_else(|attempt| attempt)
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    marks: &'t Marks,
}

type Step<T> = Result<T, Attempt>;

impl<'t> Reader<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn take(&mut self, mark: &str) -> Step<bool> {
        if self.rest().starts_with(mark) {
            self.at += mark.len();
            return Ok(true);
        }
        if mark.starts_with(self.rest()) { Err(Attempt::Incomplete) } else { Ok(false) }
    }

    fn expect(&mut self, mark: &str) -> Step<()> {
        if self.take(mark)? { Ok(()) } else { Err(Attempt::Malformed) }
    }

    /// Text up to the first of `ends`, which stays.
    fn word(&mut self, ends: &[char]) -> Step<&'t str> {
        let place = self.rest().find(ends).ok_or(Attempt::Incomplete)?;
        let word = self.rest()[..place].trim();
        self.at += place;
        Ok(word)
    }

    fn call(&mut self) -> Step<Attempt> {
        self.skip_space();
        self.expect("call:")?;
        let name = self.word(&['{', '\n', '<'])?;
        if name.is_empty() || !self.rest().starts_with('{') {
            return Err(Attempt::Malformed);
        }
        let arguments = self.object(0)?;
        self.skip_space();
        self.expect(self.marks.closer)?;
        Ok(Attempt::Calls(vec![Call { name: name.to_owned(), arguments }], self.at))
    }

    fn string(&mut self) -> Step<Option<&'t str>> {
        if !self.take(self.marks.quote)? {
            return Ok(None);
        }
        let end = self.rest().find(self.marks.quote).ok_or(Attempt::Incomplete)?;
        let text = &self.rest()[..end];
        self.at += end + self.marks.quote.len();
        Ok(Some(text))
    }

    fn object(&mut self, depth: usize) -> Step<String> {
        self.expect("{")?;
        let mut fields: Vec<(String, String)> = Vec::new();
        loop {
            self.skip_space();
            if self.take("}")? {
                return Ok(object(&fields));
            }
            if !fields.is_empty() {
                self.expect(",")?;
                self.skip_space();
            }
            let key = match self.string()? {
                Some(key) => key,
                None => self.word(&[':', ',', '{', '}', '\n'])?,
            };
            self.skip_space();
            self.expect(":")?;
            if key.is_empty() || fields.iter().any(|(name, _)| name == key) {
                return Err(Attempt::Malformed);
            }
            let value = self.value(depth + 1)?;
            fields.push((key.to_owned(), value));
        }
    }

    fn list(&mut self, depth: usize) -> Step<String> {
        self.expect("[")?;
        let mut values: Vec<String> = Vec::new();
        loop {
            self.skip_space();
            if self.take("]")? {
                return Ok(format!("[{}]", values.join(", ")));
            }
            if !values.is_empty() {
                self.expect(",")?;
            }
            values.push(self.value(depth + 1)?);
        }
    }

    fn value(&mut self, depth: usize) -> Step<String> {
        if depth > MAX_DEPTH {
            return Err(Attempt::Malformed);
        }
        self.skip_space();
        match self.rest().chars().next() {
            None => Err(Attempt::Incomplete),
            Some('{') => self.object(depth),
            Some('[') => self.list(depth),
            Some(_) => {
                if let Some(text) = self.string()? {
                    return Ok(quoted(text));
                }
                let word = self.word(&[',', '}', ']'])?;
                // A number or a word of JSON; anything else is a string without its marks.
                let is_json = serde_json::from_str::<serde_json::Value>(word).is_ok();
                match word {
                    "" => Err(Attempt::Malformed),
                    word if is_json => Ok(word.to_owned()),
                    word => Ok(quoted(word)),
                }
            }
        }
    }
}
