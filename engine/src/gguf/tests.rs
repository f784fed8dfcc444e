#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{ExportOptions, ExportReport, ExportSource, GgufError, GgufType, export};
use crate::checkpoint::Checkpoint;
use crate::expert_cache::quantize::quantize_group;
use crate::expert_cache::{Encoding, ExpertCache, QuantizeMethod};
use crate::model::load_spec;
use crate::model_folder::ModelFolder;
use crate::synth::{Recipe, Shape, write_model};

const BF16: ExportOptions =
    ExportOptions { matrices: GgufType::Bf16, expert_matrices: GgufType::Bf16, experts: Encoding::Bf16 };
const F32: ExportOptions =
    ExportOptions { matrices: GgufType::F32, expert_matrices: GgufType::F32, experts: Encoding::Bf16 };

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(path)
}

fn write(model: &Path, options: ExportOptions, out: &Path) -> Result<ExportReport, GgufError> {
    let checkpoint = Checkpoint::open(model)?;
    let spec = load_spec(checkpoint.config_bytes(), &checkpoint.config_path()).unwrap();
    export(
        ExportSource { checkpoint: &checkpoint, spec: &spec, experts: None },
        options,
        "tiny-moe",
        out,
        &mut |_, _| true,
    )
}

/// A reader of its own, so that the writer is not checked by itself.
struct Reader {
    bytes: Vec<u8>,
    at: usize,
}

/// What a file says: keys as JSON, tensors by name.
struct Contents {
    keys: BTreeMap<String, Value>,
    tensors: BTreeMap<String, Tensor>,
}

struct Tensor {
    dims: Vec<u64>,
    kind: u32,
    data: Vec<u8>,
}

impl Reader {
    fn take(&mut self, bytes: usize) -> Vec<u8> {
        self.at += bytes;
        self.bytes[self.at - bytes..self.at].to_vec()
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }
    fn string(&mut self) -> String {
        let bytes = self.u64() as usize;
        String::from_utf8(self.take(bytes)).unwrap()
    }
    fn value(&mut self, kind: u32) -> (String, Value) {
        match kind {
            4 => ("uint32".into(), json!(self.u32())),
            5 => ("int32".into(), json!(self.u32() as i32)),
            6 => ("float32".into(), json!(f64::from(f32::from_bits(self.u32())))),
            7 => ("bool".into(), json!(self.take(1)[0] == 1)),
            8 => ("string".into(), json!(self.string())),
            9 => {
                let (kind, count) = (self.u32(), self.u64());
                let mut name = String::new();
                let items: Vec<Value> = (0..count)
                    .map(|_| {
                        let (item_name, item) = self.value(kind);
                        name = item_name;
                        item
                    })
                    .collect();
                let text = serde_json::to_string(&items).unwrap();
                (format!("array/{name}"), json!({ "elements": count, "sha256_of_json": hex(text.as_bytes()) }))
            }
            other => panic!("kind {other}"),
        }
    }

    fn read(path: &Path) -> Contents {
        let mut reader = Reader { bytes: std::fs::read(path).unwrap(), at: 0 };
        assert_eq!(reader.take(4), b"GGUF");
        assert_eq!(reader.u32(), 3);
        let (tensors, keys) = (reader.u64(), reader.u64());
        let keys = (0..keys)
            .map(|_| {
                let (name, kind) = (reader.string(), reader.u32());
                let (kind, value) = reader.value(kind);
                (name, json!({ "type": kind, "value": value }))
            })
            .collect();
        let infos: Vec<(String, Vec<u64>, u32, u64)> = (0..tensors)
            .map(|_| {
                let name = reader.string();
                let dims = (0..reader.u32()).map(|_| reader.u64()).collect();
                (name, dims, reader.u32(), reader.u64())
            })
            .collect();
        let start = reader.at.next_multiple_of(32);
        let mut expected_offset = 0;
        let mut found = BTreeMap::new();
        for (name, dims, kind, offset) in infos {
            assert_eq!(offset, expected_offset, "{name}");
            let elements = dims.iter().product::<u64>();
            let bytes = match kind {
                0 => elements * 4,
                2 => elements / 32 * 18,
                _ => elements * 2,
            };
            expected_offset = (offset + bytes).next_multiple_of(32);
            let at = start + offset as usize;
            found.insert(name, Tensor { dims, kind, data: reader.bytes[at..at + bytes as usize].to_vec() });
        }
        assert_eq!(reader.bytes.len() as u64, start as u64 + expected_offset, "nothing after the last tensor");
        Contents { keys, tensors: found }
    }
}

impl Tensor {
    /// The values, as ggml reads them.
    fn floats(&self) -> Vec<f32> {
        match self.kind {
            0 => self.data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            30 => self.data.as_chunks().0.iter().map(|bytes| half::bf16::from_le_bytes(*bytes).to_f32()).collect(),
            2 => self.data.chunks(18).flat_map(q4_0_floats).collect(),
            other => panic!("type {other}"),
        }
    }
}

/// A block: an F16 scale, then the first half in lower nibbles and the second in upper ones, 8 standing for 0.
fn q4_0_floats(block: &[u8]) -> Vec<f32> {
    let scale = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
    let value = |nibble: u8| (f32::from(nibble) - 8.0) * scale;
    let lower = block[2..].iter().map(|byte| value(byte & 15));
    lower.chain(block[2..].iter().map(|byte| value(byte >> 4))).collect()
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn tensors_and_keys_are_those_of_llama_cpp_s_converter() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("tiny-moe.gguf");
    let report = write(&fixture("models/tiny-moe"), BF16, &out).unwrap();
    assert_eq!((report.tensors, report.bytes), (50, std::fs::metadata(&out).unwrap().len()));
    let found = Reader::read(&out);
    let text = std::fs::read_to_string(fixture("gguf/tiny-moe.json")).unwrap();
    let expected: Value = serde_json::from_str(&text).unwrap();

    let tensors: Vec<Value> = found
        .tensors
        .iter()
        .map(|(name, tensor)| {
            let kind = if tensor.kind == 0 { "f32" } else { "bf16" };
            json!({ "name": name, "dims": tensor.dims, "type": kind, "sha256": hex(&tensor.data) })
        })
        .collect();
    assert_eq!(json!(tensors), expected["tensors"]);

    let mut keys = json!(found.keys);
    let mut expected = expected["keys"].clone();
    // What a model is called decides nothing; that no token is put in front is said, and not left to a default.
    assert_eq!(keys["tokenizer.ggml.add_bos_token"]["value"], json!(false));
    for name in ["general.name", "tokenizer.ggml.add_bos_token"] {
        assert!(keys.as_object_mut().unwrap().remove(name).is_some(), "{name}");
    }
    for name in ["general.name", "general.size_label"] {
        assert!(expected.as_object_mut().unwrap().remove(name).is_some(), "{name}");
    }
    assert_eq!(keys, expected);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
}

#[test]
fn f32_holds_the_same_values() {
    let folder = tempfile::tempdir().unwrap();
    let (narrow, wide) = (folder.path().join("bf16"), folder.path().join("f32"));
    write(&fixture("models/tiny-moe"), BF16, &narrow).unwrap();
    write(&fixture("models/tiny-moe"), F32, &wide).unwrap();
    let (narrow, wide) = (Reader::read(&narrow), Reader::read(&wide));
    assert_eq!(wide.keys["general.file_type"]["value"], json!(0));
    for (name, tensor) in &narrow.tensors {
        let other = &wide.tensors[name];
        assert_eq!((&tensor.dims, other.kind), (&other.dims, 0), "{name}");
        let widened: Vec<u8> = match tensor.kind {
            0 => tensor.data.clone(),
            _ => tensor.data.chunks(2).flat_map(|bytes| [0, 0, bytes[0], bytes[1]]).collect(),
        };
        assert!(widened == other.data, "{name}");
    }
}

#[test]
fn experts_are_rounded_as_the_expert_cache_rounds_them() {
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain");
    write(&fixture("models/tiny-moe"), F32, &plain).unwrap();
    let plain = Reader::read(&plain);
    for (experts, method, most) in [
        (Encoding::Int4(QuantizeMethod::Search), QuantizeMethod::Search, 7),
        (Encoding::Int8, QuantizeMethod::Amax, 127),
    ] {
        let rounded = folder.path().join(experts.name());
        write(&fixture("models/tiny-moe"), ExportOptions { experts, ..F32 }, &rounded).unwrap();
        let rounded = Reader::read(&rounded);
        for (name, tensor) in &plain.tensors {
            let (before, after) = (tensor.floats(), rounded.tensors[name].floats());
            if !name.contains("_exps") {
                assert!(before == after, "{name}");
                continue;
            }
            // Both widths, 256 and 128, are whole groups.
            for (before, after) in before.chunks(128).zip(after.chunks(128)) {
                let mut q = [0i8; 128];
                let scale = quantize_group(method, most, before, &mut q).scale.to_f32();
                assert!(q.iter().zip(after).all(|(&q, &after)| f32::from(q) * scale == after), "{experts}, {name}");
            }
        }
    }
}

#[test]
fn q4_0_holds_what_int4_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let (plain, wide, narrow) = (folder.path().join("plain"), folder.path().join("wide"), folder.path().join("narrow"));
    let experts = Encoding::Int4(QuantizeMethod::Search);
    let q4_0 = ExportOptions { matrices: GgufType::Q4_0, expert_matrices: GgufType::Q4_0, experts };
    write(&fixture("models/tiny-moe"), F32, &plain).unwrap();
    write(&fixture("models/tiny-moe"), ExportOptions { experts, ..F32 }, &wide).unwrap();
    write(&fixture("models/tiny-moe"), q4_0, &narrow).unwrap();
    let (plain, wide, narrow) = (Reader::read(&plain), Reader::read(&wide), Reader::read(&narrow));
    assert_eq!(narrow.keys["general.file_type"]["value"], json!(2));
    for (name, tensor) in &narrow.tensors {
        let found = tensor.floats();
        if name.contains("_exps") {
            assert!(tensor.kind == 2 && found == wide.tensors[name].floats(), "{name}");
        } else if tensor.kind == 0 {
            assert!(found == plain.tensors[name].floats(), "{name}");
        } else {
            for (before, after) in plain.tensors[name].floats().chunks(128).zip(found.chunks(128)) {
                let mut q = [0i8; 128];
                let scale = quantize_group(QuantizeMethod::Amax, 7, before, &mut q).scale.to_f32();
                assert!(q.iter().zip(after).all(|(&q, &after)| f32::from(q) * scale == after), "{name}");
            }
        }
    }
}

#[test]
fn a_synthetic_model_is_the_same_in_every_type() {
    let folder = tempfile::tempdir().unwrap();
    let path = fixture("../suites/shapes/tiny.json");
    let shape = Shape::parse("tiny", &std::fs::read(&path).unwrap(), &path).unwrap().with_layers(2).unwrap();
    let export_as = |name: &str, encoding: Encoding, matrices: GgufType, expert_matrices: GgufType| {
        let dir = folder.path().join(encoding.to_string());
        if !dir.exists() {
            let recipe = Recipe { experts: encoding, ..Recipe::new(3) };
            write_model(&shape, &recipe, &dir, &AtomicBool::new(false), &mut |_, _, _| ()).unwrap();
        }
        let model = ModelFolder::open(&dir, &|_| {}).unwrap();
        let cache = model.own_cache(encoding).unwrap();
        let cache = ExpertCache::open(&cache, &model.cache_identity(encoding).unwrap()).unwrap();
        let source = ExportSource { checkpoint: &model.checkpoint, spec: &model.spec, experts: Some(&cache) };
        let options = ExportOptions { matrices, expert_matrices, experts: encoding };
        let out = folder.path().join(name);
        export(source, options, "tiny", &out, &mut |_, _| true).unwrap();
        Reader::read(&out)
    };
    let int4 = Encoding::Int4(QuantizeMethod::Amax);
    let narrow = export_as("narrow", int4, GgufType::Q4_0, GgufType::Q4_0);
    let mixed = export_as("mixed", int4, GgufType::Bf16, GgufType::Q4_0);
    let wide = export_as("wide", Encoding::Bf16, GgufType::Bf16, GgufType::Bf16);
    assert_eq!(narrow.tensors.len(), 27);
    for (name, tensor) in &narrow.tensors {
        let kinds = [tensor.kind, mixed.tensors[name].kind, wide.tensors[name].kind];
        let expected = match name {
            name if name.contains("_exps") => [2, 2, 30],
            name if name.contains("norm") || name.contains("gate_inp") => [0, 0, 0],
            _ => [2, 30, 30],
        };
        assert_eq!(kinds, expected, "{name}");
        let values = wide.tensors[name].floats();
        assert!(tensor.floats() == values && mixed.tensors[name].floats() == values, "{name}");
    }
}

#[test]
fn what_cannot_be_said_is_refused_and_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    std::fs::create_dir(&model).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(fixture("models/tiny-moe").join(file), model.join(file)).unwrap();
    }
    let out = folder.path().join("out.gguf");
    let check = |file: &str, from: &str, to: &str, part: &str| {
        let path = model.join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from}");
        std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let message = write(&model, BF16, &out).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
        assert!(!out.exists() && std::fs::read_dir(folder.path()).unwrap().count() == 1, "{to} leaves a file");
        std::fs::write(&path, text).unwrap();
    };
    check("config.json", "\"norm_topk_prob\": true", "\"norm_topk_prob\": false", "norm_topk_prob: false");
    check("tokenizer.json", "\"BPE\"", "\"Unigram\"", "expected BPE");
    check("tokenizer.json", "\"version\"", "version", "tokenizer.json");
    check("tokenizer.json", r"|\\p{N}|", r"|\\p{N}{1,3}|", "way of splitting");
    check("tokenizer.json", "\"id\": 0,", "\"id\": 4096,", "id 4096 where the model's vocabulary has 4096");
    let int4 = ExportOptions { experts: Encoding::Int4(QuantizeMethod::Amax), ..BF16 };
    let message = write(&model, int4, &out).unwrap_err().to_string();
    assert!(message.contains("expected F32 or Q4_0"), "{message}");
    let q4_0 = ExportOptions { expert_matrices: GgufType::Q4_0, ..BF16 };
    let message = write(&model, q4_0, &out).unwrap_err().to_string();
    assert!(message.contains("is Q4_0") && message.contains("expected BF16 or F32"), "{message}");
    std::fs::write(&out, "kept").unwrap();
    let checkpoint = Checkpoint::open(&model).unwrap();
    let spec = load_spec(checkpoint.config_bytes(), &checkpoint.config_path()).unwrap();
    let stopped = export(
        ExportSource { checkpoint: &checkpoint, spec: &spec, experts: None },
        BF16,
        "x",
        &out,
        &mut |done, total| done * 2 < total,
    );
    assert!(matches!(stopped, Err(GgufError::Interrupted)));
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "kept");
}
