//! The tiles of a task, by format: how their weights are read and their groups scaled.

use crate::contract::GROUP;
use crate::layout::MatrixFormat;
use crate::matrix::Matrix;
use crate::simd::group::{FillBf16, FillInt4, FillInt8, Strided, group_sums, int4_sums, int8_sums};
use crate::simd::lanes::{Block, LANES, Lanes};

/// One group of a tile in f32.
pub(super) type Panel = [Block; GROUP];

/// The `R` tiles of a task, by format.
pub(super) trait Tiles<const R: usize>: Copy {
    /// Converts one group to f32, without the scale.
    fn fill<L: Lanes>(self, lanes: L, group: usize, panels: &mut [Panel; 2]);
    /// Sums of a group of `T` inputs without converting it first; `None` where this does not do it.
    fn direct<L: Lanes, const T: usize>(self, lanes: L, group: usize, xs: [&[f32]; T]) -> Option<[[L::F; R]; T]>;
    /// Adds a group's sums to the totals, with the scale where there is one.
    fn add<L: Lanes, const T: usize>(self, lanes: L, group: usize, sums: &[[L::F; R]; T], totals: &mut [[L::F; R]; T]);
}

#[derive(Clone, Copy)]
pub(super) struct Bf16Tiles<'a, const R: usize>(pub(super) [(Matrix<'a>, usize); R]);

#[derive(Clone, Copy)]
pub(super) struct Int4Tiles<'a, const R: usize>(pub(super) [(Matrix<'a>, usize); R]);

#[derive(Clone, Copy)]
pub(super) struct Int8Tiles<'a, const R: usize>(pub(super) [(Matrix<'a>, usize); R]);

#[derive(Clone, Copy)]
pub(super) struct MixedTiles<'a, const R: usize>(pub(super) [(Matrix<'a>, usize); R]);

#[inline(always)]
fn add_plain<L: Lanes>(lanes: L, sum: L::F, total: &mut L::F) {
    *total = lanes.add(*total, sum);
}

#[inline(always)]
fn add_scaled<L: Lanes>(lanes: L, (matrix, tile): &(Matrix<'_>, usize), group: usize, sum: L::F, total: &mut L::F) {
    let scale = lanes.load_bf16(matrix.scales(*tile, group));
    *total = lanes.fma(scale, sum, *total);
}

#[inline(always)]
fn bf16_group<'a>((matrix, tile): &(Matrix<'a>, usize), group: usize) -> &'a [[u8; 2 * LANES]] {
    matrix.bf16_cols(*tile, group * GROUP..((group + 1) * GROUP).min(matrix.cols()))
}

/// Asks for as many bytes behind these: the next group, which the processor would ask for when this one is done, since its own prefetchers stop
/// at the end of a page and start anew with each tile.
#[inline(always)]
fn prefetch_behind(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..bytes.len()).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let at = bytes.as_ptr().wrapping_add(bytes.len() + offset).cast();
        // SAFETY: a hint, which reads nothing, wherever it points; every x86-64 has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// Inputs of whole groups, if all are.
#[inline(always)]
fn full<const T: usize>(xs: [&[f32]; T]) -> Option<[&[f32; GROUP]; T]> {
    static NOTHING: [f32; GROUP] = [0.0; GROUP];
    let mut full = [&NOTHING; T];
    for (full, x) in full.iter_mut().zip(xs) {
        *full = x.try_into().ok()?;
    }
    Some(full)
}

impl<const R: usize> Tiles<R> for Bf16Tiles<'_, R> {
    #[inline(always)]
    fn fill<L: Lanes>(self, lanes: L, group: usize, panels: &mut [Panel; 2]) {
        for (tile, panel) in self.0.iter().zip(panels) {
            lanes.call(FillBf16 { cols: bf16_group(tile, group), panel });
        }
    }

    #[inline(always)]
    fn direct<L: Lanes, const T: usize>(self, lanes: L, group: usize, xs: [&[f32]; T]) -> Option<[[L::F; R]; T]> {
        let mut vectors: [&[[u8; 2 * LANES]]; R] = [&[]; R];
        for (cols, tile) in vectors.iter_mut().zip(&self.0) {
            *cols = bf16_group(tile, group);
            prefetch_behind(cols.as_flattened());
        }
        let lens = xs.map(<[f32]>::len);
        let weights = Strided { vectors, stride: 1 };
        // SAFETY: a group's columns and each x have the same length, that of the group.
        Some(unsafe {
            if L::WIDE {
                group_sums::<L, _, R, T, 4>(lanes, weights, xs, lens)
            } else {
                group_sums::<L, _, R, T, 2>(lanes, weights, xs, lens)
            }
        })
    }

    #[inline(always)]
    fn add<L: Lanes, const T: usize>(self, lanes: L, _: usize, sums: &[[L::F; R]; T], totals: &mut [[L::F; R]; T]) {
        for t in 0..T {
            for r in 0..R {
                add_plain(lanes, sums[t][r], &mut totals[t][r]);
            }
        }
    }
}

impl<const R: usize> Tiles<R> for Int4Tiles<'_, R> {
    #[inline(always)]
    fn fill<L: Lanes>(self, lanes: L, group: usize, panels: &mut [Panel; 2]) {
        for ((matrix, tile), panel) in self.0.iter().zip(panels) {
            lanes.call(FillInt4 { group: matrix.int4_group(*tile, group), panel });
        }
    }

    #[inline(always)]
    fn direct<L: Lanes, const T: usize>(self, lanes: L, group: usize, xs: [&[f32]; T]) -> Option<[[L::F; R]; T]> {
        let full = full(xs)?;
        let mut sums = [[lanes.splat(0.0); R]; T];
        for (r, (matrix, tile)) in self.0.iter().enumerate() {
            let weights = matrix.int4_group(*tile, group);
            prefetch_behind(weights.as_flattened());
            let tile_sums = int4_sums(lanes, weights, full);
            for t in 0..T {
                sums[t][r] = tile_sums[t];
            }
        }
        Some(sums)
    }

    #[inline(always)]
    fn add<L: Lanes, const T: usize>(self, lanes: L, group: usize, sums: &[[L::F; R]; T], totals: &mut [[L::F; R]; T]) {
        for t in 0..T {
            for r in 0..R {
                add_scaled(lanes, &self.0[r], group, sums[t][r], &mut totals[t][r]);
            }
        }
    }
}

impl<const R: usize> Tiles<R> for Int8Tiles<'_, R> {
    #[inline(always)]
    fn fill<L: Lanes>(self, lanes: L, group: usize, panels: &mut [Panel; 2]) {
        for ((matrix, tile), panel) in self.0.iter().zip(panels) {
            lanes.call(FillInt8 { group: matrix.int8_group(*tile, group), panel });
        }
    }

    #[inline(always)]
    fn direct<L: Lanes, const T: usize>(self, lanes: L, group: usize, xs: [&[f32]; T]) -> Option<[[L::F; R]; T]> {
        let full = full(xs)?;
        let mut sums = [[lanes.splat(0.0); R]; T];
        for (r, (matrix, tile)) in self.0.iter().enumerate() {
            let weights = matrix.int8_group(*tile, group);
            prefetch_behind(weights.as_flattened());
            let tile_sums = int8_sums(lanes, weights, full);
            for t in 0..T {
                sums[t][r] = tile_sums[t];
            }
        }
        Some(sums)
    }

    #[inline(always)]
    fn add<L: Lanes, const T: usize>(self, lanes: L, group: usize, sums: &[[L::F; R]; T], totals: &mut [[L::F; R]; T]) {
        for t in 0..T {
            for r in 0..R {
                add_scaled(lanes, &self.0[r], group, sums[t][r], &mut totals[t][r]);
            }
        }
    }
}

impl<const R: usize> Tiles<R> for MixedTiles<'_, R> {
    #[inline(always)]
    fn fill<L: Lanes>(self, lanes: L, group: usize, panels: &mut [Panel; 2]) {
        for ((matrix, tile), panel) in self.0.iter().zip(panels) {
            match matrix.format() {
                MatrixFormat::Bf16 => lanes.call(FillBf16 { cols: bf16_group(&(*matrix, *tile), group), panel }),
                MatrixFormat::Int4 => lanes.call(FillInt4 { group: matrix.int4_group(*tile, group), panel }),
                MatrixFormat::Int8 => lanes.call(FillInt8 { group: matrix.int8_group(*tile, group), panel }),
            }
        }
    }

    #[inline(always)]
    fn direct<L: Lanes, const T: usize>(self, _: L, _: usize, _: [&[f32]; T]) -> Option<[[L::F; R]; T]> {
        None
    }

    #[inline(always)]
    fn add<L: Lanes, const T: usize>(self, lanes: L, group: usize, sums: &[[L::F; R]; T], totals: &mut [[L::F; R]; T]) {
        for t in 0..T {
            for r in 0..R {
                match self.0[r].0.format() {
                    MatrixFormat::Bf16 => add_plain(lanes, sums[t][r], &mut totals[t][r]),
                    MatrixFormat::Int4 | MatrixFormat::Int8 => {
                        add_scaled(lanes, &self.0[r], group, sums[t][r], &mut totals[t][r])
                    }
                }
            }
        }
    }
}
