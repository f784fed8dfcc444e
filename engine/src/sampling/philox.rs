//! Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011): random numbers by
//! counter. No state: number `n` of seed `s` is the same in any process, after any restart, in any order.

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
/// Weyl constants of the key: the golden ratio and √3 − 1.
const INCREMENTS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: usize = 10;

/// Four words of a counter and a key.
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut a, mut b, mut c, mut d], mut key) = (counter, key);
    for _ in 0..ROUNDS {
        let (high_a, low_a) = product(MULTIPLIERS[0], a);
        let (high_c, low_c) = product(MULTIPLIERS[1], c);
        (a, b, c, d) = (high_c ^ b ^ key[0], low_c, high_a ^ d ^ key[1], low_a);
        key = [key[0].wrapping_add(INCREMENTS[0]), key[1].wrapping_add(INCREMENTS[1])];
    }
    [a, b, c, d]
}

/// High and low half of a product.
fn product(a: u32, b: u32) -> (u32, u32) {
    let product = u64::from(a) * u64::from(b);
    ((product >> 32) as u32, product as u32)
}

/// Number `index` of `seed`, of 64 random bits.
pub fn word(seed: u64, index: u64) -> u64 {
    let [a, b, _, _] = philox4x32([index as u32, (index >> 32) as u32, 0, 0], [seed as u32, (seed >> 32) as u32]);
    u64::from(a) | u64::from(b) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors publish with their implementation (Random123, `kat_vectors`).
    #[test]
    fn known_answers() {
        let check = |counter, key, expected: [u32; 4]| assert_eq!(philox4x32(counter, key), expected);
        check([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        check([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        check(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        );
    }

    #[test]
    fn words_are_even() {
        let mean = (0..10_000).map(|index| word(7, index) as f64 / 2f64.powi(64)).sum::<f64>() / 10_000.0;
        // Five standard errors of a uniform mean: 5 · 0.2887 / 100.
        assert!((mean - 0.5).abs() < 0.0145, "{mean}");
        assert_ne!(word(7, 0), word(8, 0));
    }
}
