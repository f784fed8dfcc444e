//! Sixteen f32 lanes, on whatever the processor has.
//!
//! Kernels are written once, generic over [`Lanes`], and compiled once for each [`Level`]; every operation is one IEEE
//! operation a lane, so all levels give the same bits. The vector types are explicit because LLVM does not reliably
//! turn loops over arrays of accumulators into registers.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use crate::Activation;
use crate::contract::{EXP_MAX, EXP_MIN, EXP_POLY, EXP_ROUND, GROUP, LN2_HI, LN2_LO, LOG2_E, RUNS};
use crate::layout::TILE_ROWS;
use crate::matrix::{BF16_COL_BYTES, Int4Group, Int8Group};
use std::cell::Cell;
use std::sync::OnceLock;

/// What turns nibble `I` of a dword, in its place, into the mantissa of an f32: `(q & mask) | bits(first)` is `first + nibble`. For
/// `I` up to 4: above that it would reach into the exponent.
#[derive(Clone, Copy)]
pub(crate) struct NibbleFloat {
    pub(crate) mask: i32,
    pub(crate) first: f32,
}

impl NibbleFloat {
    pub(crate) const fn new(index: u32) -> Self {
        Self { mask: 15 << (4 * index), first: (1u32 << (23 - 4 * index)) as f32 }
    }
}

/// Lanes of a vector; also the rows of a weight tile.
pub(crate) const LANES: usize = TILE_ROWS;

/// Bytes of a row that are transposed at a time: a run of INT4, half a run of INT8.
pub(crate) const PIECE_BYTES: usize = 16;

/// Sixteen floats in memory, aligned for a vector store.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Block(pub(crate) [f32; LANES]);

impl Block {
    pub(crate) const ZERO: Self = Self([0.0; LANES]);
}

/// Instruction sets that kernels are compiled for. All give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The target's baseline. Without a fused multiply-add instruction it is slow.
    Portable,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
}

thread_local! {
    static FORCED: Cell<Option<Level>> = const { Cell::new(None) };
}

impl Level {
    /// As written in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// Levels that this processor runs, slowest first.
    pub fn available() -> &'static [Level] {
        static AVAILABLE: OnceLock<Vec<Level>> = OnceLock::new();
        AVAILABLE.get_or_init(|| {
            let mut levels = vec![Level::Portable];
            #[cfg(target_arch = "x86_64")]
            {
                if avx2::Avx2::detect().is_some() {
                    levels.push(Level::Avx2);
                }
                if avx512::Avx512::detect().is_some() {
                    levels.push(Level::Avx512);
                }
            }
            levels
        })
    }

    /// The level that kernels called from this thread use: the fastest, unless [`Level::force`] says otherwise.
    pub fn current() -> Level {
        let fastest = || Self::available().last().copied().unwrap_or(Level::Portable);
        FORCED.get().unwrap_or_else(fastest)
    }

    /// Runs `f` with every kernel that it calls from this thread held to this level, or to the fastest one available
    /// where the processor lacks it. For tests and measurements.
    pub fn force<T>(self, f: impl FnOnce() -> T) -> T {
        struct Restore(Option<Level>);
        impl Drop for Restore {
            fn drop(&mut self) {
                FORCED.set(self.0);
            }
        }
        let _restore = Restore(FORCED.replace(Some(self).filter(|level| Self::available().contains(level))));
        f()
    }

    /// Runs a task compiled for this level.
    #[inline]
    pub(crate) fn run<T: Task>(self, task: T) -> T::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => match avx512::Avx512::detect() {
                Some(lanes) => lanes.call(task),
                None => portable::Portable.call(task),
            },
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => match avx2::Avx2::detect() {
                Some(lanes) => lanes.call(task),
                None => portable::Portable.call(task),
            },
            _ => portable::Portable.call(task),
        }
    }
}

/// Work to be compiled once a level. Implementations of `run` are `#[inline(always)]`, and so is all they call on
/// lanes: only what is inlined into [`Lanes::call`] is compiled with its instructions.
pub(crate) trait Task {
    /// What it returns.
    type Output;
    /// Does the work.
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// Operations on sixteen lanes. A value of the implementing type is proof that the processor has the instructions.
pub(crate) trait Lanes: Copy + Send + Sync {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen dwords, each holding eight nibbles or four bytes of one row of a tile.
    type Q: Copy;
    /// Whether there are 32 registers of sixteen lanes; otherwise 16 of eight.
    const WIDE: bool;

    /// Runs a task as a function of its own, compiled with these instructions: what keeps functions to a size that
    /// compiles quickly.
    fn call<T: Task>(self, task: T) -> T::Output;

    fn splat(self, x: f32) -> Self::F;
    fn load(self, x: &[f32; LANES]) -> Self::F;
    fn store(self, x: Self::F, out: &mut [f32; LANES]);
    /// Sixteen little-endian BF16.
    fn load_bf16(self, x: &[u8; BF16_COL_BYTES]) -> Self::F;
    /// `a * b + c` with one rounding.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `if b > a { b } else { a }`.
    fn larger(self, a: Self::F, b: Self::F) -> Self::F;
    /// `if x < limit { a } else { b }`.
    fn if_less(self, x: Self::F, limit: Self::F, a: Self::F, b: Self::F) -> Self::F;
    /// `if x.is_nan() { x } else { a }`.
    fn keep_nan(self, x: Self::F, a: Self::F) -> Self::F;
    /// `from_bits(bits(x) + (bits(n) << 23))`.
    fn add_exponent(self, x: Self::F, n: Self::F) -> Self::F;
    /// Transposes the pieces of sixteen rows: lane r of result d is dword d of piece `first + r * stride`.
    fn dwords(self, pieces: &[[u8; PIECE_BYTES]], first: usize, stride: usize) -> [Self::Q; 4];
    /// Nibble `I` of the eight in `q`, counted from the lowest, as −8..=7.
    fn int4_nibble<const I: u32>(self, q: Self::Q) -> Self::F;

    /// Byte `I` of the four in `q`, counted from the lowest, as −128..=127.
    fn int8_byte<const I: u32>(self, q: Self::Q) -> Self::F;

    /// One run of an INT4 tile: result d holds columns `8 d .. 8 d + 8`.
    #[inline(always)]
    fn int4_run(self, group: &Int4Group, run: usize) -> [Self::Q; 4] {
        self.dwords(group.as_flattened().as_chunks().0, run, RUNS)
    }

    /// Half a run of an INT8 tile: result d holds columns `4 d .. 4 d + 4`.
    #[inline(always)]
    fn int8_half_run(self, group: &Int8Group, half: usize) -> [Self::Q; 4] {
        self.dwords(group.as_flattened().as_chunks().0, half, GROUP / PIECE_BYTES)
    }

    /// All four columns in `q`.
    #[inline(always)]
    fn int8_columns(self, q: Self::Q) -> [Self::F; 4] {
        [self.int8_byte::<0>(q), self.int8_byte::<1>(q), self.int8_byte::<2>(q), self.int8_byte::<3>(q)]
    }

    /// All eight columns in `q`; the odd ones are in the high halves.
    #[inline(always)]
    fn int4_columns(self, q: Self::Q) -> [Self::F; 8] {
        [
            self.int4_nibble::<0>(q),
            self.int4_nibble::<4>(q),
            self.int4_nibble::<1>(q),
            self.int4_nibble::<5>(q),
            self.int4_nibble::<2>(q),
            self.int4_nibble::<6>(q),
            self.int4_nibble::<3>(q),
            self.int4_nibble::<7>(q),
        ]
    }

    /// Sixteen little-endian f32.
    #[inline(always)]
    fn load_f32_bytes(self, x: &[u8; 4 * LANES]) -> Self::F {
        self.load(&bytemuck::pod_read_unaligned::<[u32; LANES]>(x).map(|bits| f32::from_bits(u32::from_le(bits))))
    }

    /// The first sixteen floats, zeros where `x` is shorter.
    #[inline(always)]
    fn load_part(self, x: &[f32]) -> Self::F {
        match x.first_chunk() {
            Some(block) => self.load(block),
            None => {
                let mut block = Block::ZERO;
                block.0[..x.len()].copy_from_slice(x);
                self.load(&block.0)
            }
        }
    }

    /// Stores sixteen floats, or as many as `out` has room for.
    #[inline(always)]
    fn store_part(self, x: Self::F, out: &mut [f32]) {
        match out.first_chunk_mut() {
            Some(block) => self.store(x, block),
            None => {
                let mut block = Block::ZERO;
                self.store(x, &mut block.0);
                out.copy_from_slice(&block.0[..out.len()]);
            }
        }
    }

    /// `-x`.
    #[inline(always)]
    fn negate(self, x: Self::F) -> Self::F {
        // -0.0 - x is -x for both zeros too.
        self.sub(self.splat(-0.0), x)
    }

    /// [`crate::contract::exp`].
    #[inline(always)]
    fn exp(self, x: Self::F) -> Self::F {
        let round = self.splat(EXP_ROUND);
        let rounded = self.fma(x, self.splat(LOG2_E), round);
        let n = self.sub(rounded, round);
        let r = self.fma(n, self.splat(-LN2_HI), x);
        let r = self.fma(n, self.splat(-LN2_LO), r);
        let [c0, c1, c2, c3, c4] = EXP_POLY.map(|c| self.splat(c));
        let q = self.fma(self.fma(c4, r, c3), r, c2);
        let q = self.fma(self.fma(q, r, c1), r, c0);
        let p = self.add(self.fma(self.mul(q, r), r, r), self.splat(1.0));
        let scaled = self.add_exponent(p, rounded);
        let low = self.if_less(x, self.splat(EXP_MIN), self.splat(0.0), scaled);
        let high = self.if_less(self.splat(EXP_MAX), x, self.splat(f32::INFINITY), low);
        self.keep_nan(x, high)
    }

    /// [`crate::contract::silu`].
    #[inline(always)]
    fn silu(self, x: Self::F) -> Self::F {
        self.div(x, self.add(self.splat(1.0), self.exp(self.negate(x))))
    }

    /// [`crate::contract::sigmoid`].
    #[inline(always)]
    fn sigmoid(self, x: Self::F) -> Self::F {
        let one = self.splat(1.0);
        self.div(one, self.add(one, self.exp(self.negate(x))))
    }

    /// [`crate::contract::activate`].
    #[inline(always)]
    fn activate(self, activation: Activation, gate: Self::F, up: Self::F) -> Self::F {
        match activation {
            Activation::SwiGlu => self.mul(self.silu(gate), up),
            Activation::ClampedSwiGlu { alpha, limit } => {
                let (one, high, low) = (self.splat(1.0), self.splat(limit), self.splat(-limit));
                let gate = self.if_less(high, gate, high, gate);
                let up = self.if_less(high, up, high, up);
                let up = self.if_less(up, low, low, up);
                let steep = self.mul(self.splat(alpha), gate);
                let glu = self.div(gate, self.add(one, self.exp(self.negate(steep))));
                self.mul(self.add(up, one), glu)
            }
        }
    }
}
