use super::lanes::{LANES, Lanes, Level, Task};
use super::parallel::pieces;
use crate::contract::SPLIT;
use crate::{KernelError, KvFormat, KvLayout, check};
use half::bf16;
use rayon::prelude::*;

/// [`crate::twin::kv_append`], fast.
///
/// # Errors
/// As the twin.
pub fn kv_append(
    k: &[f32],
    v: &[f32],
    first_position: usize,
    layout: KvLayout,
    cache: &mut [u8],
) -> Result<(), KernelError> {
    let tokens = check::kv_append(k, v, first_position, &layout, cache)?;
    if tokens == 0 {
        return Ok(());
    }
    let level = Level::current();
    let end = first_position + tokens;
    let (first_split, last_split) = (first_position / SPLIT, (end - 1) / SPLIT);
    let split_bytes = cache.len() / layout.capacity_tokens.div_ceil(SPLIT);
    let splits = &mut cache[first_split * split_bytes..(last_split + 1) * split_bytes];
    let append = |(index, bytes): (usize, &mut [u8])| {
        let start = (first_split + index) * SPLIT;
        let (from, to) = (start.max(first_position), (start + SPLIT).min(end));
        level.run(Append { k, v, layout, first_position, start, from, to, bytes });
    };
    let work = SPLIT * layout.kv_heads * layout.head_dim * 14;
    if pieces(last_split + 1 - first_split, work) > last_split - first_split {
        splits.chunks_exact_mut(split_bytes).enumerate().for_each(append);
    } else {
        splits.par_chunks_exact_mut(split_bytes).enumerate().for_each(append);
    }
    Ok(())
}

/// The positions `from..to` of one split.
struct Append<'a> {
    k: &'a [f32],
    v: &'a [f32],
    layout: KvLayout,
    /// Of the first token of `k` and `v`.
    first_position: usize,
    /// First position of the split.
    start: usize,
    from: usize,
    to: usize,
    /// The split.
    bytes: &'a mut [u8],
}

impl Task for Append<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        match self.layout.format {
            KvFormat::F32 => self.write(f32::to_le_bytes),
            KvFormat::Bf16 => self.write(|x| bf16::from_f32(x).to_le_bytes()),
            KvFormat::Int8 | KvFormat::Int6 | KvFormat::Int4 => self.quantize(),
        }
    }
}

impl Append<'_> {
    fn quantize(self) {
        let (dim, heads) = (self.layout.head_dim, self.layout.kv_heads);
        let Some(codes) = self.layout.format.codes() else { return };
        for (head, block) in self.bytes.chunks_exact_mut(self.layout.block_bytes()).enumerate() {
            for position in self.from..self.to {
                let at = ((position - self.first_position) * heads + head) * dim;
                let (k, v) = (&self.k[at..at + dim], &self.v[at..at + dim]);
                self.layout.quantize(codes, block, position - self.start, k, v);
            }
        }
    }

    #[inline(always)]
    fn write<const N: usize>(self, bytes_of: impl Fn(f32) -> [u8; N]) {
        let (dim, heads) = (self.layout.head_dim, self.layout.kv_heads);
        let block = self.layout.block_len() * N;
        for (head, block) in self.bytes.chunks_exact_mut(block).enumerate() {
            let (keys, values) = block.split_at_mut(SPLIT * dim * N);
            let (keys, values): (&mut [[u8; N]], &mut [[u8; N]]) = (keys.as_chunks_mut().0, values.as_chunks_mut().0);
            for position in self.from..self.to {
                let place = position - self.start;
                let at = ((position - self.first_position) * heads + head) * dim;
                let tile = &mut keys[place / LANES * LANES * dim..][..LANES * dim];
                for (column, &x) in tile.chunks_exact_mut(LANES).zip(&self.k[at..at + dim]) {
                    column[place % LANES] = bytes_of(x);
                }
                let row = &mut values[place * self.layout.value_width()..][..dim];
                for (value, &x) in row.iter_mut().zip(&self.v[at..at + dim]) {
                    *value = bytes_of(x);
                }
            }
        }
    }
}
