//! The processes of a comparison, in their order.

use super::side::{Process, Side};
use crate::evidence::RunLog;
use crate::exit::InvalidEvidence;
use crate::interrupt;
use crate::progress::Progress;
use assay_ledgers::diff;

/// What ran.
#[derive(Debug, Default)]
pub struct Series {
    /// Processes of A, in the order they ran.
    pub a: Vec<Process>,
    /// Processes of B; the nth is paired with the nth of A.
    pub b: Vec<Process>,
}

/// Which side runs when: A B, B A, A B, … so that a steady drift of the machine cancels within four processes, and neither
/// side is always the second of its pair. True for B.
pub fn order(pairs: usize) -> impl Iterator<Item = bool> {
    (0..pairs).flat_map(|pair| if pair % 2 == 0 { [false, true] } else { [true, false] })
}

/// Runs `pairs` processes of each side; without `b`, of A alone. `first` is asked once the first of each has run, before time
/// goes into the others. Every process is a line of `log`.
///
/// # Errors
/// When a process fails, its identity is not that of the first of its side, `first` refuses, or the user interrupts.
pub fn run(
    a: &Side,
    b: Option<&Side>,
    pairs: usize,
    more: &[String],
    log: &mut RunLog,
    first: impl Fn(&Series) -> anyhow::Result<()>,
) -> anyhow::Result<Series> {
    let mut series = Series::default();
    let steps: Vec<bool> = order(pairs).filter(|&is_b| !is_b || b.is_some()).collect();
    let progress = Progress::start("comparing", steps.len() as u64, "processes");
    let needed = if b.is_some() { 2 } else { 1 };
    for (step, is_b) in steps.into_iter().enumerate() {
        interrupt::check()?;
        let (side, processes, name) = match b.filter(|_| is_b) {
            Some(b) => (b, &mut series.b, "b"),
            None => (a, &mut series.a, "a"),
        };
        let process = side.run(more)?;
        interrupt::check()?;
        log.line(&serde_json::json!({ "side": name, "process": process }));
        if let Some(before) = processes.first() {
            same_identity(before, &process)?;
        }
        processes.push(process);
        progress.advance(1);
        if step + 1 == needed {
            first(&series)?;
        }
    }
    Ok(series)
}

/// A binary, a file or a source that changes between two processes of one side makes what they say incomparable.
fn same_identity(first: &Process, process: &Process) -> anyhow::Result<()> {
    let differences = diff(&first.identity, &process.identity)?;
    match differences.first() {
        None => Ok(()),
        Some(field) => Err(InvalidEvidence(format!(
            "{} changed between two processes of one side: from {:?} to {:?}",
            field.path, field.a, field.b
        ))
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_take_turns() {
        let letters = |pairs| order(pairs).map(|is_b| if is_b { 'B' } else { 'A' }).collect::<String>();
        assert_eq!(letters(1), "AB");
        assert_eq!(letters(2), "ABBA");
        assert_eq!(letters(5), "ABBAABBAAB");
    }
}
