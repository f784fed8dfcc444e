//! Values: widening, rounding to BF16, rows, what is not finite, memory.

use half::{bf16, f16};
use tempfile::TempDir;

use super::{entry, fixture, folder, safetensors, source};
use crate::checkpoint::{Checkpoint, TensorView, WeightDtype};

/// A checkpoint of one tensor `w`.
fn checkpoint(dtype: &str, shape: &[usize], data: &[u8]) -> (TempDir, Checkpoint) {
    let header = format!("{{{}}}", entry("w", dtype, shape, (0, data.len() as u64)));
    let folder = folder(&[("model.safetensors", &safetensors(&header, data))]);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    (folder, checkpoint)
}

fn bytes_f32(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn bf16_of(view: TensorView<'_>) -> Result<Vec<bf16>, String> {
    let mut out = vec![bf16::ZERO; view.elements()];
    view.rows_bf16(0..view.rows(), &mut out).map_err(|error| error.to_string())?;
    Ok(out)
}

/// Every 16-bit pattern that is finite keeps its value; subnormals and the sign of zero too.
#[test]
fn widening_is_exact() {
    let patterns: Vec<u16> = (0..=u16::MAX).collect();
    for (dtype, finite) in [
        ("BF16", patterns.iter().copied().filter(|bits| bf16::from_bits(*bits).is_finite()).collect::<Vec<_>>()),
        ("F16", patterns.iter().copied().filter(|bits| f16::from_bits(*bits).is_finite()).collect()),
    ] {
        let data: Vec<u8> = finite.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let (_folder, checkpoint) = checkpoint(dtype, &[finite.len()], &data);
        let view = checkpoint.tensor(&source("w", &[finite.len()])).unwrap();
        assert_eq!((view.rows(), view.cols(), view.dtype.bits()), (1, finite.len(), 16));
        let back: Vec<u16> = view
            .to_f32_vec()
            .unwrap()
            .into_iter()
            .map(|value| match view.dtype {
                WeightDtype::Bf16 => (value.to_bits() >> 16) as u16,
                _ => f16::from_f32(value).to_bits(),
            })
            .collect();
        assert_eq!(back, finite, "{dtype}");
        if dtype == "BF16" {
            let kept: Vec<u16> = bf16_of(view).unwrap().into_iter().map(bf16::to_bits).collect();
            assert_eq!(kept, finite);
        }
    }
}

#[test]
fn f32_is_rounded_to_bf16_to_nearest_ties_to_even() {
    let cases = [
        (1.0, 0x3f80),
        (-0.0, 0x8000),
        (f32::from_bits(0x3f80_8000), 0x3f80),
        (f32::from_bits(0x3f80_8001), 0x3f81),
        (f32::from_bits(0x3f81_8000), 0x3f82),
        (f32::from_bits(0x3f80_7fff), 0x3f80),
        (f32::from_bits(0x0000_8001), 0x0001),
    ];
    let values: Vec<f32> = cases.iter().map(|case| case.0).collect();
    let (_folder, checkpoint) = checkpoint("F32", &[cases.len()], &bytes_f32(&values));
    let view = checkpoint.tensor(&source("w", &[cases.len()])).unwrap();
    assert_eq!(view.to_f32_vec().unwrap(), values);
    let rounded: Vec<u16> = bf16_of(view).unwrap().into_iter().map(bf16::to_bits).collect();
    assert_eq!(rounded, cases.map(|case| case.1));
}

#[test]
fn what_is_not_finite_is_an_error() {
    let (folder, checkpoint) =
        checkpoint("F32", &[3, 2], &bytes_f32(&[0.0, 1.0, 2.0, f32::NAN, f32::INFINITY, f32::MAX]));
    let view = checkpoint.tensor(&source("w", &[3, 2])).unwrap();
    let prefix = format!("{}/model.safetensors: tensor w has", folder.path().display());
    let error = view.to_f32_vec().unwrap_err().to_string();
    assert_eq!(error, format!("{prefix} NaN at element 3, expected a finite number"));
    let mut row = [0.0; 2];
    view.rows_f32(0..1, &mut row).unwrap();
    assert_eq!(row, [0.0, 1.0]);
    let error = view.rows_f32(2..3, &mut row).unwrap_err().to_string();
    assert_eq!(error, format!("{prefix} inf at element 4, expected a finite number"));

    let (folder, checkpoint) = self::checkpoint("F32", &[2], &bytes_f32(&[1.0, f32::MAX]));
    let error = bf16_of(checkpoint.tensor(&source("w", &[2])).unwrap()).unwrap_err();
    let prefix = format!("{}/model.safetensors: tensor w has", folder.path().display());
    assert_eq!(error, format!("{prefix} inf at element 1, expected a finite number that BF16 can hold"));

    for (dtype, bits) in [("BF16", 0xff80u16), ("F16", 0xfc00), ("BF16", 0x7f81), ("F16", 0x7c01)] {
        let (_folder, checkpoint) = self::checkpoint(dtype, &[2], &[[0, 0], bits.to_le_bytes()].concat());
        let view = checkpoint.tensor(&source("w", &[2])).unwrap();
        for error in [view.to_f32_vec().unwrap_err().to_string(), bf16_of(view).unwrap_err()] {
            assert!(error.ends_with("at element 1, expected a finite number"), "{error}");
        }
    }
}

#[test]
fn rows_are_those_of_the_matrix() {
    let values: Vec<f32> = (0..24u8).map(f32::from).collect();
    let (_folder, checkpoint) = checkpoint("F32", &[2, 3, 4], &bytes_f32(&values));
    let view = checkpoint.tensor(&source("w", &[2, 3, 4])).unwrap();
    assert_eq!((view.rows(), view.cols(), view.elements()), (6, 4, 24));
    let mut out = [0.0; 8];
    view.rows_f32(4..6, &mut out).unwrap();
    assert_eq!(out, values[16..]);
    view.rows_f32(6..6, &mut []).unwrap();
    for (rows, buffer) in [(5..7, 8), (0..2, 7), (7..7, 0), (0..usize::MAX, 8), (usize::MAX - 1..usize::MAX, 4)] {
        let error = view.rows_f32(rows.clone(), &mut out[..buffer]).unwrap_err().to_string();
        let expected = format!(
            "tensor w: rows {}..{} into {buffer} elements, expected rows within 0..6 of 4 elements",
            rows.start, rows.end
        );
        assert_eq!(error, expected);
    }
}

/// Resident bytes of this process that a file backs.
#[cfg(target_os = "linux")]
fn mapped_resident_bytes(path: &std::path::Path) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let name = path.canonicalize().unwrap();
    let mut lines = maps.lines().skip_while(|line| !line.ends_with(name.to_str().unwrap()));
    let rss = lines.find_map(|line| line.strip_prefix("Rss:")).expect("the file is not mapped");
    rss.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

/// A copy of the fixture, since other tests map the fixture itself.
#[cfg(target_os = "linux")]
#[test]
fn release_gives_resident_memory_back_and_views_stay_valid() {
    let weights = std::fs::read(fixture("tiny-moe").join("model.safetensors")).unwrap();
    let folder = folder(&[("model.safetensors", &weights)]);
    drop(weights);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let path = checkpoint.shards()[0].path();
    let embedding = checkpoint.tensor(&source("model.embed_tokens.weight", &[4096, 256])).unwrap();
    let before = embedding.to_f32_vec().unwrap();
    assert!(mapped_resident_bytes(path) >= 2 << 20);
    checkpoint.release().unwrap();
    assert_eq!(mapped_resident_bytes(path), 0);
    assert_eq!(embedding.to_f32_vec().unwrap(), before);
}
