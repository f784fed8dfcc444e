//! Deterministic operands, and the comparison.

use assay_kernels::Matrix;
use assay_kernels::layout::{MatrixFormat, TILE_ROWS, matrix_bytes};
use assay_kernels::simd::Level;
use half::bf16;

/// SplitMix64 (Steele, Lea and Flood 2014).
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Of either sign and of very different sizes, so that the order of additions shows; sometimes a signed zero.
    pub(crate) fn float(&mut self) -> f32 {
        let bits = self.next();
        if bits.is_multiple_of(61) {
            return if bits & 1024 == 0 { 0.0 } else { -0.0 };
        }
        let unit = (bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        unit * [0.01, 0.3, 1.0, 3.0][(bits & 3) as usize]
    }

    pub(crate) fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.float()).collect()
    }
}

pub(crate) struct Weights {
    pub(crate) format: MatrixFormat,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) bytes: Vec<u8>,
}

impl Weights {
    pub(crate) fn random(random: &mut Random, format: MatrixFormat, rows: usize, cols: usize) -> Self {
        let mut bytes = vec![0; matrix_bytes(format, rows, cols).unwrap()];
        let float = |random: &mut Random| bf16::from_f32(random.float()).to_le_bytes();
        let planes = format.group_bytes().map_or(0, |bytes| rows.div_ceil(TILE_ROWS) * cols.div_ceil(128) * bytes);
        for byte in &mut bytes[..planes] {
            *byte = match format {
                MatrixFormat::Int8 => (random.below(255) as i16 - 127) as u8,
                _ => (1 + random.below(15) + 16 * (1 + random.below(15))) as u8,
            };
        }
        for pair in bytes[planes..].chunks_exact_mut(2) {
            pair.copy_from_slice(&float(random));
        }
        // Padding keeps its random values: no kernel may let it reach a result.
        Self { format, rows, cols, bytes }
    }

    pub(crate) fn matrix(&self) -> Matrix<'_> {
        Matrix::new(self.format, self.rows, self.cols, &self.bytes).unwrap()
    }
}

/// Runs `fast` on every level into a slice full of NaN, and compares it with the twin's output.
pub(crate) fn check(what: &str, expected: &[f32], fast: impl Fn(&mut [f32])) {
    for &level in Level::available() {
        let mut found = vec![f32::NAN; expected.len()];
        level.force(|| fast(&mut found));
        same(&format!("{what}, {level:?}"), expected, &found);
    }
}

pub(crate) fn same(what: &str, expected: &[f32], found: &[f32]) {
    assert_eq!(expected.len(), found.len(), "{what}");
    for (index, (e, f)) in expected.iter().zip(found).enumerate() {
        assert_eq!(e.to_bits(), f.to_bits(), "{what}: element {index} is {f}, expected {e}");
    }
}

/// Runs `f` on a pool of its own: the number of threads must not show.
pub(crate) fn with_threads(threads: usize, f: impl FnOnce() + Send) {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(f);
}
