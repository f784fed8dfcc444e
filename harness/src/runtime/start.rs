//! The steps from a config to a loaded engine.

use crate::config::{
    ByteSize, Config, Device as DeviceChoice, KvFormat, LoadedConfig, Policy, PrefillArithmetic, Quantization,
    WeightFormat,
};
use crate::interrupt;
use crate::progress::Progress;
use crate::repository::Repository;
use anyhow::Context;
use assay_engine::bank::HostBank;
use assay_engine::checkpoint::HashCache;
use assay_engine::checkpoint::tokenizer::Tokenizer;
use assay_engine::device::cuda::CudaDevice;
use assay_engine::device::host::{HostDevice, HostOptions, LinkModel};
use assay_engine::device::{Arithmetic, Device, DeviceError, DeviceKind};
use assay_engine::expert_cache::{BuildOptions, Encoding, QuantizeMethod, build, default_path, stale_paths};
use assay_engine::memory::MemoryPlan;
use assay_engine::residency::{Heatmap, HeatmapIdentity, PolicyKind};
use assay_engine::{Engine, EngineError, EngineOptions, ModelFolder, Precision};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A config with its checkpoint opened: enough to say what it needs and what it is.
#[derive(Debug)]
pub struct Opened {
    /// The config, flags applied.
    pub loaded: LoadedConfig,
    /// The checkpoint.
    pub folder: ModelFolder,
    /// Options for the engine.
    pub options: EngineOptions,
}

/// A config with its engine loaded.
pub struct Runtime {
    /// What it was made from.
    pub opened: Opened,
    /// The heatmap that seeds residency.
    pub heatmap: Option<Heatmap>,
    /// The engine.
    pub engine: Engine<Box<dyn Device>>,
    /// Seconds that each step took, by its name.
    pub startup_s: BTreeMap<String, f64>,
}

impl Opened {
    /// Opens and hashes the checkpoint.
    ///
    /// # Errors
    /// When the checkpoint cannot be read or is none that the engine knows.
    pub fn new(loaded: LoadedConfig) -> anyhow::Result<Self> {
        Self::hashed(loaded, false)
    }

    /// [`Opened::new`]; with `recheck` every file is read, also where its hash is known.
    ///
    /// # Errors
    /// As [`Opened::new`], and when a file changed without a trace.
    pub fn hashed(loaded: LoadedConfig, recheck: bool) -> anyhow::Result<Self> {
        let cache = HashCache::open(&loaded.hash_cache_path(), recheck);
        let folder = open_folder(&loaded.model_folder(), Some(&cache))?;
        if let Err(error) = cache.save() {
            eprintln!("warning: file hashes are not remembered: {}: {error}", loaded.hash_cache_path().display());
        }
        let options = engine_options(&loaded.config);
        Ok(Opened { loaded, folder, options })
    }

    /// Replaces the budget.
    pub fn set_vram(&mut self, bytes: u64) {
        self.loaded.config.memory.vram = ByteSize(bytes);
    }

    /// The checkpoint's name: its folder's.
    pub fn model_name(&self) -> String {
        folder_name(self.folder.checkpoint.dir())
    }

    /// What a heatmap of this config must have been made with.
    pub fn heatmap_identity(&self) -> HeatmapIdentity {
        let precision = &self.options.precision;
        HeatmapIdentity {
            checkpoint_sha256: self.folder.sha256(),
            experts: precision.experts.name().to_owned(),
            attention: precision.attention.name().to_owned(),
            dense: precision.dense.name().to_owned(),
            kv: precision.kv.name().to_owned(),
        }
    }

    /// Where this config's expert cache lies.
    ///
    /// # Errors
    /// When the checkpoint's experts cannot be described.
    pub fn cache_path(&self, repository: &Repository) -> anyhow::Result<PathBuf> {
        let encoding = self.options.precision.experts;
        if let Some(path) = self.folder.own_cache(encoding) {
            return Ok(path);
        }
        let identity = self.folder.cache_identity(encoding)?;
        Ok(default_path(repository.root(), &self.model_name(), &identity))
    }

    /// Says which files in `cache/` hold this config's experts in a layout that this build has no use for.
    pub(crate) fn name_stale_caches(&self, repository: &Repository) -> anyhow::Result<()> {
        let identity = self.folder.cache_identity(self.options.precision.experts)?;
        for path in stale_paths(repository.root(), &self.model_name(), &identity) {
            eprintln!("{} is of an earlier layout and may be deleted", repository.display(&path).display());
        }
        Ok(())
    }

    /// The heatmap that the config names, checked against it.
    ///
    /// # Errors
    /// When the file cannot be read, is damaged, or is another configuration's.
    pub fn heatmap(&self) -> anyhow::Result<Option<Heatmap>> {
        let Some(path) = self.loaded.heatmap_path() else { return Ok(None) };
        let sizes = MemoryPlan::new(&self.folder.spec, &self.options)?.sizes;
        let heatmap = Heatmap::load(&path, sizes.moe_layers, sizes.num_experts, sizes.top_k)?;
        heatmap.check_identity(&path, &self.heatmap_identity())?;
        Ok(Some(heatmap))
    }

    /// Refuses a synthetic model where quality is judged.
    ///
    /// # Errors
    /// With the recipe, where the model is one.
    pub fn refuse_synthetic(&self, what: &str) -> anyhow::Result<()> {
        let Some(record) = &self.folder.synthetic else { return Ok(()) };
        anyhow::bail!(
            "{} is a synthetic model (shape {}, seed {}): {what} means nothing",
            self.model_name(),
            record.shape,
            record.seed
        )
    }

    /// Refuses a budget that is too small, before anything is built or read.
    ///
    /// # Errors
    /// The engine's own, with the figure that is needed.
    pub fn check_budget(&self) -> anyhow::Result<()> {
        let plan = MemoryPlan::new(&self.folder.spec, &self.options);
        let budget = self.loaded.config.memory.vram.0;
        plan.and_then(|plan| plan.check_budget(budget, self.options.min_chunk)).with_context(|| self.context())
    }

    /// What an error about the config's own numbers is about.
    fn context(&self) -> String {
        format!("config {}", self.loaded.path.display())
    }

    /// Builds the expert cache if there is none, then reads it into memory.
    fn bank(&self, repository: &Repository) -> anyhow::Result<Arc<HostBank>> {
        let encoding = self.options.precision.experts;
        let path = self.cache_path(repository)?;
        if build_cache(&self.folder, encoding, &path, false)?.built {
            self.name_stale_caches(repository)?;
        }
        let bytes = std::fs::metadata(&path).map(|file| file.len()).unwrap_or(0);
        let progress = Mutex::new(Progress::start("reading experts", bytes, "bytes"));
        let advance = |bytes: u64| lock(&progress).advance(bytes);
        Ok(self.folder.read_bank(&path, encoding, &advance)?)
    }
}

impl Runtime {
    /// Loads everything that `loaded` names.
    ///
    /// # Errors
    /// When a file cannot be read or is not what it should be, or the budget is too small.
    pub fn start(loaded: LoadedConfig, repository: &Repository) -> anyhow::Result<Self> {
        let start = Instant::now();
        let opened = Opened::new(loaded)?;
        opened.check_budget()?;
        let heatmap = opened.heatmap()?;
        let seconds = start.elapsed().as_secs_f64();
        let mut runtime = Self::load(opened, heatmap, repository)?;
        runtime.startup_s.insert("checkpoint".to_owned(), seconds);
        Ok(runtime)
    }

    /// Loads the engine of an opened config.
    ///
    /// # Errors
    /// As [`Runtime::start`].
    pub fn load(opened: Opened, heatmap: Option<Heatmap>, repository: &Repository) -> anyhow::Result<Self> {
        opened.check_budget()?;
        let config = &opened.loaded.config;
        let mut steps = Steps::start();
        // Before experts are read, which may take a minute: a machine without the device says so at once.
        let device = open_device(config)
            .with_context(|| format!("{}: no device with memory.vram = {}", opened.context(), config.memory.vram))?;
        steps.end("device");
        let bank = opened.bank(repository)?;
        steps.end("experts");
        interrupt::check()?;
        let progress = Progress::start("loading weights and calibrating", 1, "step");
        let (checkpoint, spec) = (&opened.folder.checkpoint, opened.folder.spec.clone());
        let engine = Engine::load(device, checkpoint, spec, bank, heatmap.as_ref(), opened.options.clone())?;
        drop(progress);
        steps.end("weights");
        steps.split("weights", "calibration", engine.calibration_time());
        interrupt::check()?;
        Ok(Runtime { opened, heatmap, engine, startup_s: steps.seconds })
    }

    /// The checkpoint's tokenizer.
    ///
    /// # Errors
    /// When there is none, or it has more tokens than the model.
    pub fn tokenizer(&self) -> anyhow::Result<Tokenizer> {
        let tokenizer = Tokenizer::open(self.opened.folder.checkpoint.dir())?;
        tokenizer.check_vocab_size(self.opened.folder.spec.vocab_size)?;
        Ok(tokenizer)
    }
}

/// What the steps of starting take.
struct Steps {
    last: Instant,
    seconds: BTreeMap<String, f64>,
}

impl Steps {
    fn start() -> Self {
        Self { last: Instant::now(), seconds: BTreeMap::new() }
    }

    /// Everything since the step before was `step`.
    fn end(&mut self, step: &str) {
        let now = Instant::now();
        self.seconds.insert(step.to_owned(), (now - self.last).as_secs_f64());
        self.last = now;
    }

    /// `part` of `step` is a step of its own.
    fn split(&mut self, step: &str, part: &str, time: Duration) {
        if let Some(seconds) = self.seconds.get_mut(step) {
            *seconds -= time.as_secs_f64();
        }
        self.seconds.insert(part.to_owned(), time.as_secs_f64());
    }
}

/// Opens and hashes a checkpoint's folder, with progress.
///
/// # Errors
/// When it cannot be read or is no checkpoint that the engine knows.
pub(crate) fn open_folder(dir: &Path, cache: Option<&HashCache>) -> anyhow::Result<ModelFolder> {
    ModelFolder::open_cached(dir, cache, &|_| {}).with_context(|| format!("opening the checkpoint {}", dir.display()))
}

/// The config's device, with its budget.
fn open_device(config: &Config) -> Result<Box<dyn Device>, DeviceError> {
    let budget = config.memory.vram.0;
    let link = config
        .link
        .as_ref()
        .map(|link| LinkModel { bytes_per_s: link.bandwidth_gb_s * 1e9, latency_s: link.latency_us / 1e6 });
    Ok(match config.device {
        DeviceChoice::Host => {
            let planted_slowdown = config.planted_slowdown.unwrap_or(0.0);
            let options = HostOptions { link: link.unwrap_or_default(), planted_slowdown, ..HostOptions::default() };
            Box::new(HostDevice::new(budget, options)?)
        }
        DeviceChoice::Cuda => Box::new(CudaDevice::new(0, budget)?),
    })
}

/// Builds an expert cache with progress, unless a matching one is there.
///
/// # Errors
/// When a file of another identity is in its place, the disk is full, or the user interrupts.
pub fn build_cache(
    folder: &ModelFolder,
    encoding: Encoding,
    path: &Path,
    replace: bool,
) -> anyhow::Result<assay_engine::expert_cache::BuildReport> {
    let identity = folder.cache_identity(encoding)?;
    if let Some(record) = folder.synthetic.as_ref().filter(|_| replace || !path.exists()) {
        anyhow::bail!(
            "{} cannot be built: no checkpoint holds the experts of a synthetic model. `assay synth` wrote them in {}",
            path.display(),
            record.experts
        );
    }
    let mut progress: Option<Progress> = None;
    let on_wait = |lock: &Path| eprintln!("waiting for another build of the same cache ({})", lock.display());
    let options = BuildOptions { replace, cancel: Some(interrupt::flag()), on_wait: Some(&on_wait) };
    let result = build(&folder.checkpoint, &folder.spec, &identity, path, &options, |done, total| {
        let bar = progress
            .get_or_insert_with(|| Progress::start(format!("packing experts ({})", encoding.name()), total, "bytes"));
        bar.set(done);
    });
    drop(progress);
    interrupt::check()?;
    Ok(result.map_err(EngineError::from)?)
}

fn lock(progress: &Mutex<Progress>) -> std::sync::MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The last part of a folder's path.
pub(crate) fn folder_name(dir: &Path) -> String {
    let name = dir.file_name().or_else(|| dir.parent()?.file_name());
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// A config's engine options.
pub fn engine_options(config: &Config) -> EngineOptions {
    let precision = Precision {
        experts: encoding(config.precision.experts, config.precision.expert_quantization),
        attention: encoding(config.precision.attention, None),
        dense: encoding(config.precision.dense, None),
        head: encoding(config.precision.head, None),
        kv: match config.precision.kv {
            KvFormat::F32 => assay_kernels::KvFormat::F32,
            KvFormat::Bf16 => assay_kernels::KvFormat::Bf16,
            KvFormat::Int8 => assay_kernels::KvFormat::Int8,
            KvFormat::Int6 => assay_kernels::KvFormat::Int6,
            KvFormat::Int4 => assay_kernels::KvFormat::Int4,
        },
    };
    let defaults = EngineOptions::new(precision, config.context.tokens);
    EngineOptions {
        device: match config.device {
            DeviceChoice::Host => DeviceKind::Host,
            DeviceChoice::Cuda => DeviceKind::Cuda,
        },
        prefill: match config.precision.prefill {
            PrefillArithmetic::Exact => Arithmetic::Exact,
            PrefillArithmetic::Tensor => Arithmetic::Tensor,
        },
        max_chunk: config.context.max_chunk,
        min_chunk: config.context.min_chunk,
        margin_bytes: config.memory.margin.0,
        policy: match config.residency.policy {
            Policy::Lru => PolicyKind::Lru,
            Policy::Frequency => PolicyKind::Frequency,
            Policy::FrequencyLru => PolicyKind::FrequencyLru,
        },
        promotions_per_token: config.residency.max_promotions_per_token,
        max_resident_share: config.residency.max_resident_share,
        host_threads: config.residency.host_threads.unwrap_or(defaults.host_threads),
        ..defaults
    }
}

/// Weights other than experts take their INT4 scales from the largest magnitude.
fn encoding(format: WeightFormat, quantization: Option<Quantization>) -> Encoding {
    match (format, quantization) {
        (WeightFormat::Bf16, _) => Encoding::Bf16,
        (WeightFormat::Int4, Some(Quantization::Search)) => Encoding::Int4(QuantizeMethod::Search),
        (WeightFormat::Int4, _) => Encoding::Int4(QuantizeMethod::Amax),
        (WeightFormat::Int8, _) => Encoding::Int8,
    }
}
