//! A checkpoint of a few kilobytes, written for each test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use half::bf16;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::super::*;
use crate::checkpoint::Checkpoint;
use crate::model::spec::ModelSpec;

/// Layer 1 is dense, so that a layer's index and its place differ; 130 inputs leave a short group, 18 outputs a short tile.
pub(super) const LAYERS: usize = 3;
pub(super) const EXPERTS: usize = 3;
pub(super) const HIDDEN: usize = 130;
pub(super) const INTERMEDIATE: usize = 18;

/// A checkpoint folder in a folder of its own, with all that a build needs.
pub(super) struct Model {
    pub(super) folder: tempfile::TempDir,
    pub(super) checkpoint: Checkpoint,
    pub(super) spec: ModelSpec,
}

impl Model {
    /// `seed` decides the weights.
    pub(super) fn synthetic(seed: u32) -> Self {
        Self::with(seed, |_, _| ())
    }

    /// `edit` may change any expert's values before they are written.
    pub(super) fn with(seed: u32, mut edit: impl FnMut(&str, &mut Vec<f32>)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut tensors = BTreeMap::new();
        for layer in (0..LAYERS).filter(|layer| *layer != 1) {
            for expert in 0..EXPERTS {
                for (matrix, shape) in
                    [("gate", [INTERMEDIATE, HIDDEN]), ("up", [INTERMEDIATE, HIDDEN]), ("down", [HIDDEN, INTERMEDIATE])]
                {
                    let name = format!("model.layers.{layer}.mlp.experts.{expert}.{matrix}_proj.weight");
                    let mut values = weights(seed + tensors.len() as u32, shape[0] * shape[1]);
                    edit(&name, &mut values);
                    let bytes: Vec<u8> = values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect();
                    tensors.insert(name, (shape, bytes));
                }
            }
        }
        let views: Vec<(&String, TensorView<'_>)> = tensors
            .iter()
            .map(|(name, (shape, bytes))| (name, TensorView::new(Dtype::BF16, shape.to_vec(), bytes).unwrap()))
            .collect();
        safetensors::serialize_to_file(views, None, &folder.path().join("model.safetensors")).unwrap();
        std::fs::write(folder.path().join("config.json"), config()).unwrap();
        Self::open_in(folder)
    }

    fn open_in(folder: tempfile::TempDir) -> Self {
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let spec = crate::model::load_spec(checkpoint.config_bytes(), &checkpoint.config_path()).unwrap();
        Self { folder, checkpoint, spec }
    }

    pub(super) fn identity(&self, encoding: Encoding) -> CacheIdentity {
        let hashes = self.checkpoint.file_hashes(None, &|_| ()).unwrap();
        CacheIdentity::new(&self.checkpoint, &self.spec, encoding, &hashes).unwrap()
    }

    /// Where this model's cache of an encoding lies.
    pub(super) fn path(&self, identity: &CacheIdentity) -> PathBuf {
        default_path(self.folder.path(), "synthetic", identity)
    }

    /// Builds with default options.
    pub(super) fn build(&self, encoding: Encoding) -> (CacheIdentity, PathBuf, BuildReport) {
        let identity = self.identity(encoding);
        let path = self.path(&identity);
        let options = BuildOptions::default();
        let report = build(&self.checkpoint, &self.spec, &identity, &path, &options, |_, _| ()).unwrap();
        (identity, path, report)
    }
}

fn config() -> String {
    serde_json::json!({
        "model_type": "qwen3_moe", "hidden_act": "silu", "vocab_size": 32, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 24, "num_experts": EXPERTS,
        "num_experts_per_tok": 2, "moe_intermediate_size": INTERMEDIATE, "norm_topk_prob": true, "decoder_sparse_step": 1,
        "mlp_only_layers": [1], "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "rope_theta": 10000.0,
        "attention_bias": false, "tie_word_embeddings": true, "eos_token_id": 0,
    })
    .to_string()
}

/// BF16 values in −1..1 out of a linear congruential generator (constants of Numerical Recipes).
fn weights(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761);
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bf16::from_f32((state >> 8) as f32 / (1 << 23) as f32 - 1.0).to_f32()
    })
    .take(count)
    .collect()
}

/// Names of the files in a folder.
pub(super) fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
