//! Shared by the server's tests: the fixture model behind a server in this process, and a client that speaks bare HTTP.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

pub mod client;
pub mod load;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use assay_engine::bank::HostBank;
use assay_engine::device::host::{HostDevice, HostOptions};
use assay_engine::expert_cache::{BuildOptions, Encoding, QuantizeMethod, build};
use assay_engine::memory::MemoryPlan;
use assay_engine::session::StoreOptions;
use assay_engine::{Engine, EngineOptions, KvFormat, ModelFolder, Precision};

use assay_server::{Limits, ServedModel, ServerOptions, serve};
use client::{Answer, Request};

/// Longest sequence of the tests' server.
pub const CONTEXT: usize = 3000;

struct Model {
    folder: ModelFolder,
    bank: Arc<HostBank>,
}

fn model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| {
        let encoding = Encoding::Int4(QuantizeMethod::Amax);
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models/tiny-moe");
        let folder = ModelFolder::open(&dir, &|_| {}).unwrap();
        let cache = tempfile::tempdir().unwrap();
        let path = cache.path().join("experts");
        let identity = folder.cache_identity(encoding).unwrap();
        build(&folder.checkpoint, &folder.spec, &identity, &path, &BuildOptions::default(), |_, _| {}).unwrap();
        let bank = folder.read_bank(&path, encoding, &|_| {}).unwrap();
        Model { folder, bank }
    })
}

/// The fixture with every expert resident.
pub fn engine() -> Engine<HostDevice> {
    let Model { folder, bank } = model();
    let precision = Precision {
        experts: Encoding::Int4(QuantizeMethod::Amax),
        attention: Encoding::Bf16,
        dense: Encoding::Bf16,
        head: Encoding::Bf16,
        kv: KvFormat::Bf16,
    };
    let options =
        EngineOptions { max_chunk: 64, min_chunk: 8, margin_bytes: 0, ..EngineOptions::new(precision, CONTEXT) };
    let budget = MemoryPlan::new(&folder.spec, &options).unwrap().resident_budget(options.max_chunk);
    let device = HostDevice::new(budget, HostOptions::default()).unwrap();
    Engine::load(device, &folder.checkpoint, folder.spec.clone(), bank.clone(), None, options).unwrap()
}

pub fn served() -> ServedModel {
    ServedModel::open(&model().folder, "tiny-moe".to_owned(), (CONTEXT, CONTEXT)).unwrap()
}

pub fn options() -> ServerOptions {
    let store = StoreOptions { limit_bytes: 64 << 20, reserve_bytes: 0 };
    ServerOptions { queue_length: 64, keys: None, store, limits: Limits::default(), planted_faults: Vec::new() }
}

/// A server in this process; it stops when dropped.
pub struct Server {
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start() -> Self {
        Self::with(options())
    }

    pub fn with(options: ServerOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let flag = stop.clone();
        let thread = std::thread::spawn(move || {
            serve(listener, &mut engine(), served(), options, || flag.load(Ordering::Relaxed)).unwrap();
        });
        Self { address, stop, thread: Some(thread) }
    }

    pub fn get(&self, path: &str) -> Answer {
        Request::get(path).send(self.address).unwrap()
    }

    pub fn post(&self, path: &str, body: &serde_json::Value) -> Answer {
        Request::post(path, body).send(self.address).unwrap()
    }

    /// A counter of `/metrics`, all its labels together.
    pub fn counter(&self, name: &str) -> u64 {
        let text = self.get("/metrics").body;
        let lines =
            text.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }

    /// Asks it to stop, without waiting.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub fn join(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let joined = thread.join();
            assert!(joined.is_ok() || std::thread::panicking());
        }
    }
}
