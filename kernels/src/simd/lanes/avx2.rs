//! AVX2 with FMA: two registers are sixteen lanes.

use super::{LANES, Lanes, NibbleFloat, PIECE_BYTES, Task};
use crate::matrix::BF16_COL_BYTES;
use std::arch::x86_64::*;

/// Proof that the processor has AVX2 and FMA: only `detect` makes one.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    #[inline(always)]
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Self(()))
    }
}

// SAFETY of every block below: `self` exists, so the processor has the features; loads and stores are unaligned and
// stay within the array behind the reference.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes for Avx2 {
    type F = [__m256; 2];
    type Q = [__m256i; 2];
    const WIDE: bool = false;

    #[inline(always)]
    fn call<T: Task>(self, task: T) -> T::Output {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma")]
        fn entry<T: Task>(lanes: Avx2, task: T) -> T::Output {
            task.run(lanes)
        }
        unsafe { entry(self, task) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F {
        unsafe { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))] }
    }
    #[inline(always)]
    fn store(self, x: Self::F, out: &mut [f32; LANES]) {
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), x[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), x[1]);
        }
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u8; BF16_COL_BYTES]) -> Self::F {
        unsafe { [load_bf16(x.as_ptr()), load_bf16(x.as_ptr().add(16))] }
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn larger(self, a: Self::F, b: Self::F) -> Self::F {
        // The instruction returns its second operand unless the first is greater.
        unsafe { [_mm256_max_ps(b[0], a[0]), _mm256_max_ps(b[1], a[1])] }
    }
    #[inline(always)]
    fn if_less(self, x: Self::F, limit: Self::F, a: Self::F, b: Self::F) -> Self::F {
        unsafe { [if_less(x[0], limit[0], a[0], b[0]), if_less(x[1], limit[1], a[1], b[1])] }
    }
    #[inline(always)]
    fn keep_nan(self, x: Self::F, a: Self::F) -> Self::F {
        unsafe { [keep_nan(x[0], a[0]), keep_nan(x[1], a[1])] }
    }
    #[inline(always)]
    fn add_exponent(self, x: Self::F, n: Self::F) -> Self::F {
        unsafe { [add_exponent(x[0], n[0]), add_exponent(x[1], n[1])] }
    }
    #[inline(always)]
    fn dwords(self, pieces: &[[u8; PIECE_BYTES]], first: usize, stride: usize) -> [Self::Q; 4] {
        let (low, high) = unsafe { (transpose(pieces, first, stride), transpose(pieces, first + 8 * stride, stride)) };
        [[low[0], high[0]], [low[1], high[1]], [low[2], high[2]], [low[3], high[3]]]
    }
    #[inline(always)]
    fn int4_nibble<const I: u32>(self, q: Self::Q) -> Self::F {
        unsafe { [nibble::<I>(q[0]), nibble::<I>(q[1])] }
    }
    #[inline(always)]
    fn int8_byte<const I: u32>(self, q: Self::Q) -> Self::F {
        unsafe { [byte::<I>(q[0]), byte::<I>(q[1])] }
    }
}

// Functions on eight lanes. They are not closures, because a closure would not be compiled with the instructions.

/// Eight BF16.
///
/// # Safety
/// 16 bytes can be read.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn load_bf16(bytes: *const u8) -> __m256 {
    // SAFETY: the caller's.
    let words = _mm256_cvtepu16_epi32(unsafe { _mm_loadu_si128(bytes.cast()) });
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn if_less(x: __m256, limit: __m256, a: __m256, b: __m256) -> __m256 {
    _mm256_blendv_ps(b, a, _mm256_cmp_ps::<_CMP_LT_OQ>(x, limit))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn keep_nan(x: __m256, a: __m256) -> __m256 {
    _mm256_blendv_ps(a, x, _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn add_exponent(x: __m256, n: __m256) -> __m256 {
    let shifted = _mm256_slli_epi32::<23>(_mm256_castps_si256(n));
    _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), shifted))
}

/// Pieces of eight rows: lane r of result d is dword d of row r's.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn transpose(pieces: &[[u8; PIECE_BYTES]], first: usize, stride: usize) -> [__m256i; 4] {
    // SAFETY: the 16 bytes are those of an array.
    let row = |r: usize| unsafe { _mm_loadu_si128(pieces[first + r * stride].as_ptr().cast()) };
    // Rows r and r + 4 side by side; then a 4 x 4 transpose of dwords within each side.
    let (a, b) = (_mm256_set_m128i(row(4), row(0)), _mm256_set_m128i(row(5), row(1)));
    let (c, d) = (_mm256_set_m128i(row(6), row(2)), _mm256_set_m128i(row(7), row(3)));
    let (ab01, ab23) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (cd01, cd23) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab01, cd01),
        _mm256_unpackhi_epi64(ab01, cd01),
        _mm256_unpacklo_epi64(ab23, cd23),
        _mm256_unpackhi_epi64(ab23, cd23),
    ]
}

/// Nibble `I` of each dword, less 8.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn nibble<const I: u32>(q: __m256i) -> __m256 {
    let (q, place) = if I < 5 { (q, I) } else { (_mm256_srli_epi32::<20>(q), I - 5) };
    let NibbleFloat { mask, first } = NibbleFloat::new(place);
    let bits = _mm256_set1_epi32(first.to_bits() as i32);
    let value = _mm256_or_si256(_mm256_and_si256(q, _mm256_set1_epi32(mask)), bits);
    _mm256_sub_ps(_mm256_castsi256_ps(value), _mm256_set1_ps(first + 8.0))
}

/// Byte `I` of each dword, as a signed number.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn byte<const I: u32>(q: __m256i) -> __m256 {
    let highest = match I {
        0 => _mm256_slli_epi32::<24>(q),
        1 => _mm256_slli_epi32::<16>(q),
        2 => _mm256_slli_epi32::<8>(q),
        _ => q,
    };
    _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(highest))
}
