//! Experts with biases, in fused tensors and in MXFP4.

use std::fs;
use std::path::{Path, PathBuf};

use assay_kernels::layout::unpack_bf16;
use sha2::{Digest, Sha256};

use super::super::*;
use crate::checkpoint::Checkpoint;
use crate::model::load_spec;
use crate::model::spec::{FfnSpec, ModelSpec};

struct Built {
    folder: tempfile::TempDir,
    checkpoint: Checkpoint,
    spec: ModelSpec,
    path: PathBuf,
    cache: ExpertCache,
    bank: Vec<u8>,
}

fn built(name: &str, encoding: Encoding) -> Built {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models/families").join(name);
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let spec = load_spec(checkpoint.config_bytes(), &checkpoint.config_path()).unwrap();
    let hashes = checkpoint.file_hashes(None, &|_| ()).unwrap();
    let identity = CacheIdentity::new(&checkpoint, &spec, encoding, &hashes).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = default_path(folder.path(), name, &identity);
    build(&checkpoint, &spec, &identity, &path, &BuildOptions::default(), |_, _| ()).unwrap();
    let cache = ExpertCache::open(&path, &identity).unwrap();
    assert_eq!(verify(&path, &|_| ()).unwrap().experts, 18);
    let mut bank = vec![0; cache.payload_bytes() as usize];
    cache.read_all(&mut bank, &|_| ()).unwrap();
    Built { folder, checkpoint, spec, path, cache, bank }
}

#[test]
fn an_expert_holds_the_checkpoints_weights_and_biases() {
    let Built { checkpoint, spec, cache, bank, .. } = built("gpt_oss-b", Encoding::Bf16);
    for (layer, record) in cache.layers().iter().enumerate() {
        assert!(record.biases);
        let layout = cache.expert_layout(layer).unwrap();
        let FfnSpec::Moe(moe) = &spec.layers[layer].ffn else { panic!("layer {layer} is dense") };
        for (index, expert) in moe.experts.iter().enumerate() {
            let start = record.expert_offset(index).unwrap() as usize;
            let bytes = &bank[start..start + layout.bytes];
            let linears = [&expert.gate_proj, &expert.up_proj, &expert.down_proj];
            let ranges = [layout.gate(), layout.up(), layout.down()];
            for ((linear, weight), bias) in linears.iter().zip(ranges).zip(layout.biases().unwrap()) {
                let [rows, cols] = linear.weight.shape[..] else { panic!("{:?}", linear.weight.shape) };
                let mut found = vec![f32::NAN; rows * cols];
                unpack_bf16(&bytes[weight], rows, cols, &mut found).unwrap();
                assert_eq!(found, checkpoint.tensor(&linear.weight).unwrap().to_f32_vec().unwrap());
                let found: Vec<f32> =
                    bytes[bias].as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                let expected = checkpoint.tensor(linear.bias.as_ref().unwrap()).unwrap().to_f32_vec().unwrap();
                assert_eq!(found, expected);
                assert!(expected.iter().any(|bias| *bias != 0.0));
            }
        }
    }
}

/// Whichever way the checkpoint stores the experts, their bytes in the cache are the same.
#[test]
fn mxfp4_and_bf16_give_the_same_experts() {
    for encoding in Encoding::ALL {
        assert!(built("gpt_oss-b", encoding).bank == built("gpt_oss-mxfp4", encoding).bank, "{encoding}");
    }
}

#[test]
fn biases_that_are_not_finite_and_headers_without_them_are_found() {
    let Built { folder, path, cache, .. } = built("gpt_oss-b", Encoding::Bf16);
    let bytes = fs::read(&path).unwrap();
    let payload_start = bytes.len() - cache.payload_bytes() as usize;
    let layout = cache.expert_layout(0).unwrap();
    let rewrite = |name: &str, payload: &[u8], edit: &dyn Fn(&mut serde_json::Value)| {
        let length = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
        let mut header: serde_json::Value = serde_json::from_slice(&bytes[48..48 + length]).unwrap();
        edit(&mut header);
        let json = serde_json::to_vec(&header).unwrap();
        let mut file = bytes[..8].to_vec();
        file.extend_from_slice(&(json.len() as u64).to_le_bytes());
        file.extend_from_slice(&Sha256::digest(&json));
        file.extend_from_slice(&json);
        file.resize(file.len().next_multiple_of(4096), 0);
        file.extend_from_slice(payload);
        let path = folder.path().join(name);
        fs::write(&path, file).unwrap();
        verify(&path, &|_| ()).unwrap_err().to_string().replace(&format!("{}: ", path.display()), "")
    };
    let mut payload = bytes[payload_start..].to_vec();
    let bias = layout.biases().unwrap()[1].start + layout.bytes;
    payload[bias + 8..bias + 12].copy_from_slice(&f32::NAN.to_le_bytes());
    let sha256 = Sha256::digest(&payload[..6 * layout.bytes]);
    let sha256: String = sha256.iter().map(|byte| format!("{byte:02x}")).collect();
    let found = rewrite("nan", &payload, &|header| header["layers"][0]["sha256"] = sha256.as_str().into());
    assert_eq!(
        found,
        "layer 0, expert 1, bias of up_proj: row 2 is NaN, expected a finite number; pack it again with `assay cache build CONFIG --replace`"
    );
    // A layer that denies its biases has experts of another size.
    let found = rewrite("denied", &bytes[payload_start..], &|header| header["layers"][1]["biases"] = false.into());
    assert!(found.starts_with("layer 1: ") && found.contains("bytes for experts of 160 x 96"), "{found}");
}
