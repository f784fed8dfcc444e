//! gpt-oss: an answer is messages on channels. `analysis` is reasoning, `final` is for the reader, `commentary` to a function
//! is a call, `commentary` to nobody is for the reader too.
//!
//! `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>`; a message ends at `<|end|>`, `<|call|>`,
//! `<|return|>` or at the next `<|start|>`. End tokens are no part of the text, so a message may end with the text.

use super::json_call::is_object;
use super::{Call, Found, first_marker, partial_marker};

const MESSAGE: &str = "<|message|>";
const CHANNEL: &str = "<|channel|>";
const ENDS: [&str; 4] = ["<|end|>", "<|call|>", "<|return|>", "<|start|>"];

/// Where a message goes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum To {
    Reader,
    Reasoning,
    Function(String),
}

#[derive(Debug, Default)]
enum State {
    /// In front of a message's text.
    #[default]
    Header,
    /// Within it; `started` is its whole header.
    Body { to: To, header: String },
}

/// Finds messages.
#[derive(Debug, Default)]
pub(super) struct Harmony {
    held: String,
    /// Where the search for the next mark goes on: none begins in front of it.
    searched: usize,
    state: State,
}

impl Harmony {
    pub(super) fn push(&mut self, piece: &str) -> Vec<Found> {
        self.held.push_str(piece);
        let mut found = Vec::new();
        while self.step(&mut found) {}
        found
    }

    pub(super) fn finish(&mut self, ended: bool) -> Vec<Found> {
        let mut found = Vec::new();
        while self.step(&mut found) {}
        let rest = std::mem::take(&mut self.held);
        match std::mem::take(&mut self.state) {
            State::Header if rest.trim().is_empty() => {}
            State::Header => found.push(Found::Text(rest)),
            State::Body { to, header } => message(&to, &header, rest, ended, &mut found),
        }
        found
    }

    /// Takes what is whole; whether anything was.
    fn step(&mut self, found: &mut Vec<Found>) -> bool {
        match &self.state {
            State::Header => {
                let Some((place, _)) = self.next_mark(&[MESSAGE]) else { return false };
                let header: String = self.held.drain(..place + MESSAGE.len()).collect();
                self.searched = 0;
                match address(&header) {
                    Some(to) => self.state = State::Body { to, header },
                    // Words without a channel.
                    None => found.push(Found::Text(header)),
                }
                true
            }
            State::Body { to, header } => {
                let (to, header) = (to.clone(), header.clone());
                match self.next_mark(&ENDS) {
                    Some((place, mark)) => {
                        let body = self.held[..place].to_owned();
                        message(&to, &header, body, true, found);
                        // `<|start|>` belongs to the next header.
                        let taken = if mark == "<|start|>" { 0 } else { mark.len() };
                        self.held.drain(..place + taken);
                        (self.searched, self.state) = (0, State::Header);
                        true
                    }
                    None if matches!(to, To::Function(_)) => false,
                    None => {
                        let end = self.held.len() - partial_marker(&self.held, &ENDS);
                        if end > 0 {
                            found.push(words(&to, self.held.drain(..end).collect()));
                            self.searched = 0;
                        }
                        false
                    }
                }
            }
        }
    }

    /// The first of `marks` in what is held; what was searched in vain is not searched again.
    fn next_mark(&mut self, marks: &[&'static str]) -> Option<(usize, &'static str)> {
        let found = first_marker(&self.held[self.searched..], marks).map(|(place, mark)| (self.searched + place, mark));
        if found.is_none() {
            self.searched = self.held.len() - partial_marker(&self.held, marks);
        }
        found
    }
}

fn words(to: &To, text: String) -> Found {
    if *to == To::Reasoning { Found::Reasoning(text) } else { Found::Text(text) }
}

/// A message that has ended, or was cut off.
fn message(to: &To, header: &str, body: String, ended: bool, found: &mut Vec<Found>) {
    match to {
        To::Function(name) if ended && is_object(&body) => {
            let arguments = body.trim().to_owned();
            found.push(Found::Call(Call { name: name.clone(), arguments }));
        }
        To::Function(_) => found.push(Found::Text(format!("{header}{body}"))),
        to if !body.is_empty() => found.push(words(to, body)),
        _ => {}
    }
}

/// Where a header sends its message. `None` where it names no channel.
fn address(header: &str) -> Option<To> {
    let words = header.strip_suffix(MESSAGE).unwrap_or(header);
    let (before, channel) = words.split_once(CHANNEL)?;
    let function = [before, channel].into_iter().find_map(|part| {
        let (_, to) = part.split_once("to=functions.")?;
        let end = to.find(|char: char| char.is_whitespace() || char == '<').unwrap_or(to.len());
        Some(to[..end].to_owned()).filter(|name| !name.is_empty())
    });
    Some(match (function, channel.trim_start().starts_with("analysis")) {
        (Some(name), _) => To::Function(name),
        (None, true) => To::Reasoning,
        (None, false) => To::Reader,
    })
}
