//! Parts of tensors: experts of fused tensors, every other row, transposes, MXFP4.

use half::bf16;
use tempfile::TempDir;

use super::{entry, folder, safetensors};
use crate::checkpoint::Checkpoint;
use crate::model::spec::{TensorPart, TensorSource};

/// A checkpoint of some tensors: name, type, shape, bytes.
fn checkpoint(tensors: &[(&str, &str, &[usize], &[u8])]) -> (TempDir, Checkpoint) {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        entries.push(entry(name, dtype, shape, (data.len() as u64, (data.len() + bytes.len()) as u64)));
        data.extend_from_slice(bytes);
    }
    let folder = folder(&[("model.safetensors", &safetensors(&format!("{{{}}}", entries.join(",")), &data))]);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    (folder, checkpoint)
}

fn part(shape: &[usize], file_shape: &[usize], offset: usize, [row_stride, col_stride]: [usize; 2]) -> TensorSource {
    let part = TensorPart { file_shape: file_shape.to_vec(), offset, row_stride, col_stride, mxfp4_scales: None };
    TensorSource { name: "w".into(), shape: shape.to_vec(), part: Some(Box::new(part)) }
}

fn packed(mut source: TensorSource, scales: &str) -> TensorSource {
    source.part.as_mut().unwrap().mxfp4_scales = Some(scales.into());
    source
}

fn error(checkpoint: &Checkpoint, source: &TensorSource) -> String {
    let error = match checkpoint.tensor(source) {
        Ok(view) => view.to_f32_vec().map(|_| ()).unwrap_err(),
        Err(error) => error,
    };
    error.to_string().replace(&format!("{}/", checkpoint.dir().display()), "")
}

/// Two experts of four outputs by three inputs, element i being i, in each of the types.
#[test]
fn strides_reach_every_arrangement() {
    let values: Vec<f32> = (0..24u8).map(f32::from).collect();
    let bytes = |dtype: &str| -> Vec<u8> {
        let bytes = values.iter().map(|&value| match dtype {
            "F32" => value.to_le_bytes().to_vec(),
            "BF16" => bf16::from_f32(value).to_le_bytes().to_vec(),
            _ => half::f16::from_f32(value).to_le_bytes().to_vec(),
        });
        bytes.flatten().collect()
    };
    for dtype in ["F32", "BF16", "F16"] {
        let (_folder, checkpoint) = checkpoint(&[("w", dtype, &[2, 4, 3], &bytes(dtype))]);
        let read = |shape: &[usize], offset, strides| {
            checkpoint.tensor(&part(shape, &[2, 4, 3], offset, strides)).unwrap().to_f32_vec().unwrap()
        };
        // Rows of the second expert; every other row of it; the first expert's transpose; a column as a vector.
        assert_eq!(read(&[4, 3], 12, [3, 1]), values[12..]);
        assert_eq!(read(&[2, 3], 15, [6, 1]), [15.0, 16.0, 17.0, 21.0, 22.0, 23.0]);
        assert_eq!(read(&[3, 4], 0, [1, 3]), [0.0, 3.0, 6.0, 9.0, 1.0, 4.0, 7.0, 10.0, 2.0, 5.0, 8.0, 11.0]);
        assert_eq!(read(&[4], 13, [0, 3]), [13.0, 16.0, 19.0, 22.0]);
        let view = checkpoint.tensor(&part(&[3, 4], &[2, 4, 3], 12, [1, 3])).unwrap();
        assert_eq!((view.rows(), view.cols(), view.elements()), (3, 4, 12));
        let mut rows = [0.0; 8];
        view.rows_f32(1..3, &mut rows).unwrap();
        assert_eq!(rows, [13.0, 16.0, 19.0, 22.0, 14.0, 17.0, 20.0, 23.0]);
        let mut rounded = [bf16::ZERO; 4];
        view.rows_bf16(2..3, &mut rounded).unwrap();
        assert_eq!(rounded.map(bf16::to_f32), [14.0, 17.0, 20.0, 23.0]);
        let late = view.rows_f32(2..4, &mut rows).unwrap_err().to_string();
        assert_eq!(late, "tensor w: rows 2..4 into 8 elements, expected rows within 0..3 of 4 elements");
    }
}

#[test]
fn a_part_stays_within_its_tensor() {
    let (_folder, checkpoint) = checkpoint(&[("w", "F32", &[2, 3], &[0; 24])]);
    for (shape, offset, strides, last) in [
        (vec![2, 3], 1, [3, 1], "Some(6)"),
        (vec![3, 2], 0, [1, 4], "Some(6)"),
        (vec![1], 6, [0, 1], "Some(6)"),
        (vec![2, 2], 0, [usize::MAX, 1], "None"),
        (vec![2, 2], usize::MAX, [1, 1], "None"),
        (vec![usize::MAX, 2, 2], 0, [0, 0], "None"),
        (vec![0, 3], 0, [3, 1], "None"),
        (vec![3, 0], 0, [3, 1], "None"),
    ] {
        let found = error(&checkpoint, &part(&shape, &[2, 3], offset, strides));
        assert_eq!(found, format!("tensor w: a part up to element {last}, expected less than 6"));
    }
    let found = error(&checkpoint, &part(&[2, 3], &[3, 2], 0, [3, 1]));
    assert_eq!(found, "model.safetensors: tensor w has shape [2, 3], expected [3, 2]");
}

#[test]
fn what_is_not_finite_in_a_part_is_named_by_its_place_in_the_file() {
    let mut bytes = [0; 24];
    bytes[16..20].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let (_folder, checkpoint) = checkpoint(&[("w", "F32", &[2, 3], &bytes)]);
    let found = error(&checkpoint, &part(&[3, 2], &[2, 3], 0, [1, 3]));
    assert_eq!(found, "model.safetensors: tensor w has inf at element 4, expected a finite number");
    let first_row = checkpoint.tensor(&part(&[3], &[2, 3], 0, [0, 1])).unwrap();
    assert_eq!(first_row.to_f32_vec().unwrap(), [0.0; 3]);
}

/// Two rows of two blocks: nibble n of a block stands for value n, scales 1, 2, 1/2 and 4.
#[test]
fn mxfp4_is_read_by_rows_and_by_columns() {
    let block: Vec<u8> = (0..16u8).map(|byte| (byte % 8 * 2) | ((byte % 8 * 2 + 1) << 4)).collect();
    let (_folder, checkpoint) =
        checkpoint(&[("w", "U8", &[2, 2, 16], &block.repeat(4)), ("s", "U8", &[2, 2], &[127, 128, 126, 129])]);
    let read = |shape: &[usize], offset, strides| {
        let view = checkpoint.tensor(&packed(part(shape, &[2, 64], offset, strides), "s")).unwrap();
        assert_eq!((view.cols(), view.elements()), (shape[shape.len() - 1], shape.iter().product()));
        view.to_f32_vec().unwrap()
    };
    let half = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let block: Vec<f32> = half.into_iter().chain(half.map(|value| -value)).cycle().take(32).collect();
    let scaled = |scale: f32| block.iter().map(move |value| value * scale);
    let rows: Vec<f32> = scaled(1.0).chain(scaled(2.0)).chain(scaled(0.5)).chain(scaled(4.0)).collect();
    assert_eq!(read(&[2, 64], 0, [64, 1]), rows);
    assert_eq!(read(&[64], 64, [0, 1]), rows[64..]);
    let columns: Vec<f32> = (0..64).flat_map(|col| [rows[col], rows[64 + col]]).collect();
    assert_eq!(read(&[64, 2], 0, [1, 64]), columns);
}

#[test]
fn mxfp4_that_is_not_what_it_should_be_is_refused() {
    let blocks = [0x22; 32];
    let (_folder, whole) = checkpoint(&[("w", "U8", &[2, 1, 16], &blocks), ("s", "U8", &[2, 1], &[127, 255])]);
    let source = packed(part(&[2, 32], &[2, 32], 0, [32, 1]), "s");
    assert_eq!(error(&whole, &source), "model.safetensors: tensor w has NaN at element 32, expected a finite number");
    let first_row = packed(part(&[32], &[2, 32], 0, [0, 1]), "s");
    assert_eq!(whole.tensor(&first_row).unwrap().to_f32_vec().unwrap(), [1.0; 32]);
    // As floats it is nothing, and floats are no blocks.
    let plain = error(&whole, &part(&[2, 16], &[2, 1, 16], 0, [16, 1]));
    assert_eq!(plain, "model.safetensors: tensor w is U8, expected BF16, F16 or F32");
    let (_folder, floats) = checkpoint(&[("w", "BF16", &[1, 16], &blocks), ("s", "U8", &[1], &[127])]);
    let one = |scales| packed(part(&[1, 32], &[32], 0, [32, 1]), scales);
    assert_eq!(error(&floats, &one("s")), "model.safetensors: tensor w is BF16, expected U8, as MXFP4 is stored");
    let (_folder, lone) = checkpoint(&[("w", "U8", &[1, 16], &blocks[..16]), ("s", "U8", &[1, 1], &[127])]);
    assert_eq!(error(&lone, &one("s")), "model.safetensors: tensor s has shape [1, 1], expected [1]");
    assert!(error(&lone, &one("t")).contains("no tensor t (expected shape [1]) among 2 tensors"));
    let wide = packed(part(&[2, 32], &[64], 0, [32, 1]), "s");
    assert_eq!(error(&lone, &wide), "model.safetensors: tensor w has shape [1, 16], expected [2, 16]");
}
