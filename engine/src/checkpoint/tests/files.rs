//! Broken safetensors files.

use proptest::prelude::*;

use super::{entry, folder, open_error, safetensors, source};
use crate::checkpoint::Checkpoint;

/// A good file of two tensors, 8 bytes and 4.
fn good() -> Vec<u8> {
    let header = format!("{{{},{}}}", entry("a", "F32", &[2], (0, 8)), entry("b", "BF16", &[2, 1], (8, 12)));
    safetensors(&header, &[0; 12])
}

/// A file with these entries in front of `data` bytes.
fn with(entries: &[String], data: usize) -> Vec<u8> {
    safetensors(&format!("{{{}}}", entries.join(",")), &vec![0; data])
}

#[test]
fn broken_files_are_refused() {
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (vec![], "the file is empty, expected at least the 8 bytes of a safetensors header length"),
        (vec![1, 0, 0], "the file has 3 bytes, expected at least the 8 bytes of a safetensors header length"),
        (
            5u64.to_le_bytes().to_vec(),
            "a header of 5 bytes is announced and 0 bytes follow, expected a header that ends within the file",
        ),
        (
            [1000u64.to_le_bytes().as_slice(), b"{}"].concat(),
            "a header of 1000 bytes is announced and 2 bytes follow, expected a header that ends within the file",
        ),
        (vec![0xff; 64], "header length in bytes of 18446744073709551615, expected at most 100000000"),
        (
            safetensors("{", &[]),
            "the header cannot be read (EOF while parsing an object at line 1 column 1), expected a safetensors header in JSON",
        ),
        (
            safetensors("{} x", &[]),
            "the header cannot be read (trailing characters at line 1 column 4), expected a safetensors header in JSON",
        ),
        (
            safetensors("[]", &[]),
            "the header cannot be read (invalid type: sequence, expected an object of tensors at line 1 column 0), \
             expected a safetensors header in JSON",
        ),
        (
            with(&[entry("a", "F7", &[1], (0, 4))], 4),
            "the header cannot be read (tensor a: unknown variant `F7`, expected one of",
        ),
        (with(&["\"a\":{\"dtype\":\"F32\"}".into()], 4), "the header cannot be read (tensor a: missing field `shape`"),
        (
            good()[..good().len() - 1].to_vec(),
            "tensor b lies at bytes 8..12 of the data, expected a range within the 11 bytes that the file holds behind its header",
        ),
        ([good(), vec![0]].concat(), "the tensors end at byte 12 of the data, expected 13, the end of the file"),
        (
            with(&[entry("a", "F32", &[2], (0, 1 << 40))], 8),
            "tensor a lies at bytes 0..1099511627776 of the data, \
             expected a range within the 8 bytes that the file holds behind its header",
        ),
        (
            with(&[entry("a", "F32", &[2], (8, 0))], 8),
            "tensor a lies at bytes 8..0 of the data, expected 8 bytes for shape [2] of F32",
        ),
        (
            with(&[entry("a", "F32", &[3], (0, 8))], 8),
            "tensor a lies at bytes 0..8 of the data, expected 12 bytes for shape [3] of F32",
        ),
        (
            with(&[entry("a", "F32", &[2], (0, 7))], 7),
            "tensor a lies at bytes 0..7 of the data, expected 8 bytes for shape [2] of F32",
        ),
        (
            with(&[entry("a", "F32", &[1], (0, 4)), entry("b", "F32", &[2], (2, 10))], 10),
            "tensor b starts at byte 2 of the data and overlaps the tensor before it, expected byte 4",
        ),
        (
            with(&[entry("a", "F32", &[1], (0, 4)), entry("b", "F32", &[1], (6, 10))], 10),
            "tensor b starts at byte 6 of the data and leaves a gap before it, expected byte 4",
        ),
        (
            with(&[entry("a", "F32", &[usize::MAX, 2], (0, 8))], 8),
            "tensor a has shape [18446744073709551615, 2] of F32, expected a size that is a whole number of bytes below 2^64",
        ),
        // Many that are each small enough, whose sum is not.
        (
            with(
                &(0..9)
                    .map(|i| {
                        entry(
                            &format!("t{i}"),
                            "U8",
                            &[(1 << 61) - 1],
                            (i * ((1 << 61) - 1), (i * ((1 << 61) - 1)).saturating_add((1 << 61) - 1)),
                        )
                    })
                    .collect::<Vec<_>>(),
                0,
            ),
            "tensor t0 lies at bytes 0..2305843009213693951 of the data, \
             expected a range within the 0 bytes that the file holds behind its header",
        ),
        (
            with(&[entry("a", "F4", &[3], (0, 2))], 2),
            "tensor a has shape [3] of F4, expected a size that is a whole number of bytes below 2^64",
        ),
    ];
    for (bytes, expected) in cases {
        let error = open_error(&folder(&[("model.safetensors", &bytes)]));
        let expected = format!("model.safetensors: {expected}");
        assert!(error.starts_with(&expected), "found    {error}\nexpected {expected}");
    }
}

#[test]
fn metadata_order_and_empty_tensors_are_fine() {
    let entries = [
        entry("late", "F32", &[1], (2, 6)),
        "\"__metadata__\":{\"format\":\"pt\",\"nested\":[1,{}]}".to_owned(),
        entry("none", "F32", &[0, 3], (6, 6)),
        entry("odd", "U8", &[2], (0, 2)),
    ];
    let header = format!("{{{}}}   ", entries.join(","));
    let folder = folder(&[("model.safetensors", &safetensors(&header, &[7, 7, 0, 0, 128, 63]))]);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.num_tensors(), 3);
    // Not aligned to its type, which nothing forbids.
    assert_eq!(checkpoint.tensor(&source("late", &[1])).unwrap().to_f32_vec().unwrap(), [1.0]);
    let none = checkpoint.tensor(&source("none", &[0, 3])).unwrap();
    assert_eq!((none.rows(), none.cols(), none.to_f32_vec().unwrap()), (0, 3, vec![]));
}

proptest! {
    /// Any bytes in a good file's header give a checkpoint or an error, and what opens can be read to its end.
    #[test]
    fn random_header_bytes_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = good();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let folder = folder(&[("model.safetensors", &bytes)]);
        if let Ok(checkpoint) = Checkpoint::open(folder.path()) {
            for (name, shape) in [("a", vec![2]), ("b", vec![2, 1])] {
                if let Ok(view) = checkpoint.tensor(&source(name, &shape)) {
                    let _ = view.to_f32_vec();
                }
            }
        }
    }

    /// Any numbers in an entry give a checkpoint or an error.
    #[test]
    fn random_ranges_and_shapes_never_panic(
        shape in prop::collection::vec(prop_oneof![0usize..5, any::<usize>()], 0..4),
        start in prop_oneof![0u64..9, any::<u64>()],
        end in prop_oneof![0u64..9, any::<u64>()],
        dtype in prop_oneof![Just("F32"), Just("BF16"), Just("F4"), Just("F6_E2M3"), Just("U8")],
        data in 0usize..9,
    ) {
        let bytes = with(&[entry("a", dtype, &shape, (start, end))], data);
        let folder = folder(&[("model.safetensors", &bytes)]);
        if let Ok(checkpoint) = Checkpoint::open(folder.path()) {
            prop_assert_eq!((start, end), (0, data as u64));
            if let Ok(view) = checkpoint.tensor(&source("a", &shape)) {
                prop_assert_eq!(view.to_f32_vec().unwrap().len(), view.elements());
            }
        }
    }
}
