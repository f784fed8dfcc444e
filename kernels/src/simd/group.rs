//! The inner loops: dot products of a group of up to 128 elements, `R` vectors of sixteen outputs by `T` inputs.
//!
//! A lane is an output, so no lane ever meets another; the chains of the contract run down `k`, one element of the
//! input broadcast at a time. How many chains are in flight changes nothing but speed.

use super::lanes::{Block, LANES, Lanes};
use crate::contract::{GROUP, RUN, RUNS};
use crate::matrix::{BF16_COL_BYTES, INT4_RUN_BYTES};

/// Where a group's weights come from: vector `r` of sixteen outputs at element `k`.
pub(super) trait Weights<L: Lanes, const R: usize>: Copy {
    /// Reads one vector.
    fn at(self, lanes: L, r: usize, k: usize) -> L::F;
}

/// Weights already in f32: `R` panels of one block an element.
#[derive(Clone, Copy)]
pub(super) struct Panels<'a, const R: usize>(pub(super) [&'a [Block; GROUP]; R]);

impl<L: Lanes, const R: usize> Weights<L, R> for Panels<'_, R> {
    #[inline(always)]
    fn at(self, lanes: L, r: usize, k: usize) -> L::F {
        lanes.load(&self.0[r][k & (GROUP - 1)].0)
    }
}

/// Vectors of sixteen f32 or BF16 elements in a byte slice, `stride` vectors from one `k` to the next.
#[derive(Clone, Copy)]
pub(super) struct Strided<'a, const R: usize, V> {
    /// For each of the `R` vectors, all that is read; the first is at `k = 0`.
    pub(super) vectors: [&'a [V]; R],
    pub(super) stride: usize,
}

impl<L: Lanes, const R: usize> Weights<L, R> for Strided<'_, R, [u8; BF16_COL_BYTES]> {
    #[inline(always)]
    fn at(self, lanes: L, r: usize, k: usize) -> L::F {
        debug_assert!(k * self.stride < self.vectors[r].len());
        // SAFETY: `group_sums` asks for `k < len`, and its caller has made sure of `len` vectors.
        lanes.load_bf16(unsafe { self.vectors[r].get_unchecked(k * self.stride) })
    }
}

impl<L: Lanes, const R: usize> Weights<L, R> for Strided<'_, R, [u8; 4 * LANES]> {
    #[inline(always)]
    fn at(self, lanes: L, r: usize, k: usize) -> L::F {
        debug_assert!(k * self.stride < self.vectors[r].len());
        // SAFETY: as above.
        lanes.load_f32_bytes(unsafe { self.vectors[r].get_unchecked(k * self.stride) })
    }
}

/// Sums of one group of `len <= 128` elements in the contract's order, `C` of its four runs side by side.
///
/// # Safety
/// Every `xs` has at least `len` elements and `weights` can be read at every `k < len`.
#[inline(always)]
pub(super) unsafe fn group_sums<L: Lanes, W: Weights<L, R>, const R: usize, const T: usize, const C: usize>(
    lanes: L,
    weights: W,
    xs: [&[f32]; T],
    len: usize,
) -> [[L::F; R]; T] {
    const { assert!(RUNS.is_multiple_of(C)) }
    debug_assert!(len <= GROUP && xs.iter().all(|x| x.len() >= len));
    let zero = lanes.splat(0.0);
    let mut runs = [[[zero; R]; T]; RUNS];
    if len == GROUP {
        for (part, sums) in runs.chunks_exact_mut(C).enumerate() {
            let mut acc = [[[zero; R]; T]; C];
            for step in 0..RUN {
                for c in 0..C {
                    let k = (part * C + c) * RUN + step;
                    // SAFETY: `k < GROUP == len`.
                    unsafe { advance(lanes, weights, &xs, k, &mut acc[c]) };
                }
            }
            sums.copy_from_slice(&acc);
        }
    } else {
        for (run, sums) in runs.iter_mut().enumerate() {
            let mut acc = [[zero; R]; T];
            for k in (run * RUN).min(len)..((run + 1) * RUN).min(len) {
                // SAFETY: `k < len`.
                unsafe { advance(lanes, weights, &xs, k, &mut acc) };
            }
            *sums = acc;
        }
    }
    combine_runs(lanes, &runs)
}

/// One step of every chain: `acc[t][r] = fma(w[r][k], x[t][k], acc[t][r])`.
///
/// # Safety
/// As [`group_sums`], with `k < len`.
#[inline(always)]
unsafe fn advance<L: Lanes, W: Weights<L, R>, const R: usize, const T: usize>(
    lanes: L,
    weights: W,
    xs: &[&[f32]; T],
    k: usize,
    acc: &mut [[L::F; R]; T],
) {
    let mut w = [lanes.splat(0.0); R];
    for (r, w) in w.iter_mut().enumerate() {
        *w = weights.at(lanes, r, k);
    }
    for t in 0..T {
        // SAFETY: `k < len <= xs[t].len()`.
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
pub(super) fn int4_sums<L: Lanes, const T: usize>(
    lanes: L,
    group: &[[u8; INT4_RUN_BYTES]],
    xs: [&[f32; GROUP]; T],
) -> [L::F; T] {
    let zero = lanes.splat(0.0);
    let mut runs = [[[zero; T]; 1]; RUNS];
    for (run, sums) in runs.iter_mut().enumerate() {
        let [q0, q1, q2, q3] = lanes.int4_run(&group[run]);
        let mut acc = [zero; T];
        int4_eight(lanes, q0, xs, run * RUN, &mut acc);
        int4_eight(lanes, q1, xs, run * RUN + 8, &mut acc);
        int4_eight(lanes, q2, xs, run * RUN + 16, &mut acc);
        int4_eight(lanes, q3, xs, run * RUN + 24, &mut acc);
        *sums = [acc];
    }
    let [sums] = combine_runs(lanes, &runs);
    sums
}

/// Eight steps of the chains of one run, from element `k`.
#[inline(always)]
fn int4_eight<L: Lanes, const T: usize>(lanes: L, q: L::Q, xs: [&[f32; GROUP]; T], k: usize, acc: &mut [L::F; T]) {
    let columns = lanes.int4_columns(q);
    for (i, &w) in columns.iter().enumerate() {
        for t in 0..T {
            acc[t] = lanes.fma(w, lanes.splat(xs[t][k + i]), acc[t]);
        }
    }
}

/// Converts the first `cols.len()` columns of a BF16 tile to f32.
#[inline(always)]
pub(super) fn fill_bf16<L: Lanes>(lanes: L, cols: &[[u8; BF16_COL_BYTES]], panel: &mut [Block; GROUP]) {
    for (col, block) in cols.iter().zip(panel.iter_mut()) {
        lanes.store(lanes.load_bf16(col), &mut block.0);
    }
}

/// Converts a group of an INT4 tile to f32, unscaled.
#[inline(always)]
pub(super) fn fill_int4<L: Lanes>(lanes: L, group: &[[u8; INT4_RUN_BYTES]], panel: &mut [Block; GROUP]) {
    for (run, blocks) in group.iter().zip(panel.chunks_exact_mut(RUN)) {
        for (q, blocks) in lanes.int4_run(run).into_iter().zip(blocks.chunks_exact_mut(8)) {
            for (column, block) in lanes.int4_columns(q).into_iter().zip(blocks) {
                lanes.store(column, &mut block.0);
            }
        }
    }
}
