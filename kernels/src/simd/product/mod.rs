//! Matrix products: one driver for linear layers and for routed experts.
//!
//! The work is cut into tasks of a pair of row tiles by up to [`CHUNK`] inputs. With many inputs a task converts each
//! group of weights to f32 once and uses it for all of them; with one or two the weights are decoded on the way into
//! the FMAs.

mod tiles;

use self::tiles::{Bf16Tiles, Int4Tiles, Int8Tiles, MixedTiles, Panel, Tiles};
use super::group::{Panels, group_sums_apart};
use super::lanes::{Block, LANES, Lanes, Level, Task};
use super::parallel::{Disjoint, for_each};
use crate::contract::GROUP;
use crate::layout::MatrixFormat;
use crate::matrix::Matrix;
use crate::{Activation, Projection};
use std::cell::RefCell;

/// Inputs that share one conversion of the weights.
const CHUNK: usize = 128;

/// Inputs that one set of weights is applied to.
#[derive(Clone, Copy)]
pub(super) struct Segment<'a> {
    /// Index of the weights.
    pub(super) weights: usize,
    /// The slots, as `order` lists them; `None` for `first .. first + len` themselves.
    pub(super) slots: Option<&'a [u32]>,
    first: usize,
    len: usize,
}

impl<'a> Segment<'a> {
    /// Slots `0..len` under weights 0, cut into chunks.
    pub(super) fn dense(len: usize) -> Vec<Self> {
        let chunk = |first| Self { weights: 0, slots: None, first, len: CHUNK.min(len - first) };
        (0..len).step_by(CHUNK).map(chunk).collect()
    }

    /// The slots of every expert that has some, cut into chunks.
    pub(super) fn routed(order: &'a [u32], offsets: &[u32]) -> Vec<Self> {
        let mut segments = Vec::with_capacity(offsets.len().min(order.len()));
        for (weights, bounds) in offsets.windows(2).enumerate() {
            for slots in order[bounds[0] as usize..bounds[1] as usize].chunks(CHUNK) {
                segments.push(Self { weights, slots: Some(slots), first: 0, len: slots.len() });
            }
        }
        segments
    }

    #[inline(always)]
    fn slot(&self, index: usize) -> usize {
        match self.slots {
            Some(slots) => slots[index] as usize,
            None => self.first + index,
        }
    }
}

/// What happens to the dot products of a task's two tiles, once biases have been added.
#[derive(Clone, Copy)]
pub(super) enum Finish {
    /// They are neighbouring tiles of one matrix: stored.
    Plain,
    /// They are one tile of gate and of up: `activation(gate, up)` is stored.
    Gated(Activation),
}

/// A product of every segment's inputs with its weights.
pub(super) struct Product<'a> {
    /// `[rows, cols]`; slot s reads row `s / slots_per_row`.
    pub(super) x: &'a [f32],
    pub(super) slots_per_row: usize,
    pub(super) cols: usize,
    /// Rows of a weight matrix: the width of a row of the output, which has one for each slot.
    pub(super) rows: usize,
    pub(super) segments: Vec<Segment<'a>>,
    /// The projections of weights `w`: one twice, or gate and up. `None` only where no segment has slots for `w`.
    /// Behind a pointer: the task is compiled once for each level, not once for each family too.
    pub(super) weights: &'a (dyn Fn(usize) -> Option<[Projection<'a>; 2]> + Sync),
    pub(super) finish: Finish,
}

impl Product<'_> {
    /// Runs it into `out`, `[slots, rows]`.
    pub(super) fn run(&self, level: Level, out: &mut [f32]) {
        let out = Disjoint::new(out);
        let tasks = self.tasks();
        let slots: usize = self.segments.iter().map(|segment| segment.len).sum();
        let work = (slots * self.cols * 2 * LANES).checked_div(self.segments.len()).unwrap_or(0);
        for_each(tasks, work, |task| self.run_task(level, task, &out));
    }

    /// Tasks that write different outputs.
    pub(super) fn tasks(&self) -> usize {
        self.segments.len() * self.parts()
    }

    /// Tasks of a segment.
    fn parts(&self) -> usize {
        let tiles = self.rows.div_ceil(LANES);
        if matches!(self.finish, Finish::Gated(_)) { tiles } else { tiles.div_ceil(2) }
    }

    /// One of [`Product::tasks`], into `out`, `[slots, rows]`.
    pub(super) fn run_task(&self, level: Level, task: usize, out: &Disjoint<'_, f32>) {
        let (segment, part) = (&self.segments[task / self.parts()], task % self.parts());
        SCRATCH.with_borrow_mut(|scratch| {
            level.run(Part { product: self, segment, part, biases: [None; 2], out, scratch });
        });
    }
}

/// Memory of one thread for the task that it works on.
struct Scratch {
    panels: [Panel; 2],
    totals: [[Block; 2]; CHUNK],
}

thread_local! {
    static SCRATCH: RefCell<Box<Scratch>> = RefCell::new(Box::new(Scratch {
        panels: [[Block::ZERO; GROUP]; 2],
        totals: [[Block::ZERO; 2]; CHUNK],
    }));
}

/// One task: a segment by one tile of gate and up, or by a pair of neighbouring tiles.
struct Part<'s, 'a> {
    product: &'s Product<'a>,
    segment: &'s Segment<'a>,
    part: usize,
    /// Of the tiles; what a tile has no bias for is left alone.
    biases: [Option<&'a [f32]>; 2],
    out: &'s Disjoint<'s, f32>,
    scratch: &'s mut Scratch,
}

impl Task for Part<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        let Some(projections) = (self.product.weights)(self.segment.weights) else {
            // The family's check has refused an expert that has slots and no weights.
            return;
        };
        self.biases = projections.map(|projection| projection.bias);
        let [first, second] = projections.map(|projection| projection.weight);
        if matches!(self.product.finish, Finish::Gated(_)) {
            self.format(lanes, [(first, self.part), (second, self.part)]);
        } else if 2 * self.part + 1 < first.tiles() {
            self.format(lanes, [(first, 2 * self.part), (first, 2 * self.part + 1)]);
        } else {
            self.format(lanes, [(first, 2 * self.part)]);
        }
    }
}

impl<'a> Part<'_, 'a> {
    #[inline(always)]
    fn format<L: Lanes, const R: usize>(&mut self, lanes: L, tiles: [(Matrix<'a>, usize); R]) {
        // Gate and up may differ in format; such a pair has its weights converted first.
        if tiles.iter().all(|(matrix, _)| matrix.format() == MatrixFormat::Bf16) {
            self.inputs(lanes, Bf16Tiles(tiles));
        } else if tiles.iter().all(|(matrix, _)| matrix.format() == MatrixFormat::Int4) {
            self.inputs(lanes, Int4Tiles(tiles));
        } else if tiles.iter().all(|(matrix, _)| matrix.format() == MatrixFormat::Int8) {
            self.inputs(lanes, Int8Tiles(tiles));
        } else {
            self.inputs(lanes, MixedTiles(tiles));
        }
    }

    #[inline(always)]
    fn inputs<L: Lanes, G: Tiles<R>, const R: usize>(&mut self, lanes: L, tiles: G) {
        match self.segment.len {
            1 => lanes.call(Few::<G, R, 1> { part: self, tiles }),
            2 if L::WIDE => lanes.call(Few::<G, R, 2> { part: self, tiles }),
            _ => self.many(lanes, tiles),
        }
    }

    /// `T` inputs, all that the segment has.
    #[inline(always)]
    fn few<L: Lanes, G: Tiles<R>, const R: usize, const T: usize>(&mut self, lanes: L, tiles: G) {
        let mut totals = [[lanes.splat(0.0); R]; T];
        for group in 0..self.product.cols.div_ceil(GROUP) {
            let xs = self.xs::<T>(0, group);
            let sums = if let Some(sums) = tiles.direct(lanes, group, xs) {
                sums
            } else {
                tiles.fill(lanes, group, &mut self.scratch.panels);
                // SAFETY: every x has its own length, and a panel has 128 blocks.
                unsafe {
                    group_sums_apart::<L, _, R, T, 1>(lanes, panels(&self.scratch.panels), xs, xs.map(<[f32]>::len))
                }
            };
            tiles.add(lanes, group, &sums, &mut totals);
        }
        for (t, total) in totals.into_iter().enumerate() {
            self.finish(lanes, t, total);
        }
    }

    /// Any number of inputs: each group of weights is converted once.
    #[inline(always)]
    fn many<L: Lanes, G: Tiles<R>, const R: usize>(&mut self, lanes: L, tiles: G) {
        let len = self.segment.len;
        self.scratch.totals[..len].fill([Block::ZERO; 2]);
        for group in 0..self.product.cols.div_ceil(GROUP) {
            tiles.fill(lanes, group, &mut self.scratch.panels);
            let mut t = 0;
            if L::WIDE {
                while len - t >= 8 {
                    self.block::<L, G, R, 8, 1>(lanes, tiles, group, t);
                    t += 8;
                }
                if len - t >= 4 {
                    self.block::<L, G, R, 4, 2>(lanes, tiles, group, t);
                    t += 4;
                }
            }
            while len - t >= 2 {
                self.block::<L, G, R, 2, 1>(lanes, tiles, group, t);
                t += 2;
            }
            if len > t {
                self.block::<L, G, R, 1, 2>(lanes, tiles, group, t);
            }
        }
        for t in 0..len {
            let mut total = [lanes.splat(0.0); R];
            for (total, block) in total.iter_mut().zip(&self.scratch.totals[t]) {
                *total = lanes.load(&block.0);
            }
            self.finish(lanes, t, total);
        }
    }

    /// Adds one group to the totals of `T` inputs.
    #[inline(always)]
    fn block<L: Lanes, G: Tiles<R>, const R: usize, const T: usize, const C: usize>(
        &mut self,
        lanes: L,
        tiles: G,
        group: usize,
        first: usize,
    ) {
        let xs = self.xs::<T>(first, group);
        // SAFETY: every x has its own length, and a panel has 128 blocks.
        let sums =
            unsafe { group_sums_apart::<L, _, R, T, C>(lanes, panels(&self.scratch.panels), xs, xs.map(<[f32]>::len)) };
        let mut totals = [[lanes.splat(0.0); R]; T];
        let stored = &mut self.scratch.totals[first..first + T];
        for t in 0..T {
            for r in 0..R {
                totals[t][r] = lanes.load(&stored[t][r].0);
            }
        }
        tiles.add(lanes, group, &sums, &mut totals);
        for t in 0..T {
            for r in 0..R {
                lanes.store(totals[t][r], &mut stored[t][r].0);
            }
        }
    }

    /// One group of `T` inputs from the segment's `first`.
    #[inline(always)]
    fn xs<const T: usize>(&self, first: usize, group: usize) -> [&'a [f32]; T] {
        let product = self.product;
        let start = group * GROUP;
        let len = GROUP.min(product.cols - start);
        let mut xs: [&[f32]; T] = [&[]; T];
        for (t, x) in xs.iter_mut().enumerate() {
            let row = self.segment.slot(first + t) / product.slots_per_row;
            *x = &product.x[row * product.cols + start..][..len];
        }
        xs
    }

    /// Stores the finished outputs of input `t` of the segment.
    #[inline(always)]
    fn finish<L: Lanes, const R: usize>(&mut self, lanes: L, t: usize, mut total: [L::F; R]) {
        let product = self.product;
        let slot = self.segment.slot(t);
        let gated = matches!(product.finish, Finish::Gated(_));
        for (r, total) in total.iter_mut().enumerate() {
            if let Some(bias) = self.biases[r] {
                let tile = if gated { self.part } else { 2 * self.part + r };
                *total = lanes.add(*total, lanes.load_part(&bias[tile * LANES..]));
            }
        }
        match product.finish {
            Finish::Gated(activation) => {
                self.store(lanes, slot, self.part, lanes.activate(activation, total[0], total[R - 1]));
            }
            Finish::Plain => {
                for (r, total) in total.into_iter().enumerate() {
                    self.store(lanes, slot, 2 * self.part + r, total);
                }
            }
        }
    }

    /// Stores one tile of one slot's outputs.
    #[inline(always)]
    fn store<L: Lanes>(&self, lanes: L, slot: usize, tile: usize, value: L::F) {
        let first = tile * LANES;
        let len = LANES.min(self.product.rows - first);
        // SAFETY: no other task has this slot and this tile: slots are named once, parts are distinct.
        let out = unsafe { self.out.part(slot * self.product.rows + first, len) };
        lanes.store_part(value, out);
    }
}

/// [`Part::few`] as a function of its own.
struct Few<'p, 's, 'a, G, const R: usize, const T: usize> {
    part: &'p mut Part<'s, 'a>,
    tiles: G,
}

impl<G: Tiles<R>, const R: usize, const T: usize> Task for Few<'_, '_, '_, G, R, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        self.part.few::<L, G, R, T>(lanes, self.tiles);
    }
}

#[inline(always)]
fn panels<const R: usize>(panels: &[Panel; 2]) -> Panels<'_, R> {
    let mut refs = [&panels[0]; R];
    for (index, panel) in panels.iter().enumerate().take(R) {
        refs[index] = panel;
    }
    Panels(refs)
}
