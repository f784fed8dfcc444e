//! The trained fixture: what is in the cache is what is in the checkpoint.

use std::path::Path;

use assay_kernels::layout::{ExpertLayout, GROUP_COLS, unpack_bf16, unpack_int4, unpack_int8};

use super::super::identity::moe_layers;
use super::super::*;
use crate::checkpoint::Checkpoint;
use crate::model::load_spec;
use crate::model::spec::ModelSpec;

struct Built {
    checkpoint: Checkpoint,
    spec: ModelSpec,
    cache: ExpertCache,
    report: BuildReport,
    bank: Vec<u8>,
    _folder: tempfile::TempDir,
}

fn built(encoding: Encoding) -> Built {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models/tiny-moe");
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let spec = load_spec(checkpoint.config_bytes(), &checkpoint.config_path()).unwrap();
    let hashes = checkpoint.file_hashes(None, &|_| ()).unwrap();
    let identity = CacheIdentity::new(&checkpoint, &spec, encoding, &hashes).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = default_path(folder.path(), "tiny-moe", &identity);
    let mut last = (0, 0);
    let report = build(&checkpoint, &spec, &identity, &path, &BuildOptions::default(), |done, total| {
        assert!(done >= last.0 && done <= total);
        last = (done, total);
    })
    .unwrap();
    let cache = ExpertCache::open(&path, &identity).unwrap();
    assert_eq!(last, (cache.payload_bytes(), cache.payload_bytes()));
    let verified = verify(&path, &|_| ()).unwrap();
    assert_eq!((verified.layers, verified.experts, verified.bytes), (4, 128, report.bytes));
    let mut bank = vec![0; cache.payload_bytes() as usize];
    cache.read_all(&mut bank, &|_| ()).unwrap();
    eprintln!("{encoding}: built in {:.3} s, verified in {:.3} s", report.seconds, verified.seconds);
    Built { checkpoint, spec, cache, report, bank, _folder: folder }
}

impl Built {
    /// Calls `check(source, unpacked, cols)` with every expert matrix; returns the sum of squared differences of each layer.
    fn compare(&self, mut check: impl FnMut(&[f32], &[f32], usize)) -> Vec<f64> {
        let mut sums = Vec::new();
        for (layer, moe) in moe_layers(&self.spec) {
            let record = self.cache.layers().iter().find(|record| record.layer == layer).unwrap();
            let layout: ExpertLayout = self.cache.expert_layout(layer).unwrap();
            let mut sum = 0.0;
            for (index, expert) in moe.experts.iter().enumerate() {
                let start = record.expert_offset(index).unwrap() as usize;
                let bytes = &self.bank[start..start + layout.bytes];
                let matrices = [
                    (&expert.gate_proj, layout.gate()),
                    (&expert.up_proj, layout.up()),
                    (&expert.down_proj, layout.down()),
                ];
                for (linear, range) in matrices {
                    let [rows, cols] = linear.weight.shape[..] else { panic!("not a matrix") };
                    let source = self.checkpoint.tensor(&linear.weight).unwrap().to_f32_vec().unwrap();
                    let mut unpacked = vec![0.0; rows * cols];
                    match layout.format {
                        assay_kernels::layout::MatrixFormat::Bf16 => {
                            unpack_bf16(&bytes[range], rows, cols, &mut unpacked).unwrap();
                        }
                        assay_kernels::layout::MatrixFormat::Int4 => {
                            unpack_int4(&bytes[range], rows, cols, &mut unpacked).unwrap();
                        }
                        assay_kernels::layout::MatrixFormat::Int8 => {
                            unpack_int8(&bytes[range], rows, cols, &mut unpacked).unwrap();
                        }
                    }
                    check(&source, &unpacked, cols);
                    sum += source.iter().zip(&unpacked).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
                }
            }
            sums.push(sum);
        }
        sums
    }
}

#[test]
fn bf16_is_exact() {
    let built = built(Encoding::Bf16);
    built.compare(|source, unpacked, _| assert!(source.iter().zip(unpacked).all(|(a, b)| a.to_bits() == b.to_bits())));
    assert!(built.report.layers.iter().all(|layer| layer.error.sum == 0.0 && layer.error.max == 0.0));
    assert_eq!(built.bank.len(), 4 * 32 * 3 * 256 * 128 * 2);
}

#[test]
fn int4_is_within_half_a_step_and_search_is_nearer() {
    let amax = built(Encoding::Int4(QuantizeMethod::Amax));
    let amax_sums = amax.compare(|source, unpacked, cols| {
        for (source, unpacked) in source.chunks(cols).zip(unpacked.chunks(cols)) {
            for (source, unpacked) in source.chunks(GROUP_COLS).zip(unpacked.chunks(GROUP_COLS)) {
                let largest = source.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
                // Half a step, and what rounding the scale to BF16 moves the end of the range.
                let bound = largest / 7.0 * (0.5 + 7.0 / 256.0);
                assert!(source.iter().zip(unpacked).all(|(a, b)| (a - b).abs() <= bound));
            }
        }
    });
    let search = built(Encoding::Int4(QuantizeMethod::Search));
    let search_sums = search.compare(|_, _, _| ());
    for (built, sums) in [(&amax, &amax_sums), (&search, &search_sums)] {
        for (layer, sum) in built.report.layers.iter().zip(sums) {
            assert!((layer.error.sum - sum).abs() <= 1e-6 * sum, "{layer:?}, recomputed {sum}");
            assert_eq!(layer.error.weights, 32 * 3 * 256 * 128);
            eprintln!(
                "layer {}: mean squared error {:.4e}, max {:.4e}",
                layer.layer,
                layer.error.mean(),
                layer.error.max
            );
        }
    }
    for (search, amax) in search_sums.iter().zip(&amax_sums) {
        assert!(search < amax, "{search} {amax}");
    }
    assert_eq!(search.bank.len(), 4 * 32 * 3 * 256 * 128 * 33 / 64);
}
