//! A tensor in short.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use super::event::{Number, Tensor};
use crate::checkpoint::hex;

/// Hexadecimal digits of a hash: 128 bits of SHA-256, enough that no two tensors of a trace share one by chance.
pub const HASH_DIGITS: usize = 32;

/// Values that a trace has of one tensor, at most.
pub const MAX_VALUES: usize = 1 << 16;

/// The summary of f32 values.
pub(super) fn of_f32(name: &'static str, shape: Vec<u64>, data: &[f32], values: usize) -> Tensor<'static> {
    summary((name, "f32"), shape, bytemuck::cast_slice(data), data.iter().copied(), values)
}

/// The summary of indices. As f32 they are exact up to 2^24; the hash is of all their bits.
pub(super) fn of_u32(name: &'static str, shape: Vec<u64>, data: &[u32], values: usize) -> Tensor<'static> {
    summary((name, "u32"), shape, bytemuck::cast_slice(data), data.iter().map(|&value| value as f32), values)
}

fn summary(
    (name, dtype): (&'static str, &'static str),
    shape: Vec<u64>,
    bytes: &[u8],
    data: impl ExactSizeIterator<Item = f32> + Clone,
    values: usize,
) -> Tensor<'static> {
    let (mut min, mut max) = (f32::INFINITY, f32::NEG_INFINITY);
    let (mut sum, mut squares, mut finite) = (0f64, 0f64, 0u64);
    for value in data.clone() {
        min = min.min(value);
        max = max.max(value);
        if value.is_finite() {
            let wide = f64::from(value);
            sum += wide;
            squares = wide.mul_add(wide, squares);
            finite += 1;
        }
    }
    let len = data.len();
    if min > max {
        // Nothing but NaNs, or nothing at all.
        (min, max) = (f32::NAN, f32::NAN);
    }
    Tensor {
        name: Cow::Borrowed(name),
        dtype: Cow::Borrowed(dtype),
        shape,
        hash: Cow::Owned(hash(bytes)),
        min: Number(min),
        max: Number(max),
        mean: if finite == 0 { 0.0 } else { sum / finite as f64 },
        l2: squares.sqrt(),
        non_finite: len as u64 - finite,
        values: selected(data, len, values.min(MAX_VALUES)),
    }
}

/// `count` elements, evenly spaced from the first on; all where there are no more.
fn selected(data: impl Iterator<Item = f32>, len: usize, count: usize) -> Vec<Number> {
    let count = count.min(len);
    let mut values = Vec::with_capacity(count);
    for (index, value) in data.enumerate() {
        if values.len() < count && index as u64 == values.len() as u64 * len as u64 / count as u64 {
            values.push(Number(value));
        }
    }
    values
}

fn hash(bytes: &[u8]) -> String {
    let mut digits = hex(&Sha256::digest(bytes));
    digits.truncate(HASH_DIGITS);
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_says_what_the_tensor_is() {
        let data = [3.0, -4.0, f32::NAN, 0.0, f32::INFINITY];
        let tensor = of_f32("x", vec![5], &data, 2);
        assert_eq!((tensor.min.0, tensor.max.0, tensor.l2, tensor.non_finite), (-4.0, f32::INFINITY, 5.0, 2));
        assert!((tensor.mean + 1.0 / 3.0).abs() < 1e-15);
        assert_eq!((tensor.values[0].0, tensor.values.len(), tensor.hash.len()), (3.0, 2, HASH_DIGITS));
        assert!(tensor.values[1].0.is_nan(), "element 1 * 5 / 2");
        let whole = of_u32("ids", vec![3], &[7, 8, 9], 100);
        assert_eq!(whole.values, [Number(7.0), Number(8.0), Number(9.0)]);
        assert!(of_f32("x", vec![0], &[], 4).max.0.is_nan());
        let minus = of_f32("x", vec![1], &[-0.0], 1);
        assert_ne!(minus.hash, of_f32("x", vec![1], &[0.0], 1).hash, "the sign of zero is a bit");
    }
}
