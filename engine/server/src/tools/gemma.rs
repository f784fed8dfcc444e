//! Gemma's calls: `call:name{key:value,…}`, with strings between marks of their own, which nothing escapes.

use super::reader::{Reader, Step};
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
    let mut parser = Parser { reader: Reader { text, at: opener.len() }, marks };
    parser.call().unwrap_or_else(|attempt| attempt)
}

/// A call with the marks of its generation.
struct Parser<'t> {
    reader: Reader<'t>,
    marks: &'t Marks,
}

impl<'t> Parser<'t> {
    /// Text up to the first of `ends`, which stays.
    fn word(&mut self, ends: &[char]) -> Step<&'t str> {
        let place = self.reader.rest().find(ends).ok_or(Attempt::Incomplete)?;
        let word = self.reader.rest()[..place].trim();
        self.reader.at += place;
        Ok(word)
    }

    fn call(&mut self) -> Step<Attempt> {
        self.reader.skip_space();
        self.reader.expect("call:")?;
        let name = self.word(&['{', '\n', '<'])?;
        if name.is_empty() || !self.reader.rest().starts_with('{') {
            return Err(Attempt::Malformed);
        }
        let arguments = self.object(0)?;
        self.reader.skip_space();
        self.reader.expect(self.marks.closer)?;
        Ok(Attempt::Calls(vec![Call { name: name.to_owned(), arguments }], self.reader.at))
    }

    fn string(&mut self) -> Step<Option<&'t str>> {
        if !self.reader.take(self.marks.quote)? {
            return Ok(None);
        }
        let end = self.reader.rest().find(self.marks.quote).ok_or(Attempt::Incomplete)?;
        let text = &self.reader.rest()[..end];
        self.reader.at += end + self.marks.quote.len();
        Ok(Some(text))
    }

    fn object(&mut self, depth: usize) -> Step<String> {
        self.reader.expect("{")?;
        let mut fields: Vec<(String, String)> = Vec::new();
        loop {
            self.reader.skip_space();
            if self.reader.take("}")? {
                return Ok(object(&fields));
            }
            if !fields.is_empty() {
                self.reader.expect(",")?;
                self.reader.skip_space();
            }
            let key = match self.string()? {
                Some(key) => key,
                None => self.word(&[':', ',', '{', '}', '\n'])?,
            };
            self.reader.skip_space();
            self.reader.expect(":")?;
            if key.is_empty() || fields.iter().any(|(name, _)| name == key) {
                return Err(Attempt::Malformed);
            }
            let value = self.value(depth + 1)?;
            fields.push((key.to_owned(), value));
        }
    }

    fn list(&mut self, depth: usize) -> Step<String> {
        self.reader.expect("[")?;
        let mut values: Vec<String> = Vec::new();
        loop {
            self.reader.skip_space();
            if self.reader.take("]")? {
                return Ok(format!("[{}]", values.join(", ")));
            }
            if !values.is_empty() {
                self.reader.expect(",")?;
            }
            values.push(self.value(depth + 1)?);
        }
    }

    fn value(&mut self, depth: usize) -> Step<String> {
        if depth > MAX_DEPTH {
            return Err(Attempt::Malformed);
        }
        self.reader.skip_space();
        match self.reader.rest().chars().next() {
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
