//! A fixture model with its experts in memory, on a device that faults can be planted in.
#![allow(unreachable_pub, dead_code)]

use std::path::Path;
use std::sync::Arc;

use assay_engine::bank::HostBank;
use assay_engine::device::host::{HostDevice, HostOptions};
use assay_engine::expert_cache::{BuildOptions, Encoding, QuantizeMethod, build};
use assay_engine::memory::MemoryPlan;
use assay_engine::{Engine, EngineOptions, ModelFolder, Precision};
use assay_kernels::KvFormat;

use super::faulty::Faulty;

pub struct Subject {
    pub folder: ModelFolder,
    bank: Arc<HostBank>,
    options: EngineOptions,
}

impl Subject {
    /// INT4 experts, a BF16 cache, chunks of 8 tokens.
    pub fn int4(model: &str) -> Self {
        Self::new(model, Encoding::Int4(QuantizeMethod::Amax))
    }

    /// As [`Subject::int4`], with experts as they were trained.
    pub fn bf16(model: &str) -> Self {
        Self::new(model, Encoding::Bf16)
    }

    fn new(model: &str, experts: Encoding) -> Self {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models").join(model);
        let folder = ModelFolder::open(&dir, &|_| {}).unwrap();
        let cache = tempfile::tempdir().unwrap();
        let path = cache.path().join("experts");
        let identity = folder.cache_identity(experts).unwrap();
        build(&folder.checkpoint, &folder.spec, &identity, &path, &BuildOptions::default(), |_, _| {}).unwrap();
        let bank = folder.read_bank(&path, experts, &|_| {}).unwrap();
        let (attention, dense, head) = (Encoding::Bf16, Encoding::Bf16, Encoding::Bf16);
        let precision = Precision { experts, attention, dense, head, kv: KvFormat::Bf16 };
        let options =
            EngineOptions { max_chunk: 8, min_chunk: 8, margin_bytes: 0, ..EngineOptions::new(precision, 64) };
        Self { folder, bank, options }
    }

    /// With this share of what lies between the least budget and one where every expert is resident.
    pub fn engine(&self, share: f64) -> Engine<Faulty> {
        let plan = MemoryPlan::new(&self.folder.spec, &self.options).unwrap();
        let (least, most) = (plan.least_budget(self.options.min_chunk), plan.resident_budget(self.options.max_chunk));
        let budget = least + ((most - least) as f64 * share) as u64;
        let device = Faulty::new(HostDevice::new(budget, HostOptions::default()).unwrap());
        let (spec, bank) = (self.folder.spec.clone(), self.bank.clone());
        Engine::load(device, &self.folder.checkpoint, spec, bank, None, self.options.clone()).unwrap()
    }
}
