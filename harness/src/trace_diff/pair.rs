//! Which event of one side belongs to which of the other.

use super::read::{Reader, TraceFileError};
use assay_engine::trace::Event;
use serde::Serialize;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Events that one side is read ahead to find where the other goes on.
const WINDOW_EVENTS: usize = 1 << 14;
/// Bytes of them.
const WINDOW_BYTES: usize = 64 << 20;
/// The first look ahead; most insertions are short.
const FIRST_LOOK: usize = 16;

/// What an event is, apart from what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    kind: u8,
    step: u64,
    /// One more than the layer; 0 outside the layers.
    layer: u64,
    component: u64,
    position: u64,
    tokens: u64,
}

impl Key {
    fn of(event: &Event<'_>) -> Self {
        let layer = |layer: Option<u64>| layer.map_or(0, |layer| layer.saturating_add(1));
        let (kind, step, layer, component, position, tokens) = match event {
            Event::Contract(_) => (0, 0, 0, "", 0, 0),
            Event::Input(input) => (1, input.step, 0, "", input.position, 0),
            Event::Op(op) => (2, op.step, layer(op.layer), &*op.component, op.position, op.tokens),
            Event::Routes(routes) => (3, routes.step, layer(Some(routes.layer)), "", routes.position, 0),
            Event::Logits(logits) => (4, logits.step, 0, "", logits.position, 0),
            Event::Retry(retry) => (5, retry.step, 0, "", 0, retry.chunk),
            Event::End(_) => (6, 0, 0, "", 0, 0),
        };
        let mut hasher = DefaultHasher::new();
        component.hash(&mut hasher);
        Key { kind, step, layer, component: hasher.finish(), position, tokens }
    }
}

/// Where an event stands, for a reader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Site {
    /// Line in the file, from 1.
    pub line: u64,
    /// Call of prefill or decode, from 0; absent for the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// `prefill` or `decode`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<&'static str>,
    /// Absent outside the layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer: Option<u64>,
    /// Component of a launch, kind of any other event.
    pub component: String,
    /// Position of its first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// Its tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

impl Site {
    pub(super) fn of(event: &Event<'_>, line: u64) -> Self {
        let plain = |component: &str| Site {
            line,
            step: None,
            phase: None,
            layer: None,
            component: component.to_owned(),
            position: None,
            tokens: None,
        };
        match event {
            Event::Contract(_) => plain("contract"),
            Event::End(_) => plain("end"),
            Event::Retry(retry) => Site { step: Some(retry.step), tokens: Some(retry.chunk), ..plain("retry") },
            Event::Input(input) => Site {
                step: Some(input.step),
                phase: Some(input.phase.name()),
                position: Some(input.position),
                tokens: Some(input.tokens.len() as u64),
                ..plain("input")
            },
            Event::Op(op) => Site {
                step: Some(op.step),
                phase: Some(op.phase.name()),
                layer: op.layer,
                position: Some(op.position),
                tokens: Some(op.tokens),
                ..plain(&op.component)
            },
            Event::Routes(routes) => Site {
                step: Some(routes.step),
                phase: Some(routes.phase.name()),
                layer: Some(routes.layer),
                position: Some(routes.position),
                ..plain("routes")
            },
            Event::Logits(logits) => Site {
                step: Some(logits.step),
                phase: Some(logits.phase.name()),
                position: Some(logits.position),
                ..plain("logits")
            },
        }
    }
}

/// `step 3 (decode), layer 1, v_proj, position 14`
impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(step) = self.step {
            write!(f, "step {step}")?;
            self.phase.iter().try_for_each(|phase| write!(f, " ({phase})"))?;
            f.write_str(", ")?;
        }
        self.layer.iter().try_for_each(|layer| write!(f, "layer {layer}, "))?;
        f.write_str(&self.component)?;
        match (self.position, self.tokens) {
            (Some(position), Some(tokens)) if tokens > 1 => {
                write!(f, ", positions {position} to {}", position.saturating_add(tokens - 1))
            }
            (Some(position), _) => write!(f, ", position {position}"),
            (None, _) => Ok(()),
        }
    }
}

/// A line read ahead.
pub(super) struct Line {
    pub(super) number: u64,
    pub(super) raw: Vec<u8>,
    key: Option<Key>,
}

/// A file and what was read of it ahead.
pub(super) struct Ahead {
    pub(super) reader: Reader,
    lines: VecDeque<Line>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
    ended: bool,
}

/// What comes next.
pub(super) enum Step {
    /// The same event on both sides.
    Both(Line, Line),
    /// Events that only one side has: the one that was expected, or the other.
    Only { expected: Vec<Line>, found: Vec<Line> },
    /// Both files are at their end.
    End,
}

impl Ahead {
    pub(super) fn new(reader: Reader) -> Self {
        Ahead { reader, lines: VecDeque::new(), bytes: 0, spare: Vec::new(), ended: false }
    }

    /// Gives the memory of a line back.
    pub(super) fn recycle(&mut self, line: Line) {
        // A few: the rest of a long look ahead is let go.
        if self.spare.len() < FIRST_LOOK {
            self.spare.push(line.raw);
        }
    }

    /// Reads on until `count` lines are ahead, the window is full, or the file ends.
    fn fill(&mut self, count: usize) -> Result<(), TraceFileError> {
        while self.lines.len() < count && self.bytes < WINDOW_BYTES && !self.ended {
            let mut raw = self.spare.pop().unwrap_or_default();
            if !self.reader.read(&mut raw)? {
                self.ended = true;
                break;
            }
            self.bytes += raw.len();
            self.lines.push_back(Line { number: self.reader.lines, raw, key: None });
        }
        Ok(())
    }

    fn key(&mut self, index: usize) -> Result<Key, TraceFileError> {
        let line = &self.lines[index];
        if let Some(key) = line.key {
            return Ok(key);
        }
        let key = Key::of(&self.reader.parse(&line.raw, line.number)?);
        self.lines[index].key = Some(key);
        Ok(key)
    }

    fn take(&mut self, count: usize) -> Vec<Line> {
        let lines: Vec<Line> = self.lines.drain(..count).collect();
        self.bytes -= lines.iter().map(|line| line.raw.len()).sum::<usize>();
        lines
    }

    fn take_one(&mut self) -> Option<Line> {
        let line = self.lines.pop_front()?;
        self.bytes -= line.raw.len();
        Some(line)
    }
}

/// The next step of both sides.
pub(super) fn next(expected: &mut Ahead, found: &mut Ahead) -> Result<Step, TraceFileError> {
    expected.fill(1)?;
    found.fill(1)?;
    match (expected.lines.front(), found.lines.front()) {
        (None, None) => return Ok(Step::End),
        (Some(a), Some(b)) if a.raw == b.raw => return Ok(both(expected, found)),
        (Some(_), Some(_)) => {}
        (Some(_), None) => return Ok(Step::Only { expected: expected.take(1), found: Vec::new() }),
        (None, Some(_)) => return Ok(Step::Only { expected: Vec::new(), found: found.take(1) }),
    }
    if expected.key(0)? == found.key(0)? {
        return Ok(both(expected, found));
    }
    let (skip_expected, skip_found) = meet(expected, found)?;
    Ok(Step::Only { expected: expected.take(skip_expected), found: found.take(skip_found) })
}

fn both(expected: &mut Ahead, found: &mut Ahead) -> Step {
    match (expected.take_one(), found.take_one()) {
        (Some(expected), Some(found)) => Step::Both(expected, found),
        _ => Step::End,
    }
}

/// The fewest lines to skip on both sides so that the next ones belong together. Where the windows have nothing in common they are
/// skipped whole, so that reading on takes time in proportion to the files.
fn meet(expected: &mut Ahead, found: &mut Ahead) -> Result<(usize, usize), TraceFileError> {
    let mut look = FIRST_LOOK;
    loop {
        expected.fill(look)?;
        found.fill(look)?;
        let here = (expected.lines.len().min(look), found.lines.len().min(look));
        let mut places: HashMap<Key, usize> = HashMap::with_capacity(here.0);
        for index in 0..here.0 {
            places.entry(expected.key(index)?).or_insert(index);
        }
        let mut best: Option<(usize, usize)> = None;
        for index in 0..here.1 {
            if best.is_some_and(|(a, b)| index >= a + b) {
                break;
            }
            if let Some(&place) = places.get(&found.key(index)?)
                && best.is_none_or(|(a, b)| place + index < a + b)
            {
                best = Some((place, index));
            }
        }
        if let Some(best) = best {
            return Ok(best);
        }
        let full = |side: &Ahead| side.ended || side.bytes >= WINDOW_BYTES || side.lines.len() >= WINDOW_EVENTS;
        if full(expected) && full(found) || look >= WINDOW_EVENTS {
            return Ok(here);
        }
        look *= 4;
    }
}
