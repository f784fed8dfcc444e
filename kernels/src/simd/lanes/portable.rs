//! The target's baseline instructions; the compiler vectorises each operation on its own.
//!
//! Operations are not inlined. Where the target has no fused multiply-add, one of them is sixteen calls of the C library,
//! and a kernel of thousands of them takes minutes to compile.

use super::{LANES, Lanes, PIECE_BYTES, Task};
use crate::matrix::{BF16_COL_BYTES, read_bf16};
use std::array::from_fn;

/// Needs nothing.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Lanes for Portable {
    type F = [f32; LANES];
    type Q = [u32; LANES];
    const WIDE: bool = false;

    #[inline(never)]
    fn call<T: Task>(self, task: T) -> T::Output {
        task.run(self)
    }
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
    #[inline(never)]
    fn load_bf16(self, x: &[u8; BF16_COL_BYTES]) -> Self::F {
        from_fn(|i| read_bf16(x, i))
    }
    #[inline(never)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(never)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] + b[i])
    }
    #[inline(never)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] - b[i])
    }
    #[inline(never)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(never)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] / b[i])
    }
    #[inline(never)]
    fn larger(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| if b[i] > a[i] { b[i] } else { a[i] })
    }
    #[inline(never)]
    fn if_less(self, x: Self::F, limit: Self::F, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| if x[i] < limit[i] { a[i] } else { b[i] })
    }
    #[inline(never)]
    fn keep_nan(self, x: Self::F, a: Self::F) -> Self::F {
        from_fn(|i| if x[i].is_nan() { x[i] } else { a[i] })
    }
    #[inline(never)]
    fn add_exponent(self, x: Self::F, n: Self::F) -> Self::F {
        from_fn(|i| f32::from_bits(x[i].to_bits().wrapping_add(n[i].to_bits() << 23)))
    }
    #[inline(never)]
    fn dwords(self, pieces: &[[u8; PIECE_BYTES]], first: usize, stride: usize) -> [Self::Q; 4] {
        from_fn(|dword| {
            from_fn(|row| {
                let (piece, at) = (&pieces[first + row * stride], dword * 4);
                u32::from_le_bytes([piece[at], piece[at + 1], piece[at + 2], piece[at + 3]])
            })
        })
    }
    #[inline(never)]
    fn int8_byte<const I: u32>(self, q: Self::Q) -> Self::F {
        from_fn(|i| f32::from((q[i] >> (8 * I)) as u8 as i8))
    }
    #[inline(never)]
    fn int4_nibble<const I: u32>(self, q: Self::Q) -> Self::F {
        from_fn(|i| ((q[i] >> (4 * I)) & 15) as f32 - 8.0)
    }
}
