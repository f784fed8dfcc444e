//! Matrices on a grid: `q * 2^e`, q in −7..=7, one exponent for each row and group of 128 columns.
//!
//! Such values are exact in BF16, in INT4 with BF16 scales, and in llama.cpp's Q4_0 (blocks of 32 with an F16 scale): the same
//! weights in every form that a comparison may need. Every group holds a 7 or a −7, so that `amax / 7` is its scale and
//! quantising the values gives the grid back.

use std::ops::Range;

use assay_kernels::layout::{GROUP_COLS, INT4_MAX};

use super::random::Stream;

/// Values of q.
const LEVELS: u64 = 15;
/// Mean square of q, uniform over −7..=7.
const MEAN_SQUARE: f64 = 56.0 / 3.0;
/// A word gives four values, 16 bits each.
const VALUES_PER_WORD: usize = 4;
/// Words of a group: its values, and one for its scale.
const WORDS_PER_GROUP: u64 = (GROUP_COLS / VALUES_PER_WORD) as u64 + 1;

/// How large the values of a matrix are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Grid {
    /// The larger of the two scales, a power of two; the other is half of it.
    scale: f32,
    /// Share of the groups with the smaller one.
    smaller: f64,
    /// Added to every q, which stays within −7..=7.
    offset: i64,
    /// Columns that are 0, at the start of each row.
    blank_cols: usize,
}

impl Grid {
    /// A grid whose values have this standard deviation (for an offset of 0): the next power of two above it that a scale can
    /// be, and as many groups at half of that as are needed.
    pub(super) fn with_std(std: f64, offset: i8) -> Self {
        let step = std / MEAN_SQUARE.sqrt();
        // The exponent from the bits: a logarithm's last digit may differ between systems.
        let exponent = ((step.to_bits() >> 52) & 0x7ff) as i32 - 1023 + i32::from(step.to_bits() << 12 != 0);
        let scale = 2f64.powi(exponent);
        let smaller = (1.0 - (step / scale).powi(2)) / 0.75;
        Self { scale: scale as f32, smaller, offset: i64::from(offset), blank_cols: 0 }
    }

    /// The same with its first columns 0; fewer than a group has.
    pub(super) fn blank(self, blank_cols: usize) -> Self {
        Self { blank_cols, ..self }
    }

    /// The largest value.
    pub(super) fn largest(&self) -> f32 {
        f32::from(INT4_MAX) * self.scale
    }

    /// The first group of a row, which `out` begins with, at the larger scale whatever its random one is.
    pub(super) fn fill_larger(&self, stream: Stream, row: usize, cols: usize, out: &mut [f32]) {
        let first_word = row as u64 * cols.div_ceil(GROUP_COLS) as u64 * WORDS_PER_GROUP;
        let group = cols.min(GROUP_COLS);
        if let Some(out) = out.get_mut(..group) {
            Self { smaller: 0.0, ..*self }.fill_group(stream, first_word, 0, out);
        }
    }

    /// Rows of a matrix of `cols` columns, row-major.
    pub(super) fn fill(&self, stream: Stream, rows: Range<usize>, cols: usize, out: &mut [f32]) {
        let groups = cols.div_ceil(GROUP_COLS) as u64;
        for (row, out) in rows.zip(out.chunks_exact_mut(cols)) {
            for (group, out) in out.chunks_mut(GROUP_COLS).enumerate() {
                let blank = if group == 0 { self.blank_cols } else { 0 };
                self.fill_group(stream, (row as u64 * groups + group as u64) * WORDS_PER_GROUP, blank, out);
            }
        }
    }

    fn fill_group(&self, stream: Stream, first_word: u64, blank: usize, out: &mut [f32]) {
        let mut q = [0i8; GROUP_COLS];
        for (index, q) in q.chunks_exact_mut(VALUES_PER_WORD).enumerate() {
            let word = stream.word(first_word + 1 + index as u64);
            for (lane, q) in q.iter_mut().enumerate() {
                let level = ((word >> (16 * lane) & 0xffff) * LEVELS) >> 16;
                *q = level as i8 - INT4_MAX;
            }
        }
        let q = &mut q[..out.len()];
        if self.offset != 0 {
            let limit = i64::from(INT4_MAX);
            q.iter_mut().for_each(|q| *q = (i64::from(*q) + self.offset).clamp(-limit, limit) as i8);
        }
        let (blank, filled) = q.split_at_mut(blank.min(q.len()));
        blank.fill(0);
        if !filled.iter().any(|q| q.abs() == INT4_MAX)
            && let Some(first) = filled.first_mut()
        {
            *first = INT4_MAX;
        }
        let scale = if stream.unit(first_word) < self.smaller { self.scale / 2.0 } else { self.scale };
        out.iter_mut().zip(q).for_each(|(out, q)| *out = f32::from(*q) * scale);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::random::Name;
    use super::*;
    use crate::expert_cache::quantize::{QuantizeMethod, quantize_group};

    #[test]
    fn values_have_the_deviation_asked_for_and_no_mean() {
        let (rows, cols) = (256, 1000);
        for std in [1.0, 0.9, 0.022, 1.0 / 64.0, 3e-4] {
            let mut values = vec![0f32; rows * cols];
            Grid::with_std(std, 0).fill(Stream::of_model(7, Name::Gate), 0..rows, cols, &mut values);
            let n = values.len() as f64;
            let mean = values.iter().map(|&value| f64::from(value)).sum::<f64>() / n;
            let square = values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>() / n;
            assert!((square.sqrt() / std - 1.0).abs() < 0.01, "{std}: {}", square.sqrt());
            // Four of its standard errors.
            assert!(mean.abs() < 4.0 * std / n.sqrt(), "{std}: mean {mean}");
        }
    }

    #[test]
    fn rows_do_not_depend_on_how_they_are_asked_for() {
        let (rows, cols) = (20, 200);
        let (grid, stream) = (Grid::with_std(0.1, 0), Stream::of_layer(3, 1, Name::Query));
        let mut whole = vec![0f32; rows * cols];
        grid.fill(stream, 0..rows, cols, &mut whole);
        for row in (0..rows).rev() {
            let mut alone = vec![0f32; cols];
            grid.fill(stream, row..row + 1, cols, &mut alone);
            assert!(alone == whole[row * cols..][..cols], "row {row}");
        }
        // What a seed means is fixed: these are the first values of this stream.
        let q: Vec<f32> = whole[..8].iter().map(|value| value / grid.scale).collect();
        assert_eq!(q, [2.0, -7.0, 6.0, -5.0, -1.0, 3.0, -2.0, -3.0]);
    }

    #[test]
    fn quantising_the_values_gives_the_grid_back() {
        let cols = 64;
        for (offset, blank) in [(0, 0), (2, 0), (0, 32)] {
            let mut values = vec![0f32; 2000 * cols];
            Grid::with_std(0.7, offset).blank(blank).fill(Stream::of_model(1, Name::Up), 0..2000, cols, &mut values);
            for group in values.chunks(cols) {
                assert_eq!(group.iter().take_while(|value| **value == 0.0).count() >= 32, blank == 32);
                let mut q = vec![0i8; cols];
                for method in [QuantizeMethod::Amax, QuantizeMethod::Search] {
                    let fit = quantize_group(method, 7, group, &mut q);
                    assert_eq!((fit.squared_error, fit.scale.to_bits() & 0x7f), (0.0, 0), "a power of two");
                    assert!(group.iter().zip(&q).all(|(value, q)| *value == f32::from(*q) * fit.scale.to_f32()));
                }
            }
        }
    }
}
