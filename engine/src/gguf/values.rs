//! From rows of f32 to the bytes of a tensor's type.

use assay_kernels::layout::{GROUP_COLS, INT4_MAX, INT8_MAX};
use half::{bf16, f16};
use rayon::prelude::*;

use super::write::GgufType;
use crate::expert_cache::QuantizeMethod;
use crate::expert_cache::quantize::quantize_group;

/// Weights of one Q4_0 block.
pub(super) const Q4_0_BLOCK: usize = 32;
/// Its bytes: an F16 scale, then a nibble for each weight, the second half of the block in the upper ones.
pub(super) const Q4_0_BLOCK_BYTES: usize = 2 + Q4_0_BLOCK / 2;
/// What a nibble holds for 0.
const Q4_0_ZERO: i8 = 8;

/// What is done to values before they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rounding {
    /// Nothing; a type that is narrower than the checkpoint's rounds to nearest.
    None,
    /// They become what INT4 in groups of 128 leaves of them.
    Int4(QuantizeMethod),
    /// They become what INT8 in groups of 128 leaves of them.
    Int8,
    /// Nothing, and a value that the type does not hold exactly is an error.
    Exact,
}

/// Why values cannot be written: what was found, and what was expected.
pub(super) type Problem = (String, &'static str);

/// Encodes rows of `cols` values; they are left as the type holds them, or as they were.
pub(super) fn encode(
    dtype: GgufType,
    rounding: Rounding,
    cols: usize,
    values: &mut [f32],
    out: &mut Vec<u8>,
) -> Result<(), Problem> {
    if dtype == GgufType::Q4_0 {
        return q4_0(rounding, cols, values, out);
    }
    let integers = match rounding {
        Rounding::Int4(method) => Some((method, INT4_MAX)),
        Rounding::Int8 => Some((QuantizeMethod::Amax, INT8_MAX)),
        Rounding::None | Rounding::Exact => None,
    };
    if let Some((method, most)) = integers {
        values.par_chunks_mut(cols.max(1)).for_each(|row| round_trip(method, most, row));
    }
    match dtype {
        GgufType::Bf16 => {
            let inexact = |value: &&f32| rounding != Rounding::None && bf16::from_f32(**value).to_f32() != **value;
            if let Some(value) = values.iter().find(inexact) {
                return Err((value.to_string(), "values that BF16 holds exactly"));
            }
            out.extend(values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()));
        }
        _ => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
    }
    Ok(())
}

/// Replaces a row's weights by what integers leave of them: `q * scale`, which f32 holds exactly.
fn round_trip(method: QuantizeMethod, most: i8, row: &mut [f32]) {
    let mut quantised = [0i8; GROUP_COLS];
    for group in row.chunks_mut(GROUP_COLS) {
        let q = &mut quantised[..group.len()];
        let scale = quantize_group(method, most, group, q).scale.to_f32();
        group.iter_mut().zip(q).for_each(|(value, q)| *value = f32::from(*q) * scale);
    }
}

/// INT4's groups of 128 as four blocks of 32 with one scale: the very values, if F16 holds the scale.
fn q4_0(rounding: Rounding, cols: usize, values: &[f32], out: &mut Vec<u8>) -> Result<(), Problem> {
    let start = out.len();
    let row_bytes = cols / Q4_0_BLOCK * Q4_0_BLOCK_BYTES;
    out.resize(start + values.len().checked_div(cols).unwrap_or(0) * row_bytes, 0);
    let rows = values.par_chunks_exact(cols.max(1)).zip(out[start..].par_chunks_exact_mut(row_bytes.max(1)));
    rows.try_for_each(|(row, out)| q4_0_row(rounding, row, out))
}

fn q4_0_row(rounding: Rounding, row: &[f32], out: &mut [u8]) -> Result<(), Problem> {
    // The amax method gives a grid back that every group reaches the end of, as INT4's own does.
    let method = match rounding {
        Rounding::Int4(method) => method,
        Rounding::None | Rounding::Int8 | Rounding::Exact => QuantizeMethod::Amax,
    };
    let mut quantised = [0i8; GROUP_COLS];
    let group_bytes = GROUP_COLS / Q4_0_BLOCK * Q4_0_BLOCK_BYTES;
    for (group, out) in row.chunks(GROUP_COLS).zip(out.chunks_mut(group_bytes)) {
        let q = &mut quantised[..group.len()];
        let fit = quantize_group(method, INT4_MAX, group, q);
        if rounding == Rounding::Exact && fit.squared_error != 0.0 {
            return Err((format!("a group of weights off by {}", fit.squared_error.sqrt()), "q * scale exactly"));
        }
        let scale = f16::from_f32(fit.scale.to_f32());
        if scale.to_f32() != fit.scale.to_f32() {
            return Err((format!("a scale of {}", fit.scale), "scales that F16 holds exactly"));
        }
        for (q, block) in q.chunks_exact(Q4_0_BLOCK).zip(out.chunks_exact_mut(Q4_0_BLOCK_BYTES)) {
            let (first, second) = q.split_at(Q4_0_BLOCK / 2);
            let (head, nibbles) = block.split_at_mut(2);
            head.copy_from_slice(&scale.to_le_bytes());
            for ((nibble, low), high) in nibbles.iter_mut().zip(first).zip(second) {
                *nibble = (low + Q4_0_ZERO) as u8 | ((high + Q4_0_ZERO) as u8) << 4;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_block_is_ggml_s() {
        let mut values: Vec<f32> = (0..32).map(|index| (index % 15 - 7) as f32 * 0.5).collect();
        let mut out = Vec::new();
        encode(GgufType::Q4_0, Rounding::Exact, 32, &mut values, &mut out).unwrap();
        // 0.5 in F16; then weight 0 with weight 16, weight 1 with weight 17 and so on: -7 with -6, -6 with -5.
        assert_eq!(out[..4], [0x00, 0x38, 0x21, 0x32]);
        assert_eq!(out.len(), Q4_0_BLOCK_BYTES);
    }

    #[test]
    fn what_a_type_does_not_hold_is_refused() {
        let check = |dtype, rounding, value: f32, part: &str| {
            let mut values = vec![value; 32];
            values[3] = 7.0 * 2f32.powi(-10);
            let (found, expected) = encode(dtype, rounding, 32, &mut values, &mut Vec::new()).unwrap_err();
            assert!(format!("{found}, expected {expected}").contains(part), "{found} {expected}");
        };
        check(GgufType::Bf16, Rounding::Exact, 1.0 + 2f32.powi(-20), "values that BF16 holds exactly");
        check(GgufType::Q4_0, Rounding::Exact, 0.3, "q * scale exactly");
        check(GgufType::Q4_0, Rounding::Int4(QuantizeMethod::Amax), 1e30, "scales that F16 holds exactly");
    }
}
