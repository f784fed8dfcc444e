//! Continued conversations on the fixture, and planted faults, each of which must be caught in its case and located.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use assay_engine::bank::HostBank;
use assay_engine::device::host::{HostDevice, HostOptions};
use assay_engine::device::{
    Arithmetic, Buffer, Device, DeviceError, DeviceKind, Event, Kernel, Launch, LinkCounters, Span, Stream, Upload,
};
use assay_engine::expert_cache::{BuildOptions, Encoding, QuantizeMethod, build};
use assay_engine::memory::MemoryPlan;
use assay_engine::{Engine, EngineOptions, ModelFolder, Precision};
use assay_harness::session_equivalence::{Case, Conversation, Embedded, paths, run};
use assay_kernels::KvFormat;
use assay_ledgers::Verdict;

const EXPERTS: Encoding = Encoding::Int4(QuantizeMethod::Amax);

/// What goes wrong once something has been restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// One position of the second layer's keys is that of the position before it, in every split.
    StaleRow,
    /// The continuation's first rope is one position late.
    PositionOffByOne,
    /// The first layer's rows are another conversation's.
    OtherConversation,
    /// Every second layer's rows do not arrive.
    RestoredHalf,
}

/// A host device that does one thing wrong.
struct Planted {
    host: HostDevice,
    fault: Fault,
    /// Bytes of one split of one layer: what is saved in one copy, and nothing else is.
    split_bytes: u64,
    saved: Vec<Vec<u8>>,
    late: bool,
}

impl Planted {
    /// What arrives instead of a split of a layer; `None` for nothing.
    fn instead(&mut self, layer: usize, bytes: &[u8]) -> Option<Vec<u8>> {
        self.late = self.fault == Fault::PositionOffByOne;
        match self.fault {
            Fault::StaleRow if layer == 1 => {
                // BF16 keys: [8 tiles][head_dim][16 positions]; a tile's first column is dimension 0.
                let mut stale = bytes.to_vec();
                for column in stale[..64 * 32].chunks_exact_mut(32) {
                    column.copy_within(8..10, 10);
                }
                Some(stale)
            }
            Fault::OtherConversation if layer == 0 => {
                let other = self.saved.iter().rev().find(|saved| saved[..] != *bytes);
                Some(other.unwrap().clone())
            }
            Fault::RestoredHalf if layer % 2 == 1 => None,
            _ => Some(bytes.to_vec()),
        }
    }
}

impl Device for Planted {
    fn kind(&self) -> DeviceKind {
        self.host.kind()
    }
    fn budget(&self) -> u64 {
        self.host.budget()
    }
    fn free_bytes(&self) -> u64 {
        self.host.free_bytes()
    }
    fn take_low_water(&mut self) -> u64 {
        self.host.take_low_water()
    }
    fn allocate(&mut self, bytes: u64, label: &'static str) -> Result<Buffer, DeviceError> {
        self.host.allocate(bytes, label)
    }
    fn free(&mut self, buffer: Buffer) {
        self.host.free(buffer);
    }
    fn adopt_bank(&mut self, bank: &Arc<HostBank>) -> Result<(), DeviceError> {
        self.host.adopt_bank(bank)
    }
    fn copy_from_bank(&mut self, bank: &Arc<HostBank>, source: Range<usize>, to: Span<u8>) -> Result<(), DeviceError> {
        self.host.copy_from_bank(bank, source, to)
    }
    fn upload(&mut self, bytes: &[u8], to: Span<u8>) -> Result<(), DeviceError> {
        self.host.upload(bytes, to)
    }
    fn begin_uploads(&mut self, layers: Vec<Vec<Upload>>) -> Result<(), DeviceError> {
        let mut planted = Vec::new();
        for (layer, uploads) in layers.into_iter().enumerate() {
            let instead = |upload: Upload| {
                let bytes = self.instead(layer, upload.bytes())?;
                Some(Upload { range: 0..bytes.len(), source: Arc::new(bytes), ..upload })
            };
            planted.push(uploads.into_iter().filter_map(instead).collect());
        }
        self.host.begin_uploads(planted)
    }
    fn await_upload(&mut self, group: usize) -> Result<(), DeviceError> {
        self.host.await_upload(group)
    }
    fn download(&mut self, from: Span<u8>, to: &mut [u8]) -> Result<(), DeviceError> {
        self.host.download(from, to)?;
        if from.size() == self.split_bytes {
            self.saved.push(to.to_vec());
        }
        Ok(())
    }
    fn launch(&mut self, kernel: Kernel, how: Launch) -> Result<(), DeviceError> {
        let mut kernel = kernel;
        if let Kernel::HeadNormRope { first_position, .. } = &mut kernel {
            *first_position += usize::from(std::mem::take(&mut self.late));
        }
        self.host.launch(kernel, how)
    }
    fn record(&mut self, stream: Stream) -> Result<Event, DeviceError> {
        self.host.record(stream)
    }
    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        self.host.wait(stream, event)
    }
    fn sorts_slots(&self, arithmetic: Arithmetic) -> bool {
        self.host.sorts_slots(arithmetic)
    }
    fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.host.synchronize()
    }
    fn abandon(&mut self) {
        self.host.abandon();
    }
    fn link(&self) -> LinkCounters {
        self.host.link()
    }
}

fn model() -> &'static (ModelFolder, Arc<HostBank>) {
    static MODEL: OnceLock<(ModelFolder, Arc<HostBank>)> = OnceLock::new();
    MODEL.get_or_init(|| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models/tiny-moe");
        let folder = ModelFolder::open(&dir, &|_| {}).unwrap();
        let cache = tempfile::tempdir().unwrap();
        let path = cache.path().join("experts");
        let identity = folder.cache_identity(EXPERTS).unwrap();
        build(&folder.checkpoint, &folder.spec, &identity, &path, &BuildOptions::default(), |_, _| {}).unwrap();
        let bank = folder.read_bank(&path, EXPERTS, &|_| {}).unwrap();
        (folder, bank)
    })
}

fn cases(kv: KvFormat, fault: Fault, first: usize) -> Vec<Case> {
    let (folder, bank) = model();
    let bf16 = Encoding::Bf16;
    let precision = Precision { experts: EXPERTS, attention: bf16, dense: bf16, head: bf16, kv };
    let options = EngineOptions { max_chunk: 64, min_chunk: 8, margin_bytes: 0, ..EngineOptions::new(precision, 500) };
    let plan = MemoryPlan::new(&folder.spec, &options).unwrap();
    let host = HostDevice::new(plan.resident_budget(64), HostOptions::default()).unwrap();
    let device = Planted { host, fault, split_bytes: u64::MAX, saved: Vec::new(), late: false };
    let (checkpoint, spec) = (&folder.checkpoint, folder.spec.clone());
    let mut engine = Engine::load(device, checkpoint, spec, bank.clone(), None, options).unwrap();
    let layer = engine.kv_layouts().next().unwrap().prefix_bytes(1).unwrap();
    engine.device_mut().split_bytes = layer as u64;
    let ids = |seed: u32, len: usize| (0..len as u32).map(|i| (i * 97 + seed * 131) % 4096).collect::<Vec<_>>();
    let conversation =
        Conversation { first: ids(1, first), message: ids(2, 20), branch: ids(3, 20), other: ids(4, first) };
    run(&mut Embedded::new(&mut engine, "tiny-moe"), &conversation, 5, |_| {}).unwrap()
}

fn of<'c>(cases: &'c [Case], path: &str) -> &'c Case {
    cases.iter().find(|case| case.path == path).unwrap()
}

#[test]
fn every_path_of_every_format_has_the_bits_of_fresh_history() {
    std::thread::scope(|scope| {
        for kv in KvFormat::ALL {
            scope.spawn(move || every_path_has_the_bits_of_fresh_history(kv));
        }
    });
}

fn every_path_has_the_bits_of_fresh_history(kv: KvFormat) {
    for first in [1, 127, 128, 300] {
        let cases = cases(kv, Fault::None, first);
        assert_eq!(cases.len(), 13);
        for case in &cases {
            assert_eq!(case.verdict, Verdict::Pass, "{kv:?} {first} {}: {}", case.path, case.reason);
        }
        assert!(of(&cases, paths::RESTORED).restored_bytes > Some(0));
        assert_eq!(of(&cases, paths::ACTIVE).reused_tokens, Some(first as u64));
    }
}

/// Nothing before the first restoration may fail, the restoration must, and the place is named.
fn check_caught(fault: Fault, layer: Option<u64>, component: &str) {
    let cases = cases(KvFormat::Bf16, fault, 200);
    for path in [paths::FRESH, paths::REPEAT, paths::CONTROL, paths::ACTIVE] {
        assert_eq!(of(&cases, path).verdict, Verdict::Pass, "{fault:?}: {path}");
    }
    let restored = of(&cases, paths::RESTORED);
    assert_eq!(restored.verdict, Verdict::Fail, "{fault:?}: {}", restored.reason);
    let first = restored.comparison.first.as_ref().unwrap();
    assert_eq!(first.step, 0, "{fault:?}: {}", restored.reason);
    assert!(restored.reason.starts_with("differs from step 0 on: "), "{fault:?}: {}", restored.reason);
    assert!(first.value.as_ref().unwrap().differing > 1000, "{fault:?}");
    let first = restored.first_difference.as_ref().unwrap();
    assert_eq!((first.at.step, first.at.layer, first.at.component.as_str()), (Some(0), layer, component), "{fault:?}");
}

#[test]
fn a_stale_row_is_caught() {
    check_caught(Fault::StaleRow, Some(1), "attention");
}

#[test]
fn a_position_off_by_one_is_caught() {
    check_caught(Fault::PositionOffByOne, Some(0), "q_norm_rope");
}

#[test]
fn another_conversations_snapshot_is_caught() {
    check_caught(Fault::OtherConversation, Some(0), "attention");
}

#[test]
fn half_a_restoration_is_caught() {
    check_caught(Fault::RestoredHalf, Some(1), "attention");
}
