#![allow(clippy::unwrap_used, clippy::expect_used)]

use half::bf16;
use proptest::prelude::*;

use super::*;

/// `q` in −7..=7 and scales that differ by place, so that a misplaced element shows.
fn int4_sample(rows: usize, cols: usize) -> (Vec<i8>, Vec<bf16>) {
    let q = (0..rows * cols).map(|i| (i * 7919 % 15) as i8 - 7).collect();
    let scales = (0..rows * col_groups(cols)).map(|i| bf16::from_f32(0.01 + i as f32 / 64.0)).collect();
    (q, scales)
}

fn packed_int4(rows: usize, cols: usize) -> Vec<u8> {
    let (q, scales) = int4_sample(rows, cols);
    let mut bytes = vec![0xff; matrix_bytes(MatrixFormat::Int4, rows, cols).unwrap()];
    pack_int4(&q, &scales, rows, cols, &mut bytes).unwrap();
    bytes
}

fn int8_sample(rows: usize, cols: usize) -> (Vec<i8>, Vec<bf16>) {
    let (_, scales) = int4_sample(rows, cols);
    ((0..rows * cols).map(|i| ((i * 7919 % 255) as i16 - 127) as i8).collect(), scales)
}

fn packed_int8(rows: usize, cols: usize) -> Vec<u8> {
    let (q, scales) = int8_sample(rows, cols);
    let mut bytes = vec![0xff; matrix_bytes(MatrixFormat::Int8, rows, cols).unwrap()];
    pack_int8(&q, &scales, rows, cols, &mut bytes).unwrap();
    bytes
}

#[test]
fn an_int8_weight_is_where_the_documentation_says_and_validation_names_the_place() {
    let (rows, cols) = (18, 130);
    let (q, scales) = int8_sample(rows, cols);
    let good = packed_int8(rows, cols);
    let plane = 2 * 2 * INT8_GROUP_BYTES;
    for (row, col) in [(0, 0), (1, 1), (15, 127), (16, 128), (17, 129)] {
        let group = row / 16 * 2 + col / 128;
        assert_eq!(
            good[(group * 16 + row % 16) * 128 + col % 128] as i8,
            q[row * cols + col],
            "row {row}, column {col}"
        );
        let at = plane + (group * 16 + row % 16) * 2;
        assert_eq!(bf16::from_le_bytes([good[at], good[at + 1]]), scales[row * 2 + col / 128]);
    }
    let check = |at: usize, value: u8, expected: LayoutError| {
        let mut bad = good.clone();
        bad[at] = value;
        assert_eq!(validate_int8(&bad, rows, cols), Err(expected));
    };
    check(128 + 3, 0x80, LayoutError::Quantised { row: 1, col: 3, found: -128, most: 127 });
    check(2048 + 2, 0xff, LayoutError::Padding { row: 0, col: 130, found: -1.0 });
    check(2 * 2048 + 2 * 128, 1, LayoutError::Padding { row: 18, col: 0, found: 1.0 });
    check(plane + 2 * 32 + 5, 0x3f, LayoutError::Padding { row: 18, col: 0, found: 0.5 });
    check(plane + 1, 0xbf, LayoutError::Scale { row: 0, group: 0, found: scale_of(good[plane], 0xbf) });
    assert!(matches!(validate_int8(&good[1..], rows, cols), Err(LayoutError::Length { .. })));
    let mut out = vec![0; good.len()];
    let mut low = q.clone();
    low[17 * cols + 2] = -128;
    let found = pack_int8(&low, &scales, rows, cols, &mut out).unwrap_err();
    assert_eq!(found.to_string(), "row 17, column 2: quantised weight -128, expected -127..=127");
    assert!(pack_int8(&q[1..], &scales, rows, cols, &mut out).is_err());
    assert!(pack_int8(&q, &scales[1..], rows, cols, &mut out).is_err());
}

#[test]
fn sizes_are_the_documented_ones() {
    assert_eq!(matrix_bytes(MatrixFormat::Bf16, 17, 5), Some(2 * 5 * 16 * 2));
    assert_eq!(matrix_bytes(MatrixFormat::Int4, 17, 129), Some(2 * 2 * (1024 + 32)));
    assert_eq!(matrix_bytes(MatrixFormat::Int8, 17, 129), Some(2 * 2 * (2048 + 32)));
    for format in MatrixFormat::ALL {
        assert_eq!(matrix_bytes(format, 0, 5), None);
        assert_eq!(matrix_bytes(format, 5, 0), None);
        assert_eq!(matrix_bytes(format, usize::MAX, usize::MAX), None);
        assert_eq!(matrix_bytes(format, usize::MAX / 2, 16), None);
        assert_eq!(ExpertLayout::new(format, usize::MAX / 8, 64, true), None);
    }
}

#[test]
fn an_int4_weight_is_where_the_documentation_says() {
    let (rows, cols) = (35, 300);
    let (q, scales) = int4_sample(rows, cols);
    let bytes = packed_int4(rows, cols);
    let groups = 3;
    let plane = 3 * groups * INT4_GROUP_BYTES;
    for (row, col) in [(0, 0), (1, 1), (15, 31), (16, 32), (34, 299), (20, 128), (33, 127), (7, 256)] {
        let (tile, group, run, word) = (row / 16, col / 128, col % 128 / 32, col % 32 / 8);
        let at = (((tile * groups + group) * 16 + row % 16) * 4 + run) * 16 + 4 * word;
        let word = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let place = [0, 2, 4, 6, 1, 3, 5, 7].iter().position(|&held| held == col % 8).unwrap();
        assert_eq!((word >> (4 * place) & 15) as i8 - 8, q[row * cols + col], "row {row}, column {col}");
        let at = plane + ((tile * groups + group) * 16 + row % 16) * 2;
        assert_eq!(bf16::from_le_bytes([bytes[at], bytes[at + 1]]), scales[row * groups + group]);
    }
}

#[test]
fn a_bf16_weight_is_where_the_documentation_says() {
    let (rows, cols) = (20, 7);
    let values: Vec<f32> = (0..rows * cols).map(|i| i as f32).collect();
    let mut bytes = vec![0xff; matrix_bytes(MatrixFormat::Bf16, rows, cols).unwrap()];
    pack_bf16(&values, rows, cols, &mut bytes).unwrap();
    for row in 0..32 {
        for col in 0..cols {
            let at = ((row / 16 * cols + col) * 16 + row % 16) * 2;
            let expected = if row < rows { values[row * cols + col] } else { 0.0 };
            assert_eq!(bf16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(), expected);
        }
    }
}

#[test]
fn an_expert_is_gate_up_down_at_multiples_of_256() {
    let layout = ExpertLayout::new(MatrixFormat::Int4, 192, 96, false).unwrap();
    // gate and up: 6 tiles x 2 groups x 1056 = 12672, padded to 12800; down: 12 tiles x 1 group x 1056.
    assert_eq!((layout.gate(), layout.up(), layout.down()), (0..12672, 12800..25472, 25600..38272));
    assert_eq!((layout.biases(), layout.bytes), (None, 38400));
    // Biases of 96, 96 and 192 floats behind them.
    let biased = ExpertLayout::new(MatrixFormat::Int4, 192, 96, true).unwrap();
    assert_eq!((biased.gate(), biased.up(), biased.down()), (layout.gate(), layout.up(), layout.down()));
    assert_eq!(biased.biases(), Some([38400..38784, 38912..39296, 39424..40192]));
    assert_eq!(biased.bytes, 40192);
}

#[test]
fn validation_names_the_place() {
    let (rows, cols) = (18, 130);
    let good = packed_int4(rows, cols);
    validate_int4(&good, rows, cols).unwrap();
    let plane = 2 * 2 * INT4_GROUP_BYTES;
    let check = |at: usize, value: u8, expected: LayoutError| {
        let mut bad = good.clone();
        bad[at] = value;
        let found = validate_int4(&bad, rows, cols).unwrap_err();
        assert_eq!(found, expected);
        assert_eq!(found.to_string(), expected.to_string());
    };
    check(64, 0x80, LayoutError::Quantised { row: 1, col: 0, found: -8, most: 7 });
    check(64, 0x08, LayoutError::Quantised { row: 1, col: 2, found: -8, most: 7 });
    check(64 + 16 + 3, 0x08, LayoutError::Quantised { row: 1, col: 39, found: -8, most: 7 });
    // Column 130 is padding: the high nibble of byte 0 of row 0, run 0, group 1.
    check(1024, 0x98, LayoutError::Padding { row: 0, col: 130, found: 1.0 });
    // Row 18 is padding: row 2 of tile 1, two groups in.
    check(2048 + 2 * 64 + 2, 0x87, LayoutError::Padding { row: 18, col: 1, found: -1.0 });
    check(plane + 2 * 32 + 5, 0x3f, LayoutError::Padding { row: 18, col: 0, found: 0.5 });
    check(plane + 1, 0xbf, LayoutError::Scale { row: 0, group: 0, found: scale_of(good[plane], 0xbf) });
    let mut bad = good.clone();
    bad[plane..plane + 2].copy_from_slice(&bf16::NAN.to_le_bytes());
    assert!(matches!(validate_int4(&bad, rows, cols), Err(LayoutError::Scale { row: 0, group: 0, .. })));
    assert!(matches!(validate_int4(&good[1..], rows, cols), Err(LayoutError::Length { .. })));
}

fn scale_of(low: u8, high: u8) -> f32 {
    bf16::from_le_bytes([low, high]).to_f32()
}

#[test]
fn packing_refuses_what_it_cannot_hold() {
    let mut out = vec![0; matrix_bytes(MatrixFormat::Int4, 20, 3).unwrap()];
    let mut q = vec![0; 60];
    let mut scales = vec![bf16::ONE; 20];
    q[17 * 3 + 2] = -8;
    let found = pack_int4(&q, &scales, 20, 3, &mut out).unwrap_err();
    assert_eq!(found, LayoutError::Quantised { row: 17, col: 2, found: -8, most: 7 });
    q[17 * 3 + 2] = 7;
    scales[16] = bf16::INFINITY;
    let found = pack_int4(&q, &scales, 20, 3, &mut out).unwrap_err();
    assert_eq!(found, LayoutError::Scale { row: 16, group: 0, found: f32::INFINITY });
    scales[16] = bf16::NEG_ZERO;
    assert!(pack_int4(&q, &scales, 20, 3, &mut out).is_err());
    assert!(pack_int4(&q[1..], &scales, 20, 3, &mut out).is_err());
    assert!(pack_int4(&q, &scales[1..], 20, 3, &mut out).is_err());
    assert!(pack_int4(&q, &scales, 20, 3, &mut out[1..]).is_err());
    assert!(pack_int4(&[], &[], 0, 3, &mut []).is_err());
    assert!(pack_bf16(&[0.0; 4], 2, 3, &mut [0; 96]).is_err());
    assert!(pack_bf16_tile(&[0.0; 51], 3, &mut [0; 96]).is_err());
    assert!(pack_bf16_tile(&[], 3, &mut [0; 96]).is_err());
    assert!(pack_bf16_tile(&[], 0, &mut []).is_err());
    let infinite = [f32::INFINITY];
    let mut one = vec![0; 32];
    pack_bf16(&infinite, 1, 1, &mut one).unwrap();
    assert_eq!(validate_bf16(&one, 1, 1), Err(LayoutError::Weight { row: 0, col: 0, found: f32::INFINITY }));
    one[31] = 0x3f;
    one[0..2].fill(0);
    assert_eq!(validate_bf16(&one, 1, 1), Err(LayoutError::Padding { row: 15, col: 0, found: 0.5 }));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn int4_comes_back(rows in 1..50_usize, cols in 1..400_usize) {
        let (q, scales) = int4_sample(rows, cols);
        let bytes = packed_int4(rows, cols);
        validate_int4(&bytes, rows, cols).unwrap();
        let mut values = vec![f32::NAN; rows * cols];
        unpack_int4(&bytes, rows, cols, &mut values).unwrap();
        for (i, value) in values.iter().enumerate() {
            let scale = scales[i / cols * col_groups(cols) + i % cols / GROUP_COLS].to_f32();
            prop_assert_eq!(*value, f32::from(q[i]) * scale);
        }
    }

    #[test]
    fn int8_comes_back(rows in 1..50_usize, cols in 1..400_usize) {
        let (q, scales) = int8_sample(rows, cols);
        let bytes = packed_int8(rows, cols);
        validate_int8(&bytes, rows, cols).unwrap();
        let mut values = vec![f32::NAN; rows * cols];
        unpack_int8(&bytes, rows, cols, &mut values).unwrap();
        for (i, value) in values.iter().enumerate() {
            let scale = scales[i / cols * col_groups(cols) + i % cols / GROUP_COLS].to_f32();
            prop_assert_eq!(*value, f32::from(q[i]) * scale);
        }
    }

    #[test]
    fn bf16_comes_back(rows in 1..50_usize, cols in 1..200_usize) {
        let values: Vec<f32> = (0..rows * cols).map(|i| bf16::from_f32(i as f32 * 0.37 - 50.0).to_f32()).collect();
        let mut bytes = vec![0xff; matrix_bytes(MatrixFormat::Bf16, rows, cols).unwrap()];
        pack_bf16(&values, rows, cols, &mut bytes).unwrap();
        validate_bf16(&bytes, rows, cols).unwrap();
        let mut back = vec![f32::NAN; rows * cols];
        unpack_bf16(&bytes, rows, cols, &mut back).unwrap();
        prop_assert_eq!(back, values);
    }

    #[test]
    fn an_expert_keeps_its_matrices_apart(hidden in 1..4000_usize, intermediate in 1..4000_usize, format in 0..3_usize) {
        let format = MatrixFormat::ALL[format];
        let layout = ExpertLayout::new(format, hidden, intermediate, false).unwrap();
        for start in [layout.gate_offset, layout.up_offset, layout.down_offset, layout.bytes] {
            prop_assert_eq!(start % EXPERT_ALIGN, 0);
        }
        prop_assert!(layout.gate().end <= layout.up_offset);
        prop_assert!(layout.up().end <= layout.down_offset);
        prop_assert!(layout.down().end <= layout.bytes);
    }
}
