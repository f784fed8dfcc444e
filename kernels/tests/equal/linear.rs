use crate::common::{Random, Weights, check};
use assay_kernels::layout::MatrixFormat::{self, Bf16, Int4};
use assay_kernels::{simd, twin};

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
    for format in [Bf16, Int4] {
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
    for format in [Bf16, Int4] {
        for tokens in [127, 128, 129, 200, 1000] {
            case(format, tokens, 18, 130, tokens == 200);
        }
    }
}

#[test]
fn enough_work_for_several_threads() {
    for format in [Bf16, Int4] {
        case(format, 1, 1031, 512, true);
        case(format, 2, 515, 512, false);
        case(format, 140, 200, 160, true);
    }
}
