//! AVX-512: one register is sixteen lanes.

use super::{LANES, Lanes, NibbleFloat, PIECE_BYTES, Task};
use crate::matrix::BF16_COL_BYTES;
use std::arch::x86_64::*;

/// Proof that the processor has AVX-512 F, BW, DQ and VL, and FMA: only `detect` makes one.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    #[inline(always)]
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma");
        has.then_some(Self(()))
    }
}

// SAFETY of every block below: `self` exists, so the processor has the features; loads and stores are unaligned and
// stay within the array behind the reference.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes for Avx512 {
    type F = __m512;
    type Q = __m512i;
    const WIDE: bool = true;

    #[inline(always)]
    fn call<T: Task>(self, task: T) -> T::Output {
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
        fn entry<T: Task>(lanes: Avx512, task: T) -> T::Output {
            task.run(lanes)
        }
        unsafe { entry(self, task) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m512 {
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, x: __m512, out: &mut [f32; LANES]) {
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), x) }
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u8; BF16_COL_BYTES]) -> __m512 {
        unsafe {
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
        }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn larger(self, a: __m512, b: __m512) -> __m512 {
        // The instruction returns its second operand unless the first is greater.
        unsafe { _mm512_max_ps(b, a) }
    }
    #[inline(always)]
    fn if_less(self, x: __m512, limit: __m512, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, limit), b, a) }
    }
    #[inline(always)]
    fn keep_nan(self, x: __m512, a: __m512) -> __m512 {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x), a, x) }
    }
    #[inline(always)]
    fn add_exponent(self, x: __m512, n: __m512) -> __m512 {
        unsafe {
            let shifted = _mm512_slli_epi32::<23>(_mm512_castps_si512(n));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), shifted))
        }
    }
    #[inline(always)]
    fn dwords(self, pieces: &[[u8; PIECE_BYTES]], first: usize, stride: usize) -> [__m512i; 4] {
        // Written here, because a function of that size would not always be inlined.
        unsafe {
            // Dwords 0 and 1, then 2 and 3, of the eight rows in two registers.
            let low = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
            let high = _mm512_setr_epi32(2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31);
            let quad = |row: usize| quad(pieces, first + row * stride, stride);
            let (a, b, c, d) = (quad(0), quad(4), quad(8), quad(12));
            let (ab01, ab23) = (_mm512_permutex2var_epi32(a, low, b), _mm512_permutex2var_epi32(a, high, b));
            let (cd01, cd23) = (_mm512_permutex2var_epi32(c, low, d), _mm512_permutex2var_epi32(c, high, d));
            [
                _mm512_shuffle_i64x2::<0b01_00_01_00>(ab01, cd01),
                _mm512_shuffle_i64x2::<0b11_10_11_10>(ab01, cd01),
                _mm512_shuffle_i64x2::<0b01_00_01_00>(ab23, cd23),
                _mm512_shuffle_i64x2::<0b11_10_11_10>(ab23, cd23),
            ]
        }
    }
    #[inline(always)]
    fn int4_nibble<const I: u32>(self, q: __m512i) -> __m512 {
        unsafe { nibble::<I>(q) }
    }
    #[inline(always)]
    fn int8_byte<const I: u32>(self, q: __m512i) -> __m512 {
        unsafe {
            let highest = match I {
                0 => _mm512_slli_epi32::<24>(q),
                1 => _mm512_slli_epi32::<16>(q),
                2 => _mm512_slli_epi32::<8>(q),
                _ => q,
            };
            _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(highest))
        }
    }
}

/// Piece `first` and the same of the three rows that follow.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn quad(pieces: &[[u8; PIECE_BYTES]], first: usize, stride: usize) -> __m512i {
    let run = |row: usize| pieces[first + row * stride].as_ptr().cast();
    // SAFETY: 16 bytes each, those of an array.
    unsafe {
        let one = _mm512_castsi128_si512(_mm_loadu_si128(run(0)));
        let two = _mm512_inserti32x4::<1>(one, _mm_loadu_si128(run(1)));
        let three = _mm512_inserti32x4::<2>(two, _mm_loadu_si128(run(2)));
        _mm512_inserti32x4::<3>(three, _mm_loadu_si128(run(3)))
    }
}

/// Nibble `I` of each dword, less 8.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn nibble<const I: u32>(q: __m512i) -> __m512 {
    // Half of them in the mantissa of a float, half through a table: together they keep more units busy than either.
    if (1..5).contains(&I) {
        let NibbleFloat { mask, first } = NibbleFloat::new(I);
        let bits = _mm512_set1_epi32(first.to_bits() as i32);
        let value = _mm512_ternarylogic_epi32::<0xea>(q, _mm512_set1_epi32(mask), bits);
        return _mm512_sub_ps(_mm512_castsi512_ps(value), _mm512_set1_ps(first + 8.0));
    }
    let shifted = match I {
        0 => q,
        5 => _mm512_srli_epi32::<20>(q),
        6 => _mm512_srli_epi32::<24>(q),
        _ => _mm512_srli_epi32::<28>(q),
    };
    // The permutation looks at the four low bits of each index only: a table of sixteen.
    let values = _mm512_setr_ps(-8., -7., -6., -5., -4., -3., -2., -1., 0., 1., 2., 3., 4., 5., 6., 7.);
    _mm512_permutexvar_ps(shifted, values)
}
