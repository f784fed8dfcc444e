use crate::common::{Random, Weights, check, with_threads};
use assay_kernels::layout::MatrixFormat::{self, Bf16};
use assay_kernels::{Matrix, simd, twin};

fn case(format: MatrixFormat, tokens: usize, rows: usize, cols: usize, with_bias: bool) {
    let mut random = Random((tokens * 1_000_003 + rows * 1009 + cols) as u64);
    let weights = Weights::random(&mut random, format, rows, cols);
    let x = random.floats(tokens * cols);
    let bias = random.floats(rows);
    let bias = with_bias.then_some(bias.as_slice());
    let mut expected = vec![f32::NAN; tokens * rows];
    twin::linear(&x, weights.matrix(), bias, &mut expected).unwrap();
    let what = format!("linear {format:?} tokens {tokens} rows {rows} cols {cols} bias {with_bias}");
    check(&what, &expected, |out| simd::linear(&x, weights.matrix(), bias, out).unwrap());
}

#[test]
fn awkward_shapes() {
    for format in MatrixFormat::ALL {
        for cols in [1, 31, 32, 33, 96, 127, 128, 129, 130, 256] {
            for (tokens, rows) in [(1, 1), (1, 40), (2, 16), (3, 17), (5, 33), (8, 15), (17, 32), (31, 5)] {
                case(format, tokens, rows, cols, (tokens + rows) % 2 == 0);
            }
        }
        case(format, 1, 50, 2880, true);
        case(format, 9, 37, 2880, false);
    }
}

#[test]
fn many_tokens_in_chunks() {
    for format in MatrixFormat::ALL {
        for tokens in [127, 128, 129, 200, 1000] {
            case(format, tokens, 18, 130, tokens == 200);
        }
    }
}

#[test]
fn enough_work_for_several_threads() {
    for threads in [1, 2, 5] {
        with_threads(threads, || {
            for format in MatrixFormat::ALL {
                case(format, 1, 1031, 1024, true);
                case(format, 2, 515, 1024, false);
                case(format, 140, 200, 160, true);
            }
        });
    }
}

/// The expert cache aligns what it holds; a kernel must not depend on it.
#[test]
fn unaligned_weights() {
    for format in MatrixFormat::ALL {
        let mut random = Random(4);
        let weights = Weights::random(&mut random, format, 20, 140);
        let shifted: Vec<u8> = [&[0xff], weights.bytes.as_slice()].concat();
        let matrix = Matrix::new(format, 20, 140, &shifted[1..]).unwrap();
        for tokens in [1, 2, 9] {
            let x = random.floats(tokens * 140);
            let mut expected = vec![f32::NAN; tokens * 20];
            twin::linear(&x, weights.matrix(), None, &mut expected).unwrap();
            check("unaligned weights", &expected, |out| simd::linear(&x, matrix, None, out).unwrap());
        }
    }
}

#[test]
fn wrong_shapes_are_refused() {
    let weights = Weights::random(&mut Random(1), Bf16, 4, 3);
    for (x, bias, out, message) in [
        (7, 4, 8, "linear: x [tokens, cols] is 7, expected 6"),
        (6, 4, 9, "linear: out [tokens, rows] is 9, expected 8"),
        (6, 5, 8, "linear: bias [rows] is 5, expected 4"),
    ] {
        let error = simd::linear(&vec![0.0; x], weights.matrix(), Some(&vec![0.0; bias]), &mut vec![0.0; out]);
        assert_eq!(error.unwrap_err().to_string(), message);
    }
}
