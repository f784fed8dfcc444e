use super::argmax::argmax;
use super::lanes::{Lanes, Level, Task};
use crate::contract::{descending, sample_weight};
use crate::{Choice, KernelError, check};

/// How many of the likeliest tokens are sorted at first where top-p needs an order.
const FIRST_SORTED: usize = 256;

/// A token that is still in the running.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    /// Its place among all: [`descending`], then its id in the low half.
    rank: u64,
    weight: u64,
}

impl Candidate {
    fn id(self) -> u32 {
        self.rank as u32
    }
}

/// [`crate::twin::sample`], fast: a vocabulary has many times the tokens that a limit leaves, so nothing sorts more than it needs.
///
/// # Errors
/// As the twin.
pub fn sample(logits: &[f32], choice: &Choice) -> Result<u32, KernelError> {
    check::sample(logits)?;
    let best = argmax(logits).map_err(|error| match error {
        KernelError::NotANumber { what, index, .. } => KernelError::NotANumber { kernel: "sample", what, index },
        other => other,
    })?;
    let largest = logits[best as usize];
    if largest.is_infinite() {
        return Ok(best);
    }
    let mut candidates = likeliest(logits, choice.top_k as usize);
    Level::current().run(Weigh { candidates: &mut candidates, logits, largest, scale: choice.scale });
    if choice.share > 0 {
        keep_nucleus(&mut candidates, choice);
    }
    candidates.retain(|candidate| candidate.weight >= choice.least);
    if choice.top_k > 0 || choice.share > 0 {
        candidates.sort_unstable_by_key(|candidate| candidate.id());
    }
    let target = choice.target(sum(&candidates));
    let mut sum = 0;
    let drawn = candidates.iter().find(|candidate| {
        sum += candidate.weight;
        sum > target
    });
    Ok(drawn.map_or(best, |candidate| candidate.id()))
}

fn sum(candidates: &[Candidate]) -> u64 {
    candidates.iter().map(|candidate| candidate.weight).sum()
}

/// The `count` largest logits, or all for 0, without their weights. All are in ascending id.
fn likeliest(logits: &[f32], count: usize) -> Vec<Candidate> {
    let rank = |(id, &logit): (usize, &f32)| u64::from(descending(logit)) << 32 | id as u64;
    let mut candidates: Vec<Candidate> =
        logits.iter().enumerate().map(|token| Candidate { rank: rank(token), weight: 0 }).collect();
    if count > 0 && count < candidates.len() {
        candidates.select_nth_unstable_by_key(count, |candidate| candidate.rank);
        candidates.truncate(count);
    }
    candidates
}

/// Keeps the shortest head of the sorted candidates that weighs what top-p wants.
fn keep_nucleus(candidates: &mut Vec<Candidate>, choice: &Choice) {
    let wanted = choice.wanted(sum(candidates));
    let mut sorted = FIRST_SORTED.min(candidates.len());
    loop {
        if sorted < candidates.len() {
            candidates.select_nth_unstable_by_key(sorted, |candidate| candidate.rank);
        }
        candidates[..sorted].sort_unstable_by_key(|candidate| candidate.rank);
        let mut sum = 0;
        let last = candidates[..sorted].iter().position(|candidate| {
            sum += candidate.weight;
            sum >= wanted
        });
        if let Some(last) = last {
            return candidates.truncate(last + 1);
        }
        if sorted == candidates.len() {
            return;
        }
        sorted = (sorted * 4).min(candidates.len());
    }
}

/// Fills the weights in.
struct Weigh<'a> {
    candidates: &'a mut [Candidate],
    logits: &'a [f32],
    largest: f32,
    scale: f64,
}

impl Task for Weigh<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        for candidate in self.candidates {
            candidate.weight = sample_weight(self.logits[candidate.rank as u32 as usize], self.largest, self.scale);
        }
    }
}
