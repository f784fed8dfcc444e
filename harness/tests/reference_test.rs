//! tiny-moe against its witness: as it is it passes, with a fault planted it fails, and what is of something else is INVALID.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod faulty;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use assay_engine::bank::HostBank;
use assay_engine::device::host::{HostDevice, HostOptions};
use assay_engine::expert_cache::{BuildOptions, Encoding, QuantizeMethod, build};
use assay_engine::memory::{BankMap, MemoryPlan};
use assay_engine::model::spec::ModelSpec;
use assay_engine::residency::ExpertId;
use assay_engine::{Engine, EngineOptions, ModelFolder, Precision};
use assay_harness::reference_test::observe;
use assay_kernels::KvFormat;
use assay_kernels::layout::{TILE_ROWS, int4_planes_mut};
use assay_witness::{Artifact, Binding, Gate, Judgement, Observed, Outcome, Rule, judge};
use faulty::{Fault, Faulty};

const INT4: Encoding = Encoding::Int4(QuantizeMethod::Search);
/// Prompts of the artifact that a planted fault is looked for in: up to 300 tokens.
const SHORT_PROMPTS: usize = 6;
/// Tokens of the prompt that an engine has served before: more than such a prompt and its answer.
const EARLIER_TOKENS: u32 = 400;
/// The layer in which a fault is planted.
const LAYER: usize = 1;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A bank of its own. The experts are encoded once for all tests: rounding to INT4 is work.
fn bank(folder: &ModelFolder, experts: Encoding) -> HostBank {
    static ENCODED: Mutex<BTreeMap<&str, Arc<HostBank>>> = Mutex::new(BTreeMap::new());
    let encoded = ENCODED.lock().unwrap().entry(experts.name()).or_insert_with(|| encode(folder, experts)).clone();
    let mut own = HostBank::zeroed(encoded.len()).unwrap();
    own.bytes_mut().copy_from_slice(encoded.bytes(0..encoded.len()).unwrap());
    own
}

fn encode(folder: &ModelFolder, experts: Encoding) -> Arc<HostBank> {
    let cache = tempfile::tempdir().unwrap();
    let path = cache.path().join("experts");
    let identity = folder.cache_identity(experts).unwrap();
    build(&folder.checkpoint, &folder.spec, &identity, &path, &BuildOptions::default(), |_, _| {}).unwrap();
    folder.read_bank(&path, experts, &|_| {}).unwrap()
}

/// tiny-moe in one precision, with its artifact and gate.
struct Subject {
    folder: ModelFolder,
    options: EngineOptions,
    bank: HostBank,
    map: BankMap,
    artifact: Artifact,
    binding: Binding,
    gate: Gate,
}

impl Subject {
    fn new(experts: Encoding, kv: KvFormat, artifact: &str, gate: &str) -> Self {
        let folder = ModelFolder::open(&root().join("fixtures/models/tiny-moe"), &|_| {}).unwrap();
        let bank = bank(&folder, experts);
        let (artifact, binding) = Artifact::read(&root().join("witness/artifacts").join(artifact)).unwrap();
        let precision =
            Precision { experts, attention: Encoding::Bf16, dense: Encoding::Bf16, head: Encoding::Bf16, kv };
        let options = EngineOptions {
            max_chunk: 256,
            margin_bytes: 0,
            ..EngineOptions::new(precision, artifact.context_tokens())
        };
        let map = MemoryPlan::new(&folder.spec, &options).unwrap().bank.unwrap();
        let gate = Gate::read(&root().join(format!("suites/gates/{gate}.toml"))).unwrap();
        Self { folder, options, bank, map, artifact, binding, gate }
    }

    /// BF16, against the witness with the same weights.
    fn bf16() -> Self {
        Self::new(Encoding::Bf16, KvFormat::F32, "tiny-moe.json", "same")
    }

    /// INT4, against a witness with the same rounded weights.
    fn int4() -> Self {
        Self::new(INT4, KvFormat::F32, "tiny-moe.int4-search.json", "same")
    }

    /// INT4 as it is used, against the witness in BF16.
    fn int4_against_bf16() -> Self {
        Self::new(INT4, KvFormat::Bf16, "tiny-moe.json", "int4")
    }

    /// BF16 under the gate for prefill on tensor cores, which allows more; what is judged here is exact.
    fn bf16_under_tensor_gate() -> Self {
        Self::new(Encoding::Bf16, KvFormat::F32, "tiny-moe.json", "same-tensor")
    }

    /// Both precisions, against witnesses with the same weights, on the shorter prompts.
    fn strict() -> [(&'static str, Self); 2] {
        [("bf16", Self::bf16().short()), ("int4", Self::int4().short())]
    }

    fn short(mut self) -> Self {
        self.artifact.prompts.truncate(SHORT_PROMPTS);
        self
    }

    /// The bytes of an expert of [`LAYER`].
    fn expert(&mut self, expert: usize) -> &mut [u8] {
        let range = self.map.expert_range(ExpertId::new(LAYER, self.map.num_experts, expert));
        &mut self.bank.bytes_mut()[range]
    }

    /// Judgements of a replay with every expert resident. The engine has served a longer prompt before, as one in use has.
    fn replay(self, spec: ModelSpec, fault: Fault) -> Vec<Judgement> {
        let plan = MemoryPlan::new(&spec, &self.options).unwrap();
        let device = HostDevice::new(plan.resident_budget(self.options.max_chunk), HostOptions::default()).unwrap();
        let device = Faulty::new(device);
        let mut engine =
            Engine::load(device, &self.folder.checkpoint, Arc::new(spec), Arc::new(self.bank), None, self.options)
                .unwrap();
        let earlier: Vec<u32> = (0..EARLIER_TOKENS).map(|index| (index * 31 + 7) % 4096).collect();
        engine.prefill(&earlier).unwrap();
        engine.device_mut().plant(fault);
        let observed: Observed = observe(&mut engine, &self.artifact, &self.binding, "assay".to_owned()).unwrap();
        judge(&self.artifact, &observed, &self.gate).1
    }

    fn plain(self) -> Vec<Judgement> {
        let spec = (*self.folder.spec).clone();
        self.replay(spec, Fault::None)
    }
}

fn failed(judgements: &[Judgement]) -> Vec<String> {
    let failed = judgements.iter().filter(|judgement| matches!(judgement.outcome, Outcome::Fail | Outcome::Incomplete));
    failed.map(|judgement| format!("{}: {}", judgement.row(), judgement.reason)).collect()
}

#[track_caller]
fn assert_passes(judgements: &[Judgement], prompts: usize) {
    assert_eq!(failed(judgements), Vec::<String>::new());
    let runs = judgements.iter().filter(|judgement| judgement.rule == Rule::ExactRun).count();
    assert_eq!(runs, prompts, "every prompt is reported");
}

#[track_caller]
fn assert_fails(what: &str, judgements: &[Judgement]) {
    let failed = failed(judgements);
    println!("{what}: {} rows fail, such as {:?}", failed.len(), failed.first());
    assert!(!failed.is_empty(), "{what} passes");
}

#[track_caller]
fn assert_equal_tokens(judgements: &[Judgement]) {
    assert_passes(judgements, 10);
    for judgement in judgements.iter().filter(|judgement| judgement.rule == Rule::ExactRun) {
        assert_eq!(judgement.reason, "64 of 64 tokens", "{:?}", judgement.prompt);
    }
}

#[test]
fn bf16_passes_with_every_token_equal() {
    assert_equal_tokens(&Subject::bf16().plain());
}

#[test]
fn int4_passes_with_every_token_equal_where_the_witness_has_its_weights() {
    assert_equal_tokens(&Subject::int4().plain());
}

#[test]
fn int4_passes_its_gate_against_bf16() {
    assert_passes(&Subject::int4_against_bf16().plain(), 10);
}

#[test]
fn two_experts_swapped_fail() {
    let tensor = ("bf16 under the gate for tensor cores", Subject::bf16_under_tensor_gate().short());
    for (what, mut subject) in Subject::strict().into_iter().chain([tensor]) {
        let first = subject.expert(0).to_vec();
        let second = subject.expert(1).to_vec();
        subject.expert(0).copy_from_slice(&second);
        subject.expert(1).copy_from_slice(&first);
        assert_fails(&format!("experts swapped, {what}"), &subject.plain());
    }
}

#[test]
fn one_scale_doubled_fails() {
    let [_, (_, mut subject)] = Subject::strict();
    let layout = subject.map.expert;
    let down = &mut subject.expert(0)[layout.down()];
    let (_, scales) = int4_planes_mut(down, layout.hidden_size, layout.moe_intermediate_size).unwrap();
    double(&mut scales[..2]);
    assert_fails("the scale of one group of 128 weights doubled, int4", &subject.plain());
}

#[test]
fn one_output_doubled_fails() {
    // BF16 has no scales: what doubling one would do is done to the weights.
    let [(_, mut subject), _] = Subject::strict();
    let layout = subject.map.expert;
    let down = &mut subject.expert(0)[layout.down()];
    down.chunks_mut(2 * TILE_ROWS).take(layout.moe_intermediate_size).for_each(|column| double(&mut column[..2]));
    assert_fails("128 weights doubled, bf16", &subject.plain());
}

/// Doubles a BF16 number other than zero: one more in its exponent.
fn double(bytes: &mut [u8]) {
    let bits = u16::from_le_bytes([bytes[0], bytes[1]]);
    if bits & 0x7fff != 0 {
        bytes.copy_from_slice(&(bits + 0x80).to_le_bytes());
    }
}

#[test]
fn an_attention_scale_doubled_fails() {
    let subjects = [Subject::bf16(), Subject::int4(), Subject::int4_against_bf16(), Subject::bf16_under_tensor_gate()];
    for subject in subjects.map(Subject::short) {
        let mut spec = (*subject.folder.spec).clone();
        spec.layers[LAYER].attention.scale *= 2.0;
        let what = format!("attention scale doubled, gate {}", subject.gate.name);
        assert_fails(&what, &subject.replay(spec, Fault::None));
    }
}

#[test]
fn rope_off_by_one_fails() {
    let tensor = ("bf16 under the gate for tensor cores", Subject::bf16_under_tensor_gate().short());
    for (what, subject) in Subject::strict().into_iter().chain([tensor]) {
        let spec = (*subject.folder.spec).clone();
        assert_fails(&format!("rope off by one in decode, {what}"), &subject.replay(spec, Fault::RopeOffByOne));
    }
}

#[test]
fn a_stale_kv_row_fails() {
    let tensor = ("bf16 under the gate for tensor cores", Subject::bf16_under_tensor_gate().short());
    for (what, subject) in Subject::strict().into_iter().chain([tensor]) {
        let spec = (*subject.folder.spec).clone();
        assert_fails(&format!("stale KV row, {what}"), &subject.replay(spec, Fault::StaleRow { position: 20 }));
    }
}

/// Runs `assay reference-test tiny-moe-bf16` with a changed artifact; exit code and stdout.
fn run_with(change: impl FnOnce(String) -> String) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("artifact.json");
    let text = std::fs::read_to_string(root().join("witness/artifacts/tiny-moe.json")).unwrap();
    std::fs::write(&path, change(text)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_assay"))
        .args(["reference-test", "tiny-moe-bf16", "--artifact"])
        .arg(&path)
        .current_dir(root())
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr))
}

#[test]
fn evidence_of_something_else_is_invalid() {
    let other = "0".repeat(64);
    let weights = "936278a38e8fb51bbb2226d16caadac38be19f4b4701ad25dfb309eb2743ff30";
    let tokenizer = "4267c24c0d8f9e369179ef0953e1c95c8687caf3df925e1f4f3647079c30e873";
    for (what, sha256) in [("checkpoint", weights), ("tokenizer", tokenizer)] {
        let (code, text) = run_with(|artifact| artifact.replace(sha256, &other));
        let text: String = text.split_whitespace().collect();
        assert_eq!(code, Some(4), "{what}: {text}");
        assert!(text.contains("INVALID") && text.contains(sha256) && text.contains(&other), "{what}: {text}");
    }
    let (code, text) =
        run_with(|artifact| artifact.replacen("\"schema_version\":1", "\"schema_version\":2,\"new\":0", 1));
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("schema version 2, expected 1"), "{text}");
}

#[test]
fn a_damaged_artifact_is_an_input_error() {
    let (code, text) = run_with(|artifact| artifact[..artifact.len() / 2].to_owned());
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("artifact.json"), "{text}");
}
