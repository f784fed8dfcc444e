//! MXFP4: blocks of 32 four-bit floats (E2M1) that share a power of two (OCP Microscaling Formats 1.0, sections 5.2 to 5.4).

/// Values that share a scale.
pub(super) const MXFP4_BLOCK: usize = 32;

/// What the low three bits of a nibble stand for; the high bit is the sign.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Value `index` of a tensor: two to a byte, the lower nibble first. NaN where the scale is NaN, and past the end. Exact, unless
/// the product is too large for f32: then it is infinite.
pub(super) fn value(blocks: &[u8], scales: &[u8], index: usize) -> f32 {
    let (Some(byte), Some(scale)) = (blocks.get(index / 2), scales.get(index / MXFP4_BLOCK)) else {
        return f32::NAN;
    };
    let nibble = if index.is_multiple_of(2) { byte & 0x0f } else { byte >> 4 };
    let magnitude = E2M1[usize::from(nibble & 7)];
    let signed = if nibble & 8 == 0 { magnitude } else { -magnitude };
    signed * power_of_two(*scale)
}

/// `2^(bits - 127)`; 255 is NaN.
fn power_of_two(bits: u8) -> f32 {
    match bits {
        // Subnormal in f32, and exact.
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(bits) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nibble_under_every_scale() {
        let expected = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
        let blocks: Vec<u8> = (0..16).map(|byte| (byte % 8 * 2) | ((byte % 8 * 2 + 1) << 4)).collect();
        for scale in 0..255u8 {
            for (index, expected) in expected.iter().cycle().take(32).enumerate() {
                let exact = expected * 2f64.powi(i32::from(scale) - 127);
                let found = value(&blocks, &[scale], index);
                // 6 * 2^127 is the one kind of value that f32 cannot hold.
                if exact.abs() > f64::from(f32::MAX) {
                    assert!(found.is_infinite(), "{exact}");
                } else {
                    assert_eq!((f64::from(found), found.is_sign_negative()), (exact, exact.is_sign_negative()));
                }
            }
        }
        assert!(value(&blocks, &[255], 3).is_nan());
        assert!(value(&blocks, &[127], 32).is_nan());
    }

    #[test]
    fn a_block_has_its_own_scale() {
        let blocks = [0x22; 32];
        let values: Vec<f32> = (0..64).map(|index| value(&blocks, &[127, 129], index)).collect();
        assert_eq!(values, [vec![1.0; 32], vec![4.0; 32]].concat());
    }
}
