//! Keys and values as integers: a code each, and a BF16 scale for every 32 neighbouring dimensions of one token's head.
//!
//! A split of one head is
//! `{ K codes: [8 tiles][bytes of a row][16 positions], V codes: [128 positions][bytes of a row], K scales, V scales: [128 positions][groups] }`.
//! A row has `head_dim` rounded up to 16 codes, packed along the row (two of 4 bits in a byte, four of 6 in three), so that a
//! position's bytes are its own: positions may be written in any order, and side by side.

use half::bf16;

use super::KvLayout;
use crate::contract::SPLIT;
use crate::layout::TILE_ROWS;

/// Dimensions that share a scale.
pub(super) const KV_GROUP: usize = 32;

/// Codes of `bits` bits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Codes {
    pub(crate) bits: usize,
}

impl Codes {
    /// The largest code; the smallest is its negative.
    fn most(self) -> i32 {
        (1 << (self.bits - 1)) - 1
    }
    /// What is added to a code so that it is stored without a sign.
    fn zero(self) -> i32 {
        1 << (self.bits - 1)
    }
    /// Neighbouring codes that share bytes, and how many bytes those are.
    const fn unit(self) -> (usize, usize) {
        match self.bits {
            4 => (2, 1),
            6 => (4, 3),
            _ => (1, 1),
        }
    }
    fn row_bytes(self, codes: usize) -> usize {
        let (unit, bytes) = self.unit();
        codes / unit * bytes
    }
}

/// The scale of a group: `amax / most`, rounded to BF16; NaN where an element is not finite, which makes all of them NaN.
fn scale(group: &[f32], codes: Codes) -> bf16 {
    if group.iter().any(|x| !x.is_finite()) {
        return bf16::NAN;
    }
    let amax = group.iter().fold(0.0f32, |amax, x| amax.max(x.abs()));
    bf16::from_f32(amax / codes.most() as f32)
}

/// `x / scale`, rounded to nearest, ties to even, within the codes; 0 where there is no such number.
fn code(x: f32, scale: f32, codes: Codes) -> i32 {
    let most = codes.most() as f32;
    let q = (x / scale).round_ties_even();
    // Of a scale of zero, or NaN.
    if q.is_nan() || scale == 0.0 {
        return 0;
    }
    q.clamp(-most, most) as i32
}

impl KvLayout {
    /// Width of a row's codes.
    fn code_row(&self) -> usize {
        self.value_width()
    }
    fn groups(&self) -> usize {
        self.head_dim.div_ceil(KV_GROUP)
    }
    /// Bytes of one split of one head; `None` on overflow.
    pub(super) fn quantized_block_bytes(&self, codes: Codes) -> Option<usize> {
        let row = codes.row_bytes(self.head_dim.checked_next_multiple_of(TILE_ROWS)?);
        (2 * SPLIT).checked_mul(row.checked_add(2 * self.groups())?)
    }

    /// Byte `byte` of a row of K codes at a place of the split, in a head's block.
    fn key_byte(&self, codes: Codes, place: usize, byte: usize) -> usize {
        let row = codes.row_bytes(self.code_row());
        (place / TILE_ROWS * row + byte) * TILE_ROWS + place % TILE_ROWS
    }
    /// First byte of a row of V codes.
    fn value_row(&self, codes: Codes, place: usize) -> usize {
        let row = codes.row_bytes(self.code_row());
        (SPLIT + place) * row
    }
    /// First byte of the scale of a group of K, or of V.
    fn scale_at(&self, codes: Codes, value: bool, place: usize, group: usize) -> usize {
        let row = codes.row_bytes(self.code_row());
        2 * SPLIT * row + 2 * ((usize::from(value) * SPLIT + place) * self.groups() + group)
    }

    /// Writes one position's key and value of one head, `[head_dim]`, into the head's block of the split.
    pub(crate) fn quantize(&self, codes: Codes, block: &mut [u8], place: usize, k: &[f32], v: &[f32]) {
        let (unit, unit_bytes) = codes.unit();
        for (value, row) in [(false, k), (true, v)] {
            for (group, part) in row.chunks(KV_GROUP).enumerate() {
                let scale = scale(part, codes);
                let at = self.scale_at(codes, value, place, group);
                block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
                for (index, part) in part.chunks(unit).enumerate() {
                    let mut word = 0u32;
                    for lane in 0..unit {
                        // A dimension that does not exist has the code of 0.
                        let q = part.get(lane).map_or(0, |&x| code(x, scale.to_f32(), codes));
                        let stored = if codes.bits == 8 { q & 255 } else { q + codes.zero() };
                        word |= (stored as u32) << (lane * codes.bits);
                    }
                    let first = (group * KV_GROUP / unit + index) * unit_bytes;
                    for byte in 0..unit_bytes {
                        let at = match value {
                            false => self.key_byte(codes, place, first + byte),
                            true => self.value_row(codes, place) + first + byte,
                        };
                        block[at] = (word >> (8 * byte)) as u8;
                    }
                }
            }
        }
    }

    /// Dimension `dim` of a key, or of a value, in a head's block: `code * scale`, which f32 holds exactly.
    pub(super) fn dequantize(&self, codes: Codes, block: &[u8], value: bool, place: usize, dim: usize) -> f32 {
        let (unit, unit_bytes) = codes.unit();
        let mut word = 0u32;
        for byte in 0..unit_bytes {
            let byte_at = dim / unit * unit_bytes + byte;
            let at = match value {
                false => self.key_byte(codes, place, byte_at),
                true => self.value_row(codes, place) + byte_at,
            };
            word |= u32::from(block[at]) << (8 * byte);
        }
        let q = signed(word, dim % unit, codes);
        let at = self.scale_at(codes, value, place, dim / KV_GROUP);
        q * bf16::from_le_bytes([block[at], block[at + 1]]).to_f32()
    }

    /// Unpacks the places of a head's block that lie in `tiles` of sixteen into the arrangement of an F32 block.
    #[inline(always)]
    pub(crate) fn unpack(&self, codes: Codes, block: &[u8], tiles: std::ops::Range<usize>, out: &mut [f32]) {
        let (dim, width, groups) = (self.head_dim, self.value_width(), self.groups());
        let row = codes.row_bytes(width);
        let (keys, rest) = block.split_at(SPLIT * row);
        let (values, scales) = rest.split_at(SPLIT * row);
        let (out_keys, out_values) = out.split_at_mut(SPLIT * dim);
        let scale = |index: usize| bf16::from_le_bytes([scales[2 * index], scales[2 * index + 1]]).to_f32();
        for tile in tiles {
            let bytes = &keys[tile * row * TILE_ROWS..][..row * TILE_ROWS];
            let out = &mut out_keys[tile * dim * TILE_ROWS..][..dim * TILE_ROWS];
            for group in 0..groups {
                let factors: [f32; TILE_ROWS] =
                    std::array::from_fn(|lane| scale((tile * TILE_ROWS + lane) * groups + group));
                unpack_keys(codes, bytes, group * KV_GROUP..dim.min((group + 1) * KV_GROUP), &factors, out);
            }
            for place in tile * TILE_ROWS..(tile + 1) * TILE_ROWS {
                let bytes = &values[place * row..][..row];
                let out = &mut out_values[place * width..][..width];
                for (group, out) in out.chunks_mut(KV_GROUP).enumerate() {
                    let factor = scale((SPLIT + place) * groups + group);
                    unpack_values(codes, &bytes[codes.row_bytes(group * KV_GROUP)..], factor, out);
                }
            }
        }
    }
}

/// Code `lane` of a unit's bytes.
#[inline(always)]
fn signed(word: u32, lane: usize, codes: Codes) -> f32 {
    if codes.bits == 8 {
        return f32::from(word as u8 as i8);
    }
    let stored = (word >> (lane * codes.bits)) & ((1 << codes.bits) - 1);
    (stored as i32 - codes.zero()) as f32
}

/// Dimensions `dims` of one tile of keys: `bytes` `[bytes of a row][16]`, `out` `[head_dim][16]`.
#[inline(always)]
fn unpack_keys(codes: Codes, bytes: &[u8], dims: std::ops::Range<usize>, scales: &[f32; TILE_ROWS], out: &mut [f32]) {
    let (unit, unit_bytes) = codes.unit();
    let (rows, _) = bytes.as_chunks::<TILE_ROWS>();
    let (outs, _) = out.as_chunks_mut::<TILE_ROWS>();
    for first in dims.clone().step_by(unit) {
        let mut words = [0u32; TILE_ROWS];
        for (byte, row) in rows[first / unit * unit_bytes..][..unit_bytes].iter().enumerate() {
            for (word, &b) in words.iter_mut().zip(row) {
                *word |= u32::from(b) << (8 * byte);
            }
        }
        for (lane, out) in outs[first..dims.end.min(first + unit)].iter_mut().enumerate() {
            for ((out, &word), scale) in out.iter_mut().zip(&words).zip(scales) {
                *out = signed(word, lane, codes) * scale;
            }
        }
    }
}

/// Up to a group of one row of values.
#[inline(always)]
fn unpack_values(codes: Codes, bytes: &[u8], scale: f32, out: &mut [f32]) {
    let (unit, unit_bytes) = codes.unit();
    for (out, bytes) in out.chunks_exact_mut(unit).zip(bytes.chunks_exact(unit_bytes)) {
        let word = bytes.iter().enumerate().fold(0u32, |word, (byte, &b)| word | u32::from(b) << (8 * byte));
        for (lane, out) in out.iter_mut().enumerate() {
            *out = signed(word, lane, codes) * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{KvFormat, KvLayout};
    use super::*;

    fn layout(format: KvFormat, head_dim: usize) -> KvLayout {
        KvLayout { format, capacity_tokens: 128, kv_heads: 1, head_dim }
    }

    #[test]
    fn a_row_comes_back_within_half_a_step_and_as_unpacked() {
        for (format, bits) in [(KvFormat::Int8, 8), (KvFormat::Int6, 6), (KvFormat::Int4, 4)] {
            for head_dim in [2, 30, 32, 34, 64, 128] {
                let (layout, codes) = (layout(format, head_dim), Codes { bits });
                let mut block = vec![0xff; layout.bytes().unwrap_or(0)];
                let row = |place: usize, seed: f32| -> Vec<f32> {
                    (0..head_dim).map(|d| ((place * 31 + d * 7) as f32 * seed).sin() * (d + 1) as f32).collect()
                };
                for place in 0..SPLIT {
                    layout.quantize(codes, &mut block, place, &row(place, 0.37), &row(place, 0.11));
                }
                let mut unpacked = vec![f32::NAN; layout.block_len()];
                layout.unpack(codes, &block, 0..8, &mut unpacked);
                for place in 0..SPLIT {
                    for (value, row) in [(false, row(place, 0.37)), (true, row(place, 0.11))] {
                        for (group, part) in row.chunks(KV_GROUP).enumerate() {
                            let amax = part.iter().fold(0.0f32, |amax, x| amax.max(x.abs()));
                            for (d, &x) in part.iter().enumerate() {
                                let dim = group * KV_GROUP + d;
                                let found = layout.dequantize(codes, &block, value, place, dim);
                                // Half a step, and what the scale's rounding can cost the largest.
                                let bound = amax / codes.most() as f32 * 0.51 + amax / 256.0;
                                assert!((found - x).abs() <= bound, "{format:?} {head_dim} {x} {found}");
                                let at = match value {
                                    false => layout.key_index(place, 0, dim),
                                    true => layout.value_index(place, 0, dim),
                                };
                                assert_eq!(unpacked[at].to_bits(), found.to_bits());
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn known_codes() {
        let layout = layout(KvFormat::Int4, 4);
        let mut block = vec![0; layout.bytes().unwrap_or(0)];
        let codes = Codes { bits: 4 };
        // The scale is 1: 2.5 and 3.5 are ties.
        layout.quantize(codes, &mut block, 17, &[7.0, 2.5, 3.5, -6.9], &[0.0; 4]);
        let found = |value| [0, 1, 2, 3].map(|dim| layout.dequantize(codes, &block, value, 17, dim));
        assert_eq!(found(false), [7.0, 2.0, 4.0, -7.0]);
        assert_eq!(found(true), [0.0; 4]);
        // Nibbles are 15, 10 and 12, 1: the first byte of each pair is the lower.
        assert_eq!((block[layout.key_byte(codes, 17, 0)], block[layout.key_byte(codes, 17, 1)]), (0xaf, 0x1c));
    }

    #[test]
    fn what_is_not_finite_spoils_its_group_and_no_other() {
        let layout = layout(KvFormat::Int8, 64);
        let codes = Codes { bits: 8 };
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut block = vec![0; layout.bytes().unwrap_or(0)];
            let mut row = [1.0; 64];
            row[40] = bad;
            layout.quantize(codes, &mut block, 0, &row, &[f32::MAX; 64]);
            assert!((32..64).all(|dim| layout.dequantize(codes, &block, false, 0, dim).is_nan()));
            assert!((0..32).all(|dim| (layout.dequantize(codes, &block, false, 0, dim) - 1.0).abs() < 0.01));
            assert!(layout.dequantize(codes, &block, true, 0, 0).is_finite());
        }
    }
}
