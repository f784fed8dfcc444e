//! Last match, first difference, what followed.

use super::compare::{Blame, Finding, compare};
use super::pair::{Ahead, Line, Site, Step, next};
use super::read::{Reader, TraceFileError};
use super::tolerance::Tolerance;
use assay_engine::trace::{Component, Contract, Event, Selection};
use assay_ledgers::{Verdict, VerdictRow};
use serde::Serialize;
use std::path::Path;

/// Sites that are listed of what followed, and of what one side alone has.
const LISTED: usize = 5;

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Side {
    /// Lines read.
    pub lines: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Whether its last line says that it is the last.
    pub complete: bool,
    /// Events that the other side has not.
    pub alone: u64,
    /// The first of them.
    pub first_alone: Vec<Site>,
}

/// A field of the contract in which the traces differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ContractDifference {
    /// Its dotted name.
    pub field: String,
    /// What was expected.
    pub expected: Option<String>,
    /// What was found.
    pub found: Option<String>,
}

/// The first difference.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct First {
    /// Where, with the line in the expected trace.
    pub at: Site,
    /// Its line in the other.
    pub found_line: u64,
    /// Whether it is to blame.
    pub blame: Blame,
    /// What differs.
    pub findings: Vec<Finding>,
}

/// What followed the first difference.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Followed {
    /// Events compared after it.
    pub events: u64,
    /// Those that differ.
    pub differing: u64,
    /// The next that differ.
    pub next: Vec<Site>,
    /// The first step whose chosen token differs.
    pub first_chosen_step: Option<u64>,
}

/// Two traces, compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// What was taken as equal.
    pub tolerance: String,
    /// The trace to be met.
    pub expected: Side,
    /// The trace that was judged.
    pub found: Side,
    /// Where the contracts differ.
    pub contract: Vec<ContractDifference>,
    /// Events that are equal.
    pub matching: u64,
    /// Events that differ.
    pub differing: u64,
    /// The last event before the first difference; the last of all where there is none.
    pub last_match: Option<Site>,
    /// The first difference.
    pub first_difference: Option<First>,
    /// What came after it.
    pub followed: Option<Followed>,
    /// Judgements.
    pub verdicts: Vec<VerdictRow>,
}

/// Compares two files; `selection` leaves events out on both sides.
///
/// # Errors
/// A file that cannot be read; a line that is no event, too long, of a newer version, or out of place.
pub fn diff(
    expected: &Path,
    found: &Path,
    tolerance: Tolerance,
    selection: &Selection,
) -> Result<Comparison, TraceFileError> {
    let (expected, expected_contract) = Reader::open(expected)?;
    let (found, found_contract) = Reader::open(found)?;
    let device = |contract: &Contract| contract.fields.get("engine.device").cloned();
    let mut work = Work {
        tolerance,
        devices_differ: device(&expected_contract) != device(&found_contract),
        arrangements: 0,
        selection: (*selection != Selection::default()).then_some(selection),
        sides: [Progress::default(), Progress::default()],
        matching: 0,
        differing: 0,
        last_match: None,
        first: None,
        followed: Followed::default(),
    };
    let (mut expected, mut found) = (Ahead::new(expected), Ahead::new(found));
    loop {
        match next(&mut expected, &mut found)? {
            Step::End => break,
            Step::Both(a, b) => {
                work.both(&expected.reader, &found.reader, &a, &b)?;
                expected.recycle(a);
                found.recycle(b);
            }
            Step::Only { expected: a, found: b } => {
                work.alone(0, &expected.reader, a)?;
                work.alone(1, &found.reader, b)?;
            }
        }
    }
    Ok(work.finish([&expected.reader, &found.reader], contract(&expected_contract, &found_contract)))
}

/// Whether an event says in which order a device takes slots, which is no part of what it makes of them.
fn arranges(event: &Event<'_>) -> bool {
    matches!(event, Event::Op(op) if Component::named(&op.component) == Some(Component::Permute))
}

fn contract(expected: &Contract, found: &Contract) -> Vec<ContractDifference> {
    let mut differences: Vec<ContractDifference> = Vec::new();
    let mut note = |field: &str, expected: Option<String>, found: Option<String>| {
        if expected != found {
            differences.push(ContractDifference { field: field.to_owned(), expected, found });
        }
    };
    for (field, value) in &expected.fields {
        note(field, Some(value.clone()), found.fields.get(field).cloned());
    }
    for (field, value) in found.fields.iter().filter(|(field, _)| !expected.fields.contains_key(*field)) {
        note(field, None, Some(value.clone()));
    }
    note("selection", Some(expected.selection.clone()), Some(found.selection.clone()));
    note("values", Some(expected.values.to_string()), Some(found.values.to_string()));
    differences
}

/// What is known of one side.
#[derive(Default)]
struct Progress {
    ended: bool,
    alone: u64,
    /// Of them, those behind the last event that is in both.
    trailing: u64,
    first_alone: Vec<Site>,
}

struct Work<'a> {
    tolerance: Tolerance,
    devices_differ: bool,
    /// Events of one device alone that only arrange what others compute with.
    arrangements: u64,
    selection: Option<&'a Selection>,
    sides: [Progress; 2],
    matching: u64,
    differing: u64,
    last_match: Option<Site>,
    first: Option<First>,
    followed: Followed,
}

impl Work<'_> {
    fn both(&mut self, expected: &Reader, found: &Reader, a: &Line, b: &Line) -> Result<(), TraceFileError> {
        self.sides.iter_mut().for_each(|side| side.trailing = 0);
        let event = expected.parse(&a.raw, a.number)?;
        if a.raw == b.raw {
            self.order(0, expected, &event, a)?;
            self.order(1, found, &event, b)?;
            if self.wanted(&event) {
                self.matched(&event, a);
            }
            return Ok(());
        }
        let other = found.parse(&b.raw, b.number)?;
        self.order(0, expected, &event, a)?;
        self.order(1, found, &other, b)?;
        if !self.wanted(&event) {
            return Ok(());
        }
        let (findings, blame) = compare(&event, &other, self.tolerance);
        if findings.is_empty() {
            self.matched(&event, a);
        } else {
            self.differs(&event, a, b, findings, blame);
        }
        Ok(())
    }

    /// Nothing follows the end, and nothing but the first line is a contract.
    fn order(&mut self, side: usize, reader: &Reader, event: &Event<'_>, line: &Line) -> Result<(), TraceFileError> {
        let broken = |found: &str, expected: String| Err(reader.broken(line.number, found.to_owned(), expected));
        if self.sides[side].ended {
            return broken("an event", "nothing after the end".to_owned());
        }
        match event {
            Event::Contract(_) => broken("a second contract", "an event of the request".to_owned()),
            Event::End(end) if end.events != line.number => {
                broken(&format!("an end after {} lines", end.events), format!("after {}", line.number))
            }
            Event::End(_) => {
                self.sides[side].ended = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn wanted(&self, event: &Event<'_>) -> bool {
        let Some(selection) = self.selection else { return !matches!(event, Event::End(_)) };
        let wants = |step, layer: Option<u64>, component: Option<Component>| match component {
            Some(component) => {
                selection.wants(step, layer.map(|layer| usize::try_from(layer).unwrap_or(usize::MAX)), component)
            }
            None => selection.step(step) && selection.components.is_none(),
        };
        match event {
            Event::Contract(_) | Event::End(_) => false,
            Event::Input(input) => selection.step(input.step),
            Event::Retry(retry) => selection.step(retry.step),
            Event::Op(op) => wants(op.step, op.layer, Component::named(&op.component)),
            Event::Routes(routes) => wants(routes.step, Some(routes.layer), Some(Component::Routes)),
            Event::Logits(logits) => wants(logits.step, None, Some(Component::Logits)),
        }
    }

    fn matched(&mut self, event: &Event<'_>, line: &Line) {
        self.matching += 1;
        if self.first.is_none() {
            self.last_match = Some(Site::of(event, line.number));
        } else {
            self.followed.events += 1;
        }
    }

    fn differs(&mut self, event: &Event<'_>, a: &Line, b: &Line, findings: Vec<Finding>, blame: Blame) {
        self.differing += 1;
        let at = Site::of(event, a.number);
        if findings.iter().any(|finding| finding.what == "chosen token") && self.followed.first_chosen_step.is_none() {
            self.followed.first_chosen_step = at.step;
        }
        if self.first.is_none() {
            self.first = Some(First { at, found_line: b.number, blame, findings });
            return;
        }
        self.followed.events += 1;
        self.followed.differing += 1;
        if self.followed.next.len() < LISTED {
            self.followed.next.push(at);
        }
    }

    fn alone(&mut self, side: usize, reader: &Reader, lines: Vec<Line>) -> Result<(), TraceFileError> {
        for line in lines {
            let event = reader.parse(&line.raw, line.number)?;
            self.order(side, reader, &event, &line)?;
            if !self.wanted(&event) {
                continue;
            }
            if self.devices_differ && arranges(&event) {
                self.arrangements += 1;
                continue;
            }
            let progress = &mut self.sides[side];
            progress.alone += 1;
            progress.trailing += 1;
            if progress.first_alone.len() < LISTED {
                progress.first_alone.push(Site::of(&event, line.number));
            }
        }
        Ok(())
    }

    fn finish(self, readers: [&Reader; 2], contract: Vec<ContractDifference>) -> Comparison {
        let verdicts = self.verdicts(readers);
        let [expected, found] = self.sides;
        let side = |progress: Progress, reader: &Reader| Side {
            lines: reader.lines,
            bytes: reader.bytes,
            complete: progress.ended && !reader.torn,
            alone: progress.alone,
            first_alone: progress.first_alone,
        };
        Comparison {
            tolerance: self.tolerance.to_string(),
            expected: side(expected, readers[0]),
            found: side(found, readers[1]),
            contract,
            matching: self.matching,
            differing: self.differing,
            last_match: self.last_match,
            followed: self.first.is_some().then_some(self.followed),
            first_difference: self.first,
            verdicts,
        }
    }

    fn verdicts(&self, readers: [&Reader; 2]) -> Vec<VerdictRow> {
        let row = |row: &str, verdict, reason: String| VerdictRow { row: row.to_owned(), verdict, reason };
        let mut rows = Vec::new();
        let compared = self.matching + self.differing;
        rows.push(match &self.first {
            Some(first) if first.findings.iter().any(|finding| finding.what == "tokens") => {
                row("inputs", Verdict::Invalid, format!("the traces are of different tokens: {}", first.at))
            }
            _ => row("inputs", Verdict::Pass, "the same tokens up to the first difference".to_owned()),
        });
        rows.push(match &self.first {
            Some(first) => {
                row("values", Verdict::Fail, format!("{} events differ, first {}", self.differing, first.at))
            }
            None if compared == 0 => row("values", Verdict::Incomplete, "no event is in both traces".to_owned()),
            None => row("values", Verdict::Pass, format!("{compared} events are equal ({})", self.tolerance)),
        });
        let cut = [0, 1].map(|side: usize| !self.sides[side].ended || readers[side].torn);
        // What lies behind the point at which the other trace was cut short may have been there.
        let unjudged = [0, 1].map(|side: usize| if cut[1 - side] { self.sides[side].trailing } else { 0 });
        rows.push(match [0, 1].map(|side: usize| self.sides[side].alone - unjudged[side]) {
            [0, 0] if unjudged == [0, 0] && self.arrangements > 0 => {
                let arranging = format!("{} of {}", self.arrangements, Component::Permute.name());
                let reason =
                    format!("no event is in one trace alone but {arranging}, which one of the devices does without");
                row("structure", Verdict::Pass, reason)
            }
            [0, 0] if unjudged == [0, 0] => {
                row("structure", Verdict::Pass, "no event is in one trace alone".to_owned())
            }
            [0, 0] => {
                let behind = unjudged[0] + unjudged[1];
                let reason = format!("{behind} events lie behind the point where the other trace was cut short");
                row("structure", Verdict::Incomplete, reason)
            }
            [expected, found] => {
                row("structure", Verdict::Fail, format!("{expected} events are missing, {found} were not expected"))
            }
        });
        let open: Vec<&str> =
            ["expected", "found"].into_iter().zip(cut).filter_map(|(name, cut)| cut.then_some(name)).collect();
        rows.push(match open.as_slice() {
            [] => row("completeness", Verdict::Pass, "both traces have their end".to_owned()),
            names => row("completeness", Verdict::Incomplete, format!("cut short: {}", names.join(", "))),
        });
        rows
    }
}
