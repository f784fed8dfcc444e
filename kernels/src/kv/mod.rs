//! Host layout of one layer's KV cache.
//!
//! `[split of 128 positions][kv head]{ K: [8 tiles][head_dim][16 positions], V: [128 positions][value width] }`,
//! little-endian f32 or bf16; integer formats are in [`quantized`]. Within K a vector register holds one dimension of 16 neighbouring positions; within V it
//! holds 16 neighbouring dimensions, so a value's width is `head_dim` rounded up to 16. A split's bytes are contiguous
//! and independent of the capacity: positions `0..n` lie in the first [`KvLayout::prefix_bytes`]`(n)` bytes, and a
//! cache can be copied, shortened or extended as a byte prefix.
//!
//! Bytes of positions not yet appended, and of padding, are never part of a result: they may hold anything.

mod quantized;

use crate::contract::SPLIT;
use crate::error::KernelError;
use crate::layout::TILE_ROWS;
use half::bf16;
pub(crate) use quantized::Codes;

/// How K and V are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// As computed.
    F32,
    /// Rounded to nearest, ties to even.
    Bf16,
    /// −127 to 127, times a BF16 scale for each 32 dimensions of one token's head.
    Int8,
    /// −31 to 31, likewise.
    Int6,
    /// −7 to 7, likewise.
    Int4,
}

impl KvFormat {
    /// Every format.
    pub const ALL: [Self; 5] = [Self::F32, Self::Bf16, Self::Int8, Self::Int6, Self::Int4];

    /// The name in configs and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::Int6 => "int6",
            Self::Int4 => "int4",
        }
    }

    /// How elements are stored that are not numbers by themselves.
    pub(crate) fn codes(self) -> Option<Codes> {
        let bits = match self {
            Self::F32 | Self::Bf16 => return None,
            Self::Int8 => 8,
            Self::Int6 => 6,
            Self::Int4 => 4,
        };
        Some(Codes { bits })
    }
}

/// Shape of one layer's KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvLayout {
    /// How K and V are stored.
    pub format: KvFormat,
    /// Positions that must fit.
    pub capacity_tokens: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head, a multiple of 2.
    pub head_dim: usize,
}

/// Bytes of one layer's KV cache, K and V together, capacity rounded up to whole splits of 128 positions.
/// `None` where a size is 0 or overflows.
pub fn kv_bytes(format: KvFormat, capacity_tokens: usize, kv_heads: usize, head_dim: usize) -> Option<usize> {
    KvLayout { format, capacity_tokens, kv_heads, head_dim }.bytes()
}

impl KvLayout {
    /// Bytes of the whole cache; `None` where a size is 0 or overflows.
    pub fn bytes(&self) -> Option<usize> {
        if self.capacity_tokens == 0 || self.kv_heads == 0 || self.head_dim == 0 {
            return None;
        }
        self.prefix_bytes(self.capacity_tokens)
    }

    /// Bytes from the start of the cache that hold positions `0..tokens`, in whole splits. `None` on overflow.
    pub fn prefix_bytes(&self, tokens: usize) -> Option<usize> {
        let width = || self.head_dim.checked_next_multiple_of(TILE_ROWS)?.checked_add(self.head_dim);
        let block = match (self.format, self.format.codes()) {
            (_, Some(codes)) => self.quantized_block_bytes(codes)?,
            (KvFormat::F32, None) => width()?.checked_mul(SPLIT * 4)?,
            (_, None) => width()?.checked_mul(SPLIT * 2)?,
        };
        tokens.div_ceil(SPLIT).checked_mul(self.kv_heads)?.checked_mul(block)
    }

    /// What a cache's bytes hold of some positions, `[positions, 2, kv_heads, head_dim]`: each position's keys, then its
    /// values. Positions beyond `cache` are left out.
    pub fn rows(&self, cache: &[u8], positions: std::ops::Range<usize>) -> Vec<f32> {
        let held = cache.len() / self.prefix_bytes(1).unwrap_or(usize::MAX).max(1) * SPLIT;
        let positions = positions.start..positions.end.min(held);
        let mut rows = Vec::with_capacity(positions.len() * 2 * self.kv_heads * self.head_dim);
        for position in positions {
            for read in [Self::key, Self::value] {
                for kv_head in 0..self.kv_heads {
                    rows.extend((0..self.head_dim).map(|dim| read(self, cache, position, kv_head, dim)));
                }
            }
        }
        rows
    }

    /// Elements of one row of V, padding included.
    pub(crate) fn value_width(&self) -> usize {
        self.head_dim.next_multiple_of(TILE_ROWS)
    }

    /// Elements of one split of one head, K then V.
    pub(crate) fn block_len(&self) -> usize {
        SPLIT * (self.head_dim + self.value_width())
    }

    /// Element index of K at a position.
    pub(crate) fn key_index(&self, position: usize, kv_head: usize, dim: usize) -> usize {
        let (split, place) = (position / SPLIT, position % SPLIT);
        let tile = (split * self.kv_heads + kv_head) * self.block_len() + place / TILE_ROWS * TILE_ROWS * self.head_dim;
        tile + dim * TILE_ROWS + place % TILE_ROWS
    }

    /// Element index of V at a position.
    pub(crate) fn value_index(&self, position: usize, kv_head: usize, dim: usize) -> usize {
        let (split, place) = (position / SPLIT, position % SPLIT);
        (split * self.kv_heads + kv_head) * self.block_len() + SPLIT * self.head_dim + place * self.value_width() + dim
    }

    /// Bytes of one split of one head, of a cache whose sizes were checked.
    pub(crate) fn block_bytes(&self) -> usize {
        self.prefix_bytes(1).unwrap_or(0) / self.kv_heads.max(1)
    }

    /// Dimension `dim` of the key at a position.
    #[inline(always)]
    pub(crate) fn key(&self, cache: &[u8], position: usize, kv_head: usize, dim: usize) -> f32 {
        match self.format.codes() {
            None => self.read(cache, self.key_index(position, kv_head, dim)),
            Some(codes) => {
                let block = &cache[(position / SPLIT * self.kv_heads + kv_head) * self.block_bytes()..];
                self.dequantize(codes, block, false, position % SPLIT, dim)
            }
        }
    }

    /// Dimension `dim` of the value at a position.
    #[inline(always)]
    pub(crate) fn value(&self, cache: &[u8], position: usize, kv_head: usize, dim: usize) -> f32 {
        match self.format.codes() {
            None => self.read(cache, self.value_index(position, kv_head, dim)),
            Some(codes) => {
                let block = &cache[(position / SPLIT * self.kv_heads + kv_head) * self.block_bytes()..];
                self.dequantize(codes, block, true, position % SPLIT, dim)
            }
        }
    }

    /// Element `index` of a cache of numbers.
    #[inline(always)]
    fn read(&self, cache: &[u8], index: usize) -> f32 {
        match self.format {
            KvFormat::F32 => {
                let at = 4 * index;
                f32::from_le_bytes([cache[at], cache[at + 1], cache[at + 2], cache[at + 3]])
            }
            _ => crate::matrix::read_bf16(cache, index),
        }
    }

    /// Writes element `index` of a cache of numbers, rounding where the format does.
    #[inline(always)]
    pub(crate) fn write(&self, cache: &mut [u8], index: usize, value: f32) {
        match self.format {
            KvFormat::F32 => cache[4 * index..4 * index + 4].copy_from_slice(&value.to_le_bytes()),
            _ => cache[2 * index..2 * index + 2].copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        }
    }

    /// For kernels that read numbers alone.
    pub(crate) fn refuse_codes(&self, kernel: &'static str) -> Result<(), KernelError> {
        match self.format.codes() {
            None => Ok(()),
            Some(Codes { bits }) => Err(KernelError::Geometry {
                kernel,
                what: "bits of a code in the KV cache",
                expected: "none: this kernel reads F32 and BF16 alone",
                found: bits,
            }),
        }
    }

    /// The size of the cache, checked against what was passed.
    pub(crate) fn check(&self, kernel: &'static str, cache_bytes: usize) -> Result<(), KernelError> {
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
            return Err(KernelError::Geometry {
                kernel,
                what: "head_dim",
                expected: "a positive multiple of 2",
                found: self.head_dim,
            });
        }
        let bytes = self.bytes().ok_or(KernelError::TooLarge { kernel, what: "the KV cache" })?;
        crate::error::expect_len(kernel, "cache bytes", cache_bytes, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_element_has_a_place_of_its_own_inside_the_cache() {
        for (kv_heads, head_dim) in [(1, 2), (2, 16), (3, 34)] {
            let layout = KvLayout { format: KvFormat::Bf16, capacity_tokens: 200, kv_heads, head_dim };
            let elements = layout.bytes().unwrap_or(0) / 2;
            let mut seen = HashSet::new();
            for position in 0..256 {
                let prefix = layout.prefix_bytes(position + 1).unwrap_or(0) / 2;
                for kv_head in 0..kv_heads {
                    for dim in 0..head_dim {
                        for index in
                            [layout.key_index(position, kv_head, dim), layout.value_index(position, kv_head, dim)]
                        {
                            assert!(index < elements.min(prefix) && seen.insert(index));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn rows_are_what_was_written() {
        let layout = KvLayout { format: KvFormat::Bf16, capacity_tokens: 200, kv_heads: 2, head_dim: 34 };
        let mut cache = vec![0xFF; layout.bytes().unwrap_or(0)];
        for position in 0..130 {
            for (part, index) in [KvLayout::key_index, KvLayout::value_index].into_iter().enumerate() {
                for (kv_head, dim) in (0..2).flat_map(|kv_head| (0..34).map(move |dim| (kv_head, dim))) {
                    let value = (position % 8 * 32 + part * 16 + kv_head * 8 + dim % 8) as f32;
                    layout.write(&mut cache, index(&layout, position, kv_head, dim), value);
                }
            }
        }
        let rows = layout.rows(&cache, 127..130);
        assert_eq!(rows.len(), 3 * 2 * 2 * 34);
        assert_eq!((rows[0], rows[1], rows[34], rows[68]), (224.0, 225.0, 232.0, 240.0), "position 127");
        assert_eq!(rows[2 * 2 * 34], 0.0, "position 128, of the next split");
        assert!(layout.rows(&cache[..layout.prefix_bytes(1).unwrap_or(0)], 127..130).len() == 2 * 2 * 34);
    }

    #[test]
    fn sizes_are_checked() {
        assert_eq!(kv_bytes(KvFormat::F32, 1, 2, 64), Some(128 * 2 * 128 * 4));
        assert_eq!(kv_bytes(KvFormat::Bf16, 129, 2, 64), Some(2 * 128 * 2 * 128 * 2));
        // 64 codes of 8, 6 and 4 bits, and two scales, twice.
        assert_eq!(kv_bytes(KvFormat::Int8, 1, 2, 64), Some(128 * 2 * 2 * (64 + 4)));
        assert_eq!(kv_bytes(KvFormat::Int6, 1, 2, 64), Some(128 * 2 * 2 * (48 + 4)));
        assert_eq!(kv_bytes(KvFormat::Int4, 1, 2, 40), Some(128 * 2 * 2 * (24 + 4)));
        assert_eq!(kv_bytes(KvFormat::Int4, usize::MAX, 2, 64), None);
        assert_eq!(kv_bytes(KvFormat::Bf16, 0, 2, 64), None);
        assert_eq!(kv_bytes(KvFormat::F32, usize::MAX, 2, 64), None);
    }
}
