//! Synthetic models: the same bytes whatever writes them, the same weights in every format, and routing as stated.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use assay_engine::expert_cache::{Encoding, ExpertCache, verify};
use assay_engine::model::load_spec;
use assay_engine::synth::routing::{Counted, RoutingCheck, Spread, random_ids};
use assay_engine::synth::{Recipe, Shape, Skew, SynthError, write_model};
use assay_engine::{EngineOptions, ModelFolder};
use assay_kernels::KvFormat;
use assay_kernels::layout::{MatrixFormat, unpack_bf16, unpack_int4};
use common::{INT4, Model};

fn shapes() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../suites/shapes")
}

fn shape(name: &str) -> Shape {
    let path = shapes().join(format!("{name}.json"));
    Shape::parse(name, &std::fs::read(&path).unwrap(), &path).unwrap()
}

fn write(shape: &Shape, recipe: &Recipe, dir: &Path) -> Result<(), SynthError> {
    write_model(shape, recipe, dir, &AtomicBool::new(false), &mut |_, _, _| ()).map(|_| ())
}

/// A model as any other is opened.
fn open(dir: &Path, encoding: Encoding) -> Model {
    let folder = ModelFolder::open(dir, &|_| {}).unwrap();
    let bank = folder.read_bank(&folder.own_cache(encoding).unwrap(), encoding, &|_| {}).unwrap();
    Model { folder, bank, encoding }
}

/// Routes of `prompts` random prompts of 512 tokens, and tokens decoded after the last.
fn check(recipe: &Recipe, prompts: usize) -> RoutingCheck {
    let folder = tempfile::tempdir().unwrap();
    write(&shape("tiny"), recipe, folder.path()).unwrap();
    let model = open(folder.path(), recipe.experts);
    let options = EngineOptions { max_chunk: 512, ..model.options(KvFormat::Bf16, 600) };
    let mut engine = model.resident(options);
    engine.observe_routes();
    let mut token = 0;
    for prompt in 0..prompts {
        engine.reset();
        token = engine.prefill(&random_ids(prompt, 512, model.folder.spec.vocab_size)).unwrap();
    }
    let counts = engine.take_observed().unwrap();
    let mut decoded = Vec::new();
    for _ in 0..64 {
        decoded.push(token);
        token = engine.decode(token).unwrap();
    }
    RoutingCheck::new(&Counted {
        checkpoint_sha256: model.folder.sha256(),
        skew: recipe.skew,
        top_k: 4,
        prefill_tokens: prompts as u64 * 512,
        counts,
        decoded,
    })
}

#[test]
fn routing_is_even() {
    let check = check(&Recipe::new(0), 4);
    assert_eq!((check.spread, check.as_stated), (Spread::Even, Some(true)), "{check:#?}");
    assert!(check.decode_distinct >= 48, "{check:#?}");
}

/// The two mistakes that make hidden states collapse, each alone harmless enough to be overlooked.
#[test]
fn collapsed_hidden_states_are_noticed() {
    let check = check(&Recipe { nibble_offset: 2, branch_gain: 8.0, ..Recipe::new(0) }, 4);
    assert_eq!((check.spread, check.as_stated), (Spread::Skewed, Some(false)), "{check:#?}");
}

#[test]
fn a_skew_is_as_stated() {
    for exponent in [0.5, 1.0, 1.5] {
        let check = check(&Recipe { skew: Skew::Zipf(exponent), ..Recipe::new(0) }, 2);
        assert_eq!((check.spread, check.as_stated), (Spread::Skewed, Some(true)), "{check:#?}");
    }
}

#[test]
fn bytes_depend_on_the_recipe_alone() {
    let folder = tempfile::tempdir().unwrap();
    let tiny = shape("tiny").with_layers(2).unwrap();
    let files = |name: &str, seed: u64, threads: usize| {
        let dir = folder.path().join(name);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| write(&tiny, &Recipe::new(seed), &dir)).unwrap();
        ["config.json", "tokenizer.json", "model.safetensors", "int4-amax.experts"]
            .map(|file| std::fs::read(dir.join(file)).unwrap())
    };
    let first = files("first", 7, 1);
    assert!(first == files("second", 7, 3));
    let other = files("other", 8, 2);
    assert!(first[0] != other[0] && first[1] == other[1] && first[2] != other[2] && first[3] != other[3]);
}

/// A shape with biases, a short last group and a window, written in both formats.
#[test]
fn every_format_holds_the_same_weights() {
    let folder = tempfile::tempdir().unwrap();
    let (int4, bf16) = (folder.path().join("int4"), folder.path().join("bf16"));
    let text = std::fs::read_to_string(shapes().join("gpt-oss-120b.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    let sizes = [("hidden_size", 192), ("intermediate_size", 160), ("num_local_experts", 8), ("vocab_size", 640)];
    for (field, value) in sizes.into_iter().chain([("eos_token_id", 0)]) {
        config[field] = value.into();
    }
    let small =
        Shape::parse("small", config.to_string().as_bytes(), Path::new("small")).unwrap().with_layers(3).unwrap();
    write(&small, &Recipe::new(1), &int4).unwrap();
    write(&small, &Recipe { experts: Encoding::Bf16, ..Recipe::new(1) }, &bf16).unwrap();
    let values = |dir: &Path, encoding: Encoding| {
        let opened = ModelFolder::open(dir, &|_| {}).unwrap();
        let path = opened.own_cache(encoding).unwrap();
        verify(&path, &|_| ()).unwrap();
        let cache = ExpertCache::open(&path, &opened.cache_identity(encoding).unwrap()).unwrap();
        let mut all = Vec::new();
        for record in cache.layers() {
            let layout = cache.expert_layout(record.layer).unwrap();
            let mut bytes = vec![0; record.bytes()];
            cache.read_layer(record.layer, &mut bytes).unwrap();
            for expert in bytes.chunks(layout.bytes) {
                for (range, rows, cols) in
                    [(layout.gate(), 160, 192), (layout.up(), 160, 192), (layout.down(), 192, 160)]
                {
                    let mut values = vec![0f32; rows * cols];
                    match encoding.format() {
                        MatrixFormat::Bf16 => unpack_bf16(&expert[range], rows, cols, &mut values).unwrap(),
                        _ => unpack_int4(&expert[range], rows, cols, &mut values).unwrap(),
                    }
                    all.extend(values);
                }
                for bias in layout.biases().unwrap() {
                    all.extend(expert[bias].chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())));
                }
            }
        }
        all
    };
    let (packed, plain) = (values(&int4, INT4), values(&bf16, Encoding::Bf16));
    assert!(!packed.is_empty() && packed == plain);
    let weights = |dir: &Path| std::fs::read(dir.join("model.safetensors")).unwrap();
    assert!(weights(&int4) == weights(&bf16));

    // Attention in INT4 has the same weights too, so the answers are close: sums are of other products.
    let model = open(&int4, INT4);
    let mut engine = model.resident(model.options(KvFormat::F32, 200));
    engine.prefill(&random_ids(0, 150, 640)).unwrap();
    assert!(engine.last_logits().unwrap().iter().all(|logit| logit.is_finite()));
}

#[test]
fn every_shape_is_a_model() {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(shapes()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let spec = load_spec(&std::fs::read(&path).unwrap(), &path).unwrap();
        assert_eq!(shape(&name).name, name);
        names.push((name, spec.layers.len()));
    }
    names.sort();
    let expected =
        [("gpt-oss-120b", 36), ("mixtral-8x22b", 56), ("qwen3-235b-a22b", 94), ("qwen3-30b-a3b", 48), ("tiny", 4)];
    assert_eq!(names, expected.map(|(name, layers)| (name.to_owned(), layers)));
}

#[test]
fn what_cannot_be_written_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let says = |error: SynthError, part: &str| assert!(error.to_string().contains(part), "{error}");
    says(shape("tiny").with_layers(0).unwrap_err(), "layers is 0, expected 1 to 4");
    says(shape("tiny").with_layers(5).unwrap_err(), "layers is 5");
    let one = shape("tiny").with_layers(1).unwrap();
    let bad = Recipe { nibble_offset: 7, ..Recipe::new(0) };
    says(write(&one, &bad, &folder.path().join("a")).unwrap_err(), "nibble offset is 7");
    std::fs::write(folder.path().join("mine"), "kept").unwrap();
    says(write(&one, &Recipe::new(0), folder.path()).unwrap_err(), "not empty");
    let stopped =
        write_model(&one, &Recipe::new(0), &folder.path().join("b"), &AtomicBool::new(true), &mut |_, _, _| ());
    assert!(matches!(stopped, Err(SynthError::Interrupted)), "{stopped:?}");
    assert!(!folder.path().join("b/model.safetensors").exists());
}
