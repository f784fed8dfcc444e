//! The arithmetic of attention: some query rows over one split of the cache.

use super::{Job, State, Unit};
use crate::KvFormat;
use crate::contract::{self, GROUP, SPLIT};
use crate::kv::Codes;
use crate::simd::group::{Strided, Vector, group_part_sums_apart, group_sums_apart};
use crate::simd::lanes::{LANES, Lanes, Task};
use crate::simd::parallel::Disjoint;
use std::cell::Cell;

/// One unit's rows over one split.
pub(super) struct Pass<'s, 'a> {
    pub(super) job: &'s Job<'a>,
    pub(super) unit: &'s Unit,
    pub(super) split: usize,
    /// Of the unit's rows.
    pub(super) states: &'s mut [State],
    /// Weighted values: row r of the unit is at `base + row_at(r)`.
    pub(super) values: &'s Disjoint<'s, f32>,
    pub(super) base: usize,
}

/// Scores of `T` rows, then their exponentials.
#[repr(align(64))]
struct Scores<const T: usize>([[f32; SPLIT]; T]);

impl Task for Pass<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let job = self.job;
        let at = self.split * job.layout.kv_heads + self.unit.kv_head;
        if job.layout.format == KvFormat::Bf16 {
            return self.stored::<L, { 2 * LANES }>(lanes, job.cache, at);
        }
        let mut numbers = UNPACKED.take();
        let (cache, at) = match job.layout.format.codes() {
            None => (job.cache, at),
            Some(codes) => {
                self.unpack(codes, at, &mut numbers);
                (bytemuck::cast_slice(&numbers), 0)
            }
        };
        self.stored::<L, { 4 * LANES }>(lanes, cache, at);
        UNPACKED.set(numbers);
    }
}

thread_local! {
    /// One split of one head, unpacked.
    static UNPACKED: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

impl Pass<'_, '_> {
    /// Codes become the numbers that they stand for, exactly, once for all rows.
    #[inline(always)]
    fn unpack(&self, codes: Codes, block: usize, numbers: &mut Vec<f32>) {
        let layout = &self.job.layout;
        numbers.resize(layout.block_len(), 0.0);
        let first = self.job.first_position + self.unit.first;
        // What no row of the unit sees is not looked at, whole vectors apart.
        let start = self.job.seen(self.split, first).start / LANES;
        let end = self.job.seen(self.split, first + self.unit.tokens - 1).end.div_ceil(LANES);
        let bytes = layout.block_bytes();
        layout.unpack(codes, &self.job.cache[block * bytes..][..bytes], start.min(end)..end, numbers);
    }

    /// Block `block` of `cache`, with vectors of `N` bytes.
    #[inline(always)]
    fn stored<L: Lanes, const N: usize>(mut self, lanes: L, cache: &[u8], block: usize)
    where
        [u8; N]: Vector,
    {
        let layout = &self.job.layout;
        let vectors = layout.block_len() / LANES;
        let block = block * vectors;
        let (keys, values) = cache.as_chunks::<N>().0[block..block + vectors].split_at(SPLIT / LANES * layout.head_dim);
        let rows = self.states.len();
        let mut row = 0;
        if L::WIDE {
            while rows - row >= 8 {
                self.rows::<L, _, 8, 2>(lanes, row, keys, values);
                row += 8;
            }
            if rows - row >= 4 {
                self.rows::<L, _, 4, 2>(lanes, row, keys, values);
                row += 4;
            }
        }
        while rows - row >= 2 {
            self.rows::<L, _, 2, 2>(lanes, row, keys, values);
            row += 2;
        }
        if rows > row {
            self.rows::<L, _, 1, 4>(lanes, row, keys, values);
        }
    }

    /// `T` rows from `first`, `R` vectors at a time.
    #[inline(always)]
    fn rows<L: Lanes, V: Vector, const T: usize, const R: usize>(
        &mut self,
        lanes: L,
        first: usize,
        keys: &[V],
        values: &[V],
    ) {
        let job = self.job;
        let dim = job.layout.head_dim;
        let (mut qs, mut lens, mut starts): ([&[f32]; T], _, _) = ([&[]; T], [0; T], [0; T]);
        for t in 0..T {
            let at = job.row_at(self.unit, first + t);
            qs[t] = &job.q[at..at + dim];
            let position = job.first_position + self.unit.first + (first + t) / job.group();
            let seen = job.seen(self.split, position);
            (starts[t], lens[t]) = (seen.start, seen.end);
        }
        let mut p = Scores([[0.0; SPLIT]; T]);
        let longest = lens.into_iter().fold(0, usize::max);
        let earliest = starts.into_iter().fold(SPLIT, usize::min) / (R * LANES) * R;
        for tile in (earliest..longest.div_ceil(LANES)).step_by(R) {
            self.scores::<L, V, T, R>(lanes, tile, keys, &qs, &mut p);
        }
        let mut factors = [(0.0, 0.0); T];
        for t in 0..T {
            // A row that sees nothing here is left as it is.
            if starts[t] == lens[t] {
                factors[t] = (1.0, 0.0);
                continue;
            }
            // Exponentials of these are exactly 0: they change neither the largest score nor the sum.
            p.0[t][..starts[t]].fill(f32::NEG_INFINITY);
            let (m, l) = exponentials(lanes, &mut p.0[t], lens[t]);
            factors[t] = self.states[first + t].merge(m, l);
        }
        let tiles = dim.div_ceil(LANES);
        let whole = tiles / R * R;
        for tile in (0..whole).step_by(R) {
            self.weigh::<L, V, T, R>(lanes, (first, tile), values, &p, (starts, lens), &factors);
        }
        for tile in whole..tiles {
            self.weigh::<L, V, T, 1>(lanes, (first, tile), values, &p, (starts, lens), &factors);
        }
    }

    /// `s = dot(q, k) * scale` for `R` tiles of sixteen positions.
    #[inline(always)]
    fn scores<L: Lanes, V: Vector, const T: usize, const R: usize>(
        &self,
        lanes: L,
        tile: usize,
        keys: &[V],
        qs: &[&[f32]; T],
        p: &mut Scores<T>,
    ) {
        let dim = self.job.layout.head_dim;
        let mut totals = [[lanes.splat(0.0); R]; T];
        for start in (0..dim).step_by(GROUP) {
            let len = GROUP.min(dim - start);
            let mut vectors: [&[V]; R] = [&[]; R];
            for (r, vectors) in vectors.iter_mut().enumerate() {
                *vectors = &keys[(tile + r) * dim + start..][..len];
            }
            let xs = qs.map(|q| &q[start..start + len]);
            // SAFETY: `len` keys and `len` elements of each query.
            let sums =
                unsafe { group_sums_apart::<L, _, R, T, 1>(lanes, Strided { vectors, stride: 1 }, xs, [len; T]) };
            for t in 0..T {
                for r in 0..R {
                    totals[t][r] = lanes.add(totals[t][r], sums[t][r]);
                }
            }
        }
        let scale = lanes.splat(self.job.form.scale);
        for t in 0..T {
            for r in 0..R {
                let at = (tile + r) * LANES;
                lanes.store_part(lanes.mul(totals[t][r], scale), &mut p.0[t][at..at + LANES]);
            }
        }
    }

    /// `o = dot(p, v)` for `R` tiles of sixteen dimensions, merged into the rows' values.
    #[inline(always)]
    fn weigh<L: Lanes, V: Vector, const T: usize, const R: usize>(
        &self,
        lanes: L,
        (first, tile): (usize, usize),
        values: &[V],
        p: &Scores<T>,
        (starts, ends): ([usize; T], [usize; T]),
        factors: &[(f32, f32); T],
    ) {
        let layout = &self.job.layout;
        let mut vectors: [&[V]; R] = [&[]; R];
        for (r, vectors) in vectors.iter_mut().enumerate() {
            *vectors = &values[tile + r..];
        }
        let mut xs: [&[f32]; T] = [&[]; T];
        for (x, p) in xs.iter_mut().zip(&p.0) {
            *x = p;
        }
        let weights = Strided { vectors, stride: layout.value_width() / LANES };
        // SAFETY: a split has 128 rows of values, and 128 exponentials a row.
        let sums = unsafe { group_part_sums_apart::<L, _, R, T, 1>(lanes, weights, xs, starts, ends) };
        for t in 0..T {
            let (a, b) = (lanes.splat(factors[t].0), lanes.splat(factors[t].1));
            for r in 0..R {
                let dim = (tile + r) * LANES;
                let at = self.base + self.job.row_at(self.unit, first + t) + dim;
                // SAFETY: these rows' values belong to this unit, and no other part of them is alive here.
                let o = unsafe { self.values.part(at, LANES.min(layout.head_dim - dim)) };
                let value = lanes.add(lanes.splat(0.0), sums[t][r]);
                lanes.store_part(lanes.fma(value, b, lanes.mul(lanes.load_part(o), a)), o);
            }
        }
    }
}

/// `m = max s`, `s = exp(s - m)` and `l = sum(s)` over the first `len` of one row's scores.
#[inline(always)]
fn exponentials<L: Lanes>(lanes: L, s: &mut [f32; SPLIT], len: usize) -> (f32, f32) {
    let (blocks, _) = s.as_chunks_mut::<LANES>();
    let mut max = lanes.splat(f32::NEG_INFINITY);
    for block in &blocks[..len / LANES] {
        max = lanes.larger(max, lanes.load(block));
    }
    let mut m = f32::NEG_INFINITY;
    let mut last = [0.0; LANES];
    lanes.store(max, &mut last);
    let rest = blocks.get(len / LANES).map_or(&[][..], |block| &block[..len % LANES]);
    for &x in last.iter().chain(rest) {
        m = if x > m { x } else { m };
    }
    for block in &mut blocks[..len.div_ceil(LANES)] {
        let value = lanes.exp(lanes.sub(lanes.load(block), lanes.splat(m)));
        lanes.store(value, block);
    }
    (m, 0.0 + contract::group(0..len, |acc, j| acc + s[j]))
}
