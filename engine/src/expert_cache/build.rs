//! Building a cache: one layer at a time, under a lock, visible only when it is complete.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::encode::SquaredError;
use super::error::CacheError;
use super::header::{Header, PAGE_BYTES, hex};
use super::identity::{CacheIdentity, LayerGeometry, moe_layers};
use super::read::ExpertCache;
use super::source::{CheckpointExperts, ExpertPlace, ExpertSource};
use crate::checkpoint::Checkpoint;
use crate::model::spec::{MlpSpec, ModelSpec};

/// How often a builder that waits for another looks again.
const LOCK_POLL: Duration = Duration::from_millis(50);
/// Experts encoded between two reports of progress, for each thread.
const EXPERTS_PER_THREAD: usize = 4;

/// What a build may be told.
#[derive(Clone, Copy, Default)]
pub struct BuildOptions<'a> {
    /// Build even where a file exists. Without it, a matching file is kept and any other is an error.
    pub replace: bool,
    /// Set by another thread to stop the build; nothing is left behind but the lock file.
    pub cancel: Option<&'a AtomicBool>,
    /// Called once with the lock's path if another process is building.
    pub on_wait: Option<&'a (dyn Fn(&Path) + Sync)>,
}

impl std::fmt::Debug for BuildOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BuildOptions").field("replace", &self.replace).finish_non_exhaustive()
    }
}

/// What a build did.
#[derive(Debug, Clone, PartialEq)]
pub struct BuildReport {
    /// Whether the file was written now; otherwise a matching one was there, and `layers` is empty.
    pub built: bool,
    /// Size of the file.
    pub bytes: u64,
    /// Wall time, waiting for the lock included.
    pub seconds: f64,
    /// Each MoE layer's distance from the checkpoint.
    pub layers: Vec<LayerReport>,
}

/// How far a layer's experts are from the checkpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerReport {
    /// Index among all layers of the model.
    pub layer: usize,
    /// Over all weights of all experts.
    pub error: SquaredError,
}

/// Builds the cache at `path`, or finds it there. `progress` gets the payload bytes that are written and their total.
///
/// Memory: one layer's packed experts, a tile for each thread, and the checkpoint's pages of one layer.
///
/// # Errors
/// A checkpoint that cannot be read or packed; a file system that refuses; a file at `path` that is of something else.
pub fn build(
    checkpoint: &Checkpoint,
    spec: &ModelSpec,
    identity: &CacheIdentity,
    path: &Path,
    options: &BuildOptions<'_>,
    progress: impl FnMut(u64, u64),
) -> Result<BuildReport, CacheError> {
    build_from(&CheckpointExperts(checkpoint), spec, identity, path, options, progress)
}

/// [`build`] from any source of experts.
///
/// # Errors
/// As [`build`].
pub fn build_from(
    source: &dyn ExpertSource,
    spec: &ModelSpec,
    identity: &CacheIdentity,
    path: &Path,
    options: &BuildOptions<'_>,
    progress: impl FnMut(u64, u64),
) -> Result<BuildReport, CacheError> {
    build_through(source, spec, identity, path, options, progress, |file| file)
}

/// [`build_from`], with every write going through what `wrap` makes of the file.
pub(super) fn build_through<W: Write + Seek + Send>(
    source: &dyn ExpertSource,
    spec: &ModelSpec,
    identity: &CacheIdentity,
    path: &Path,
    options: &BuildOptions<'_>,
    progress: impl FnMut(u64, u64),
    wrap: impl FnOnce(File) -> W,
) -> Result<BuildReport, CacheError> {
    let start = Instant::now();
    identity.check_spec(spec, path)?;
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    fs::create_dir_all(folder).map_err(CacheError::io("create the folder", folder))?;
    let _lock = lock(path, options)?;
    if !options.replace && path.try_exists().map_err(CacheError::io("look for", path))? {
        let bytes = ExpertCache::open(path, identity)?.file_bytes();
        return Ok(BuildReport { built: false, bytes, seconds: start.elapsed().as_secs_f64(), layers: Vec::new() });
    }
    let temporary = Temporary { path: with_suffix(path, ".tmp") };
    let file = File::create(&temporary.path).map_err(CacheError::io("create", &temporary.path))?;
    let handle = file.try_clone().map_err(CacheError::io("open", &temporary.path))?;
    let mut builder =
        Builder { source, identity, sink: wrap(file), path, temporary: &temporary.path, options, progress };
    let (bytes, layers) = builder.write(spec)?;
    drop(builder);
    handle.sync_all().map_err(CacheError::io("sync", &temporary.path))?;
    fs::rename(&temporary.path, path).map_err(CacheError::io("rename to", path))?;
    // The rename itself is durable only with the folder.
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(CacheError::io("sync the folder", folder))?;
    Ok(BuildReport { built: true, bytes, seconds: start.elapsed().as_secs_f64(), layers })
}

/// Removes the file when dropped; after the rename there is none, and that is fine.
struct Temporary {
    path: PathBuf,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // A file that cannot be removed is overwritten by the next build.
        let _ = fs::remove_file(&self.path);
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

/// Holds `PATH.lock` until the file is dropped; the system releases it too when the process ends in any way.
fn lock(path: &Path, options: &BuildOptions<'_>) -> Result<File, CacheError> {
    let lock_path = with_suffix(path, ".lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&lock_path)
        .map_err(CacheError::io("open", &lock_path))?;
    let mut waiting = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(CacheError::io("lock", &lock_path)(error)),
            Err(TryLockError::WouldBlock) => {}
        }
        // Polled rather than waited for, so that cancelling works here too.
        check_cancelled(path, options)?;
        if !waiting && let Some(on_wait) = options.on_wait {
            on_wait(&lock_path);
        }
        waiting = true;
        std::thread::sleep(LOCK_POLL);
    }
}

fn check_cancelled(path: &Path, options: &BuildOptions<'_>) -> Result<(), CacheError> {
    if options.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
        return Err(CacheError::Cancelled { path: path.to_owned() });
    }
    Ok(())
}

struct Builder<'a, W, P> {
    source: &'a dyn ExpertSource,
    identity: &'a CacheIdentity,
    sink: W,
    path: &'a Path,
    temporary: &'a Path,
    options: &'a BuildOptions<'a>,
    progress: P,
}

impl<W: Write + Seek + Send, P: FnMut(u64, u64)> Builder<'_, W, P> {
    /// Writes the whole file; returns its size and each layer's error.
    fn write(&mut self, spec: &ModelSpec) -> Result<(u64, Vec<LayerReport>), CacheError> {
        let identity = self.identity;
        let mut header = identity.header()?;
        let total = header.payload_bytes();
        // The same length as at the end: only digits of hashes change.
        let header_bytes = self.header_bytes(&header)?;
        self.sink.write_all(&vec![0; header_bytes.len()]).map_err(CacheError::io("write", self.temporary))?;
        let mut reports = Vec::with_capacity(identity.layers.len());
        let mut packed = Vec::new();
        (self.progress)(0, total);
        let layers = moe_layers(spec).zip(&identity.layers).zip(&mut header.layers);
        for (((_, moe), geometry), record) in layers {
            self.source.check(&moe.experts)?;
            packed.clear();
            packed.resize(record.bytes(), 0);
            let error = self.encode_layer(&moe.experts, geometry, &mut packed, record.offset, total)?;
            reports.push(LayerReport { layer: geometry.layer, error });
            record.sha256 = self.write_layer(&packed)?;
            self.source.layer_done()?;
            (self.progress)((record.offset + record.bytes() as u64).next_multiple_of(PAGE_BYTES), total);
        }
        let header_bytes = self.header_bytes(&header)?;
        self.sink.seek(SeekFrom::Start(0)).map_err(CacheError::io("write", self.temporary))?;
        self.sink.write_all(&header_bytes).map_err(CacheError::io("write", self.temporary))?;
        self.sink.flush().map_err(CacheError::io("write", self.temporary))?;
        Ok((header_bytes.len() as u64 + total, reports))
    }

    fn header_bytes(&self, header: &Header) -> Result<Vec<u8>, CacheError> {
        let bad = |error: serde_json::Error| CacheError::malformed(self.path, error.to_string(), "a header");
        header.to_bytes().map_err(bad)
    }

    fn encode_layer(
        &mut self,
        experts: &[MlpSpec],
        geometry: &LayerGeometry,
        packed: &mut [u8],
        offset: u64,
        total: u64,
    ) -> Result<SquaredError, CacheError> {
        let batch = rayon::current_num_threads().max(1) * EXPERTS_PER_THREAD;
        let mut sum = SquaredError::default();
        let mut done = offset;
        let (source, encoding) = (self.source, self.identity.encoding);
        let batches = experts.chunks(batch).zip(packed.chunks_mut(batch.saturating_mul(geometry.expert.bytes)));
        for (index, (experts, packed)) in batches.enumerate() {
            check_cancelled(self.path, self.options)?;
            let errors: Result<Vec<SquaredError>, CacheError> = experts
                .par_iter()
                .zip(packed.par_chunks_exact_mut(geometry.expert.bytes))
                .enumerate()
                .map(|(place, (spec, packed))| {
                    source.pack(&ExpertPlace { geometry, expert: index * batch + place, spec, encoding }, packed)
                })
                .collect();
            sum = errors?.into_iter().fold(sum, SquaredError::and);
            done += packed.len() as u64;
            (self.progress)(done, total);
        }
        Ok(sum)
    }

    /// Writes a layer, padded to a page, and returns the hash of its experts.
    fn write_layer(&mut self, packed: &[u8]) -> Result<String, CacheError> {
        let padding = packed.len().next_multiple_of(PAGE_BYTES as usize) - packed.len();
        let sink = &mut self.sink;
        let write = || sink.write_all(packed).and_then(|()| sink.write_all(&vec![0; padding]));
        let (written, hash) = rayon::join(write, || Sha256::digest(packed));
        written.map_err(CacheError::io("write", self.temporary))?;
        Ok(hex(&hash))
    }
}
