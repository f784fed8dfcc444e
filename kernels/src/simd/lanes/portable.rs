//! The target's baseline instructions, one lane at a time; the compiler vectorises what it can.

use super::{LANES, Lanes};
use crate::matrix::{BF16_COL_BYTES, INT4_RUN_BYTES, read_bf16};
use std::array::from_fn;

/// Needs nothing.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Lanes for Portable {
    type F = [f32; LANES];
    type Q = [u32; LANES];
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F {
        *x
    }
    #[inline(always)]
    fn store(self, x: Self::F, out: &mut [f32; LANES]) {
        *out = x;
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u8; BF16_COL_BYTES]) -> Self::F {
        from_fn(|i| read_bf16(x, i))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn larger(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| if b[i] > a[i] { b[i] } else { a[i] })
    }
    #[inline(always)]
    fn if_less(self, x: Self::F, limit: Self::F, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| if x[i] < limit[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn keep_nan(self, x: Self::F, a: Self::F) -> Self::F {
        from_fn(|i| if x[i].is_nan() { x[i] } else { a[i] })
    }
    #[inline(always)]
    fn add_exponent(self, x: Self::F, n: Self::F) -> Self::F {
        from_fn(|i| f32::from_bits(x[i].to_bits().wrapping_add(n[i].to_bits() << 23)))
    }
    #[inline(always)]
    fn int4_run(self, run: &[u8; INT4_RUN_BYTES]) -> [Self::Q; 4] {
        from_fn(|dword| {
            from_fn(|row| {
                let at = row * (INT4_RUN_BYTES / LANES) + dword * 4;
                u32::from_le_bytes([run[at], run[at + 1], run[at + 2], run[at + 3]])
            })
        })
    }
    #[inline(always)]
    fn int4_column<const I: u32>(self, q: Self::Q) -> Self::F {
        from_fn(|i| ((q[i] >> (4 * I)) & 15) as f32 - 8.0)
    }
}
