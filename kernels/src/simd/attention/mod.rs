//! Causal attention: one function for decode and for prefill.
//!
//! A unit of work is a key-value head by a few neighbouring tokens, all of whose positions lie in one split, by a range
//! of splits. For each split it takes up to eight query rows at a time: sixteen positions a vector for the scores,
//! sixteen dimensions a vector for the values. Where there are fewer units than threads (decode), every split
//! becomes a unit of its own, and the states are merged afterwards in the contract's order. The state of one split is what
//! merging that split into the initial state gives, exactly, so both ways have the same bits.

mod pass;

use self::pass::Pass;
use super::lanes::{LANES, Lanes, Level, Task};
use super::parallel::{Disjoint, for_each, pieces};
use crate::contract::{self, SPLIT};
use crate::{AttentionForm, KernelError, KvLayout, check};
use std::ops::Range;

/// Query rows that share one pass over a split, at most (more where one token alone has more).
const UNIT_ROWS: usize = 64;

/// Bytes of states that one round of units may leave to be merged.
const ROUND_BYTES: usize = 2 << 20;

/// [`crate::twin::attention`], fast.
///
/// # Errors
/// As the twin.
pub fn attention(
    q: &[f32],
    heads: usize,
    first_position: usize,
    layout: KvLayout,
    cache: &[u8],
    form: AttentionForm<'_>,
    out: &mut [f32],
) -> Result<(), KernelError> {
    let tokens = check::attention(q, heads, first_position, &layout, cache, &form, out)?;
    if tokens == 0 {
        return Ok(());
    }
    let job = Job { q, heads, first_position, tokens, layout, cache, form, level: Level::current() };
    let units = job.units();
    let splits = form.first_visible(first_position) / SPLIT..(first_position + tokens).div_ceil(SPLIT);
    let work = layout.head_dim * 2 * (splits.len() * SPLIT).min(first_position + tokens) * tokens * heads;
    let shared = pieces(2, work / 2) == 1;
    if shared && units.len() < rayon::current_num_threads() && splits.len() > 1 {
        job.by_split(&units, splits, out);
    } else {
        job.by_unit(&units, work / units.len(), out);
    }
    Ok(())
}

/// Operands of one call.
struct Job<'a> {
    q: &'a [f32],
    heads: usize,
    first_position: usize,
    tokens: usize,
    layout: KvLayout,
    cache: &'a [u8],
    form: AttentionForm<'a>,
    level: Level,
}

/// Tokens `first .. first + tokens` of one key-value head.
#[derive(Clone, Copy)]
struct Unit {
    kv_head: usize,
    first: usize,
    tokens: usize,
}

/// Running softmax of one query row; its weighted values are kept by the unit.
#[derive(Clone, Copy)]
struct State {
    max: f32,
    sum: f32,
}

impl State {
    const START: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };

    /// Takes in a split of maximum `m` and sum `l`; returns the factors `(a, b)` on the old and the new values.
    #[inline(always)]
    fn merge(&mut self, m: f32, l: f32) -> (f32, f32) {
        let max = if m > self.max { m } else { self.max };
        let (a, b) = (contract::exp(self.max - max), contract::exp(m - max));
        *self = Self { max, sum: l.mul_add(b, self.sum * a) };
        (a, b)
    }
}

/// Takes the state of one split into a row's total.
struct Merge<'a> {
    total: &'a mut State,
    state: State,
    values: &'a [f32],
    out: &'a mut [f32],
}

impl Task for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let (a, b) = self.total.merge(self.state.max, self.state.sum);
        let (a, b) = (lanes.splat(a), lanes.splat(b));
        for start in (0..self.out.len()).step_by(LANES) {
            let old = lanes.mul(lanes.load_part(&self.out[start..]), a);
            let new = lanes.fma(lanes.load_part(&self.values[start..]), b, old);
            lanes.store_part(new, &mut self.out[start..]);
        }
    }
}

impl Job<'_> {
    fn group(&self) -> usize {
        self.heads / self.layout.kv_heads
    }

    /// Longest tokens first: they are handed out first, and the short ones fill the gaps.
    fn units(&self) -> Vec<Unit> {
        // A power of two, so that a block at a multiple of it never straddles two splits.
        let block = (UNIT_ROWS / self.group()).clamp(1, SPLIT);
        let block = if block.is_power_of_two() { block } else { block.next_power_of_two() / 2 };
        let mut units = Vec::new();
        let mut first = 0;
        while first < self.tokens {
            let tokens = (block - (self.first_position + first) % block).min(self.tokens - first);
            units.extend((0..self.layout.kv_heads).map(|kv_head| Unit { kv_head, first, tokens }));
            first += tokens;
        }
        units.reverse();
        units
    }

    /// Splits that a unit's tokens see; the first of them may be seen by its first tokens alone.
    fn splits(&self, unit: &Unit) -> Range<usize> {
        let first = self.first_position + unit.first;
        self.form.first_visible(first) / SPLIT..first / SPLIT + 1
    }

    /// Places in a split that the query at a position sees; empty where it sees none.
    #[inline(always)]
    fn seen(&self, split: usize, position: usize) -> Range<usize> {
        let end = SPLIT.min(position + 1 - split * SPLIT);
        let start = self.form.first_visible(position).saturating_sub(split * SPLIT);
        start.min(end)..end
    }

    /// Where the merging of a head's splits starts.
    fn start(&self, head: usize) -> State {
        self.form.sinks.map_or(State::START, |sinks| State { max: sinks[head], sum: 1.0 })
    }

    /// The head of a unit's row.
    #[inline(always)]
    fn head(&self, unit: &Unit, row: usize) -> usize {
        unit.kv_head * self.group() + row % self.group()
    }

    /// Offset in `q` and `out` of a unit's row: rows are its tokens, each with its heads.
    #[inline(always)]
    fn row_at(&self, unit: &Unit, row: usize) -> usize {
        let (token, head) = (unit.first + row / self.group(), self.head(unit, row));
        (token * self.heads + head) * self.layout.head_dim
    }

    /// Each unit goes through all of its splits.
    fn by_unit(&self, units: &[Unit], work: usize, out: &mut [f32]) {
        out.fill(0.0);
        let values = Disjoint::new(out);
        for_each(units.len(), work, |index| {
            let unit = &units[index];
            let rows = unit.tokens * self.group();
            let mut states: Vec<State> = (0..rows).map(|row| self.start(self.head(unit, row))).collect();
            for split in self.splits(unit) {
                self.level.run(Pass { job: self, unit, split, states: &mut states, values: &values, base: 0 });
            }
            for (row, state) in states.iter().enumerate() {
                // SAFETY: a row of the output belongs to one unit, and no other part of it is alive here.
                let values = unsafe { values.part(self.row_at(unit, row), self.layout.head_dim) };
                values.iter_mut().for_each(|value| *value /= state.sum);
            }
        });
    }

    /// Each unit is one split, from the initial state; the units of a round are merged before the next.
    fn by_split(&self, units: &[Unit], splits: Range<usize>, out: &mut [f32]) {
        let (dim, rows) = (self.layout.head_dim, self.tokens * self.heads);
        let round = (ROUND_BYTES / (4 * rows * (dim + 2))).max(rayon::current_num_threads()).min(splits.len());
        let mut totals: Vec<State> = (0..rows).map(|row| self.start(row % self.heads)).collect();
        let mut states = vec![State::START; round * rows];
        let mut values = vec![0.0f32; round * rows * dim];
        out.fill(0.0);
        for first in splits.clone().step_by(round) {
            states.fill(State::START);
            values.fill(0.0);
            let last = (first + round).min(splits.end);
            self.round(units, first..last, &mut states, &mut values);
            for index in 0..last - first {
                for (row, total) in totals.iter_mut().enumerate() {
                    let position = self.first_position + row / self.heads;
                    let past = first + index > position / SPLIT;
                    if past || self.seen(first + index, position).is_empty() {
                        continue;
                    }
                    let at = index * rows + row;
                    let values = &values[at * dim..][..dim];
                    self.level.run(Merge { total, state: states[at], values, out: &mut out[row * dim..][..dim] });
                }
            }
        }
        for (values, state) in out.chunks_exact_mut(dim).zip(&totals) {
            values.iter_mut().for_each(|value| *value /= state.sum);
        }
    }

    /// The states of all rows after each of `splits` alone: `states` are `[splits, rows]`, `values` have `head_dim` each.
    fn round(&self, units: &[Unit], splits: Range<usize>, states: &mut [State], values: &mut [f32]) {
        let rows = self.tokens * self.heads;
        let (states, values) = (Disjoint::new(states), Disjoint::new(values));
        let work = 2 * self.layout.head_dim * SPLIT * rows / units.len();
        for_each(splits.len() * units.len(), work, |task| {
            let (index, unit) = (task / units.len(), &units[task % units.len()]);
            let split = splits.start + index;
            if !self.splits(unit).contains(&split) {
                return;
            }
            let mut own = vec![State::START; unit.tokens * self.group()];
            let base = index * rows * self.layout.head_dim;
            self.level.run(Pass { job: self, unit, split, states: &mut own, values: &values, base });
            for (row, state) in own.into_iter().enumerate() {
                let at = index * rows + self.row_at(unit, row) / self.layout.head_dim;
                // SAFETY: one task has this split of this row.
                let part = unsafe { states.part(at, 1) };
                part[0] = state;
            }
        });
    }
}
