//! The inner loops: dot products of a group of up to 128 elements, `R` vectors of sixteen outputs by `T` inputs.
//!
//! A lane is an output, so no lane ever meets another; the chains of the contract run down `k`, one element of the
//! input broadcast at a time. How many chains are in flight changes nothing but speed.

use super::lanes::{Block, LANES, Lanes, Task};
use crate::contract::{GROUP, RUN, RUNS};
use crate::matrix::{BF16_COL_BYTES, Int4Group, Int8Group};
use std::ops::Range;

/// Where a group's weights come from: `R` vectors of sixteen outputs for each element `k`.
pub(super) trait Weights<const R: usize>: Copy {
    /// Vector `r` at element `k`.
    ///
    /// # Safety
    /// `r < R`, and `k` is below the number of elements that whoever made the value has vouched for.
    unsafe fn at<L: Lanes>(self, lanes: L, r: usize, k: usize) -> L::F;
}

/// Weights already in f32: `R` panels of one block an element.
#[derive(Clone, Copy)]
pub(super) struct Panels<'a, const R: usize>(pub(super) [&'a [Block; GROUP]; R]);

impl<const R: usize> Weights<R> for Panels<'_, R> {
    #[inline(always)]
    unsafe fn at<L: Lanes>(self, lanes: L, r: usize, k: usize) -> L::F {
        debug_assert!(k < GROUP);
        // SAFETY: the caller's; a panel vouches for 128 elements.
        lanes.load(&unsafe { self.0[r].get_unchecked(k) }.0)
    }
}

/// Vectors of sixteen f32 or BF16 elements, as little-endian bytes, `stride` vectors from one `k` to the next.
#[derive(Clone, Copy)]
pub(super) struct Strided<'a, const R: usize, V> {
    /// For each of the `R` vectors, all that is read; the first is at `k = 0`. Vouches for `len / stride` elements.
    pub(super) vectors: [&'a [V]; R],
    pub(super) stride: usize,
}

impl<const R: usize, V: Vector> Weights<R> for Strided<'_, R, V> {
    #[inline(always)]
    unsafe fn at<L: Lanes>(self, lanes: L, r: usize, k: usize) -> L::F {
        debug_assert!(k * self.stride < self.vectors[r].len());
        // SAFETY: the caller's.
        unsafe { self.vectors[r].get_unchecked(k * self.stride) }.load(lanes)
    }
}

/// Sixteen stored elements.
pub(super) trait Vector: Copy {
    fn load<L: Lanes>(&self, lanes: L) -> L::F;
}

impl Vector for [u8; BF16_COL_BYTES] {
    #[inline(always)]
    fn load<L: Lanes>(&self, lanes: L) -> L::F {
        lanes.load_bf16(self)
    }
}

impl Vector for [u8; 4 * LANES] {
    #[inline(always)]
    fn load<L: Lanes>(&self, lanes: L) -> L::F {
        lanes.load_f32_bytes(self)
    }
}

/// Sums of one group in the contract's order: the first `lens[t] <= 128` elements of `xs[t]`, `C` of a full group's four
/// runs side by side.
///
/// # Safety
/// `xs[t]` has at least `lens[t]` elements, and `weights` vouches for as many as the largest of `lens`.
#[inline(always)]
pub(super) unsafe fn group_sums<L: Lanes, W: Weights<R>, const R: usize, const T: usize, const C: usize>(
    lanes: L,
    weights: W,
    xs: [&[f32]; T],
    lens: [usize; T],
) -> [[L::F; R]; T] {
    // SAFETY: as the caller promises.
    unsafe { group_part_sums::<L, W, R, T, C>(lanes, weights, xs, [0; T], lens) }
}

/// [`group_sums`] of which only elements `starts[t]..ends[t]` of `xs[t]` take part.
///
/// # Safety
/// As there, with `ends` for `lens`.
#[inline(always)]
unsafe fn group_part_sums<L: Lanes, W: Weights<R>, const R: usize, const T: usize, const C: usize>(
    lanes: L,
    weights: W,
    xs: [&[f32]; T],
    starts: [usize; T],
    ends: [usize; T],
) -> [[L::F; R]; T] {
    const { assert!(RUNS.is_multiple_of(C)) }
    debug_assert!(xs.iter().zip(ends).all(|(x, end)| end <= GROUP && x.len() >= end));
    let zero = lanes.splat(0.0);
    let mut runs = [[[zero; R]; T]; RUNS];
    if starts == [0; T] && ends == [GROUP; T] {
        for (part, sums) in runs.chunks_exact_mut(C).enumerate() {
            let mut acc = [[[zero; R]; T]; C];
            for step in 0..RUN {
                for c in 0..C {
                    let k = (part * C + c) * RUN + step;
                    // SAFETY: `k < GROUP`, the length of every x.
                    unsafe { advance(lanes, weights, &xs, k, &mut acc[c]) };
                }
            }
            sums.copy_from_slice(&acc);
        }
    } else {
        // What all have in common is done together; each does by itself what it has before and behind that.
        let last = ends.into_iter().fold(GROUP, usize::min);
        let first = starts.into_iter().fold(0, usize::max).min(last);
        let alone = |acc: &mut [[L::F; R]; T], t: usize, range: Range<usize>| {
            for k in range {
                for r in 0..R {
                    // SAFETY: `k < ends[t]` wherever this is called.
                    let w = unsafe { weights.at(lanes, r, k) };
                    acc[t][r] = lanes.fma(w, lanes.splat(xs[t][k]), acc[t][r]);
                }
            }
        };
        for (run, sums) in runs.iter_mut().enumerate() {
            let (start, end) = (run * RUN, (run + 1) * RUN);
            let mut acc = [[zero; R]; T];
            for t in 0..T {
                alone(&mut acc, t, start.max(starts[t])..first.min(end));
            }
            for k in start.max(first)..last.min(end) {
                // SAFETY: `k` is below every end.
                unsafe { advance(lanes, weights, &xs, k, &mut acc) };
            }
            for t in 0..T {
                alone(&mut acc, t, start.max(last).max(starts[t])..ends[t].min(end));
            }
            *sums = acc;
        }
    }
    combine_runs(lanes, &runs)
}

/// [`group_sums`] as a function of its own: inlined everywhere, the larger shapes would take minutes to compile.
///
/// # Safety
/// As there.
#[inline(always)]
pub(super) unsafe fn group_sums_apart<L: Lanes, W: Weights<R>, const R: usize, const T: usize, const C: usize>(
    lanes: L,
    weights: W,
    xs: [&[f32]; T],
    lens: [usize; T],
) -> [[L::F; R]; T] {
    let mut stored = [[Block::ZERO; R]; T];
    lanes.call(Sums::<W, R, T, C> { weights, xs, lens, out: &mut stored });
    let mut sums = [[lanes.splat(0.0); R]; T];
    for t in 0..T {
        for r in 0..R {
            sums[t][r] = lanes.load(&stored[t][r].0);
        }
    }
    sums
}

/// Only [`group_sums_apart`] makes one, so what it demands of its operands holds.
struct Sums<'x, W, const R: usize, const T: usize, const C: usize> {
    weights: W,
    xs: [&'x [f32]; T],
    lens: [usize; T],
    out: &'x mut [[Block; R]; T],
}

impl<W: Weights<R>, const R: usize, const T: usize, const C: usize> Task for Sums<'_, W, R, T, C> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        // SAFETY: as the caller of `group_sums_apart` has promised.
        let sums = unsafe { group_sums::<L, W, R, T, C>(lanes, self.weights, self.xs, self.lens) };
        for t in 0..T {
            for r in 0..R {
                lanes.store(sums[t][r], &mut self.out[t][r].0);
            }
        }
    }
}

/// [`group_sums_apart`] of which only elements `starts[t]..ends[t]` of `xs[t]` take part.
///
/// # Safety
/// As there, with `ends` for `lens`.
#[inline(always)]
pub(super) unsafe fn group_part_sums_apart<L: Lanes, W: Weights<R>, const R: usize, const T: usize, const C: usize>(
    lanes: L,
    weights: W,
    xs: [&[f32]; T],
    starts: [usize; T],
    ends: [usize; T],
) -> [[L::F; R]; T] {
    let mut stored = [[Block::ZERO; R]; T];
    lanes.call(PartSums::<W, R, T, C> { weights, xs, starts, ends, out: &mut stored });
    stored.map(|row| row.map(|block| lanes.load(&block.0)))
}

/// Only [`group_part_sums_apart`] makes one, so what it demands of its operands holds.
struct PartSums<'x, W, const R: usize, const T: usize, const C: usize> {
    weights: W,
    xs: [&'x [f32]; T],
    starts: [usize; T],
    ends: [usize; T],
    out: &'x mut [[Block; R]; T],
}

impl<W: Weights<R>, const R: usize, const T: usize, const C: usize> Task for PartSums<'_, W, R, T, C> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        // SAFETY: as the caller of `group_part_sums_apart` has promised.
        let sums = unsafe { group_part_sums::<L, W, R, T, C>(lanes, self.weights, self.xs, self.starts, self.ends) };
        for t in 0..T {
            for r in 0..R {
                lanes.store(sums[t][r], &mut self.out[t][r].0);
            }
        }
    }
}

/// One step of every chain: `acc[t][r] = fma(w[r][k], x[t][k], acc[t][r])`.
///
/// # Safety
/// As [`group_sums`], with `k` below every length.
#[inline(always)]
unsafe fn advance<L: Lanes, W: Weights<R>, const R: usize, const T: usize>(
    lanes: L,
    weights: W,
    xs: &[&[f32]; T],
    k: usize,
    acc: &mut [[L::F; R]; T],
) {
    let mut w = [lanes.splat(0.0); R];
    for (r, w) in w.iter_mut().enumerate() {
        // SAFETY: `k` is below every length.
        *w = unsafe { weights.at(lanes, r, k) };
    }
    for t in 0..T {
        // SAFETY: `k` is below the length of every x.
        let x = lanes.splat(unsafe { *xs[t].get_unchecked(k) });
        for r in 0..R {
            acc[t][r] = lanes.fma(w[r], x, acc[t][r]);
        }
    }
}

/// `(run0 + run1) + (run2 + run3)`.
#[inline(always)]
fn combine_runs<L: Lanes, const R: usize, const T: usize>(lanes: L, runs: &[[[L::F; R]; T]; RUNS]) -> [[L::F; R]; T] {
    let mut sums = runs[0];
    for t in 0..T {
        for r in 0..R {
            let low = lanes.add(runs[0][t][r], runs[1][t][r]);
            sums[t][r] = lanes.add(low, lanes.add(runs[2][t][r], runs[3][t][r]));
        }
    }
    sums
}

/// Sums of one full INT4 group, the nibbles decoded in registers: what decode spends its time in.
#[inline(always)]
pub(super) fn int4_sums<L: Lanes, const T: usize>(lanes: L, group: &Int4Group, xs: [&[f32; GROUP]; T]) -> [L::F; T] {
    let mut runs = [[[lanes.splat(0.0); T]; 1]; RUNS];
    // Two runs side by side: one chain after the other would wait for its own additions.
    for (pair, sums) in runs.chunks_exact_mut(2).enumerate() {
        let first = 2 * pair;
        let (a, b) = (lanes.int4_run(group, first), lanes.int4_run(group, first + 1));
        for word in 0..4 {
            let (a, b) = (lanes.int4_columns(a[word]), lanes.int4_columns(b[word]));
            for col in 0..8 {
                let k = first * RUN + word * 8 + col;
                for t in 0..T {
                    sums[0][0][t] = lanes.fma(a[col], lanes.splat(xs[t][k]), sums[0][0][t]);
                    sums[1][0][t] = lanes.fma(b[col], lanes.splat(xs[t][k + RUN]), sums[1][0][t]);
                }
            }
        }
    }
    let [sums] = combine_runs(lanes, &runs);
    sums
}

/// [`int4_sums`] for an INT8 group.
#[inline(always)]
pub(super) fn int8_sums<L: Lanes, const T: usize>(lanes: L, group: &Int8Group, xs: [&[f32; GROUP]; T]) -> [L::F; T] {
    let mut runs = [[[lanes.splat(0.0); T]; 1]; RUNS];
    for (pair, sums) in runs.chunks_exact_mut(2).enumerate() {
        let first = 2 * pair;
        for half in 0..2 {
            let (a, b) =
                (lanes.int8_half_run(group, 2 * first + half), lanes.int8_half_run(group, 2 * first + 2 + half));
            for word in 0..4 {
                let (a, b) = (lanes.int8_columns(a[word]), lanes.int8_columns(b[word]));
                for col in 0..4 {
                    let k = first * RUN + half * RUN / 2 + word * 4 + col;
                    for t in 0..T {
                        sums[0][0][t] = lanes.fma(a[col], lanes.splat(xs[t][k]), sums[0][0][t]);
                        sums[1][0][t] = lanes.fma(b[col], lanes.splat(xs[t][k + RUN]), sums[1][0][t]);
                    }
                }
            }
        }
    }
    let [sums] = combine_runs(lanes, &runs);
    sums
}

/// Converts the columns of a BF16 tile to f32, as many as the shorter of the two has.
pub(super) struct FillBf16<'a> {
    pub(super) cols: &'a [[u8; BF16_COL_BYTES]],
    pub(super) panel: &'a mut [Block; GROUP],
}

impl Task for FillBf16<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        for (col, block) in self.cols.iter().zip(self.panel) {
            lanes.store(lanes.load_bf16(col), &mut block.0);
        }
    }
}

/// Converts a group of an INT4 tile to f32, unscaled.
pub(super) struct FillInt4<'a> {
    pub(super) group: &'a Int4Group,
    pub(super) panel: &'a mut [Block; GROUP],
}

impl Task for FillInt4<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        for (run, blocks) in self.panel.chunks_exact_mut(RUN).enumerate() {
            for (q, blocks) in lanes.int4_run(self.group, run).into_iter().zip(blocks.chunks_exact_mut(8)) {
                for (column, block) in lanes.int4_columns(q).into_iter().zip(blocks) {
                    lanes.store(column, &mut block.0);
                }
            }
        }
    }
}

/// Converts a group of an INT8 tile to f32, unscaled.
pub(super) struct FillInt8<'a> {
    pub(super) group: &'a Int8Group,
    pub(super) panel: &'a mut [Block; GROUP],
}

impl Task for FillInt8<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        for (half, blocks) in self.panel.chunks_exact_mut(RUN / 2).enumerate() {
            for (q, blocks) in lanes.int8_half_run(self.group, half).into_iter().zip(blocks.chunks_exact_mut(4)) {
                for (column, block) in lanes.int8_columns(q).into_iter().zip(blocks) {
                    lanes.store(column, &mut block.0);
                }
            }
        }
    }
}
