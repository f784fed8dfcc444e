//! A server from start to shutdown.

use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use assay_engine::Engine;
use assay_engine::device::{Device, FaultPlan};
use assay_engine::file::{self, FileError};
use assay_engine::session::{Sessions, Store, StoreOptions};
use sha2::{Digest, Sha256};

use crate::http::{App, connection, router};
use crate::metrics::Metrics;
use crate::model::ServedModel;
use crate::worker::{self, Queue};

/// The largest file of keys, in bytes.
const MAX_KEY_FILE_BYTES: u64 = 1 << 20;
/// Shorter keys can be guessed.
const MIN_KEY_BYTES: usize = 16;

/// Why a server could not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The network or the threads.
    #[error("cannot serve: {0}")]
    Io(#[from] io::Error),
    /// The file of keys cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file of keys holds none that can be used.
    #[error("{path}: line {line} has {found} bytes, expected keys of at least {MIN_KEY_BYTES}, one a line")]
    Key {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Its length.
        found: usize,
    },
    /// The file of keys is empty.
    #[error("{path}: no key, expected at least one line")]
    NoKey {
        /// The file.
        path: PathBuf,
    },
}

/// Limits of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// Headers of a request, and their bytes.
    pub headers: usize,
    /// Bytes of a request's headers.
    pub header_bytes: usize,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// For a request's headers to arrive; a connection without requests is closed after it too.
    pub header_time: Duration,
    /// For a request's body to arrive.
    pub body_time: Duration,
    /// For a client to take any of what was sent.
    pub write_time: Duration,
    /// For requests under way, once the server is to stop.
    pub shutdown_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            headers: 64,
            header_bytes: 64 << 10,
            body_bytes: 16 << 20,
            header_time: Duration::from_secs(30),
            body_time: Duration::from_secs(60),
            write_time: Duration::from_secs(30),
            shutdown_time: Duration::from_secs(30),
        }
    }
}

/// What a server is told beside its engine and model.
#[derive(Debug)]
pub struct ServerOptions {
    /// Requests that may wait.
    pub queue_length: usize,
    /// Keys of which clients must show one; `None` for no check.
    pub keys: Option<ApiKeys>,
    /// Host memory for the state of earlier requests.
    pub store: StoreOptions,
    /// Limits.
    pub limits: Limits,
    /// Faults that the device is made to have, to see what becomes of a request that meets one: the second job meets the first, the
    /// fourth the second, and so on. Empty for a server that serves.
    pub planted_faults: Vec<FaultPlan>,
}

/// Keys, by their SHA-256: comparing digests tells nothing of a key by the time it takes.
#[derive(Debug, Clone)]
pub struct ApiKeys(Vec<[u8; 32]>);

impl ApiKeys {
    /// Reads a file of keys, one a line; empty lines do not count.
    ///
    /// # Errors
    /// A file that cannot be read, has no key or one that is too short.
    pub fn read(path: &Path) -> Result<Self, ServeError> {
        let text = file::read_text(path, MAX_KEY_FILE_BYTES)?;
        let mut keys = Vec::new();
        for (index, key) in text.lines().map(str::trim).enumerate().filter(|(_, key)| !key.is_empty()) {
            if key.len() < MIN_KEY_BYTES {
                return Err(ServeError::Key { path: path.to_owned(), line: index + 1, found: key.len() });
            }
            keys.push(Sha256::digest(key).into());
        }
        if keys.is_empty() {
            return Err(ServeError::NoKey { path: path.to_owned() });
        }
        Ok(Self(keys))
    }

    /// The place of a key among them.
    pub(crate) fn place(&self, key: &str) -> Option<usize> {
        let digest: [u8; 32] = Sha256::digest(key).into();
        self.0.iter().position(|known| *known == digest)
    }
}

/// Serves `engine` on `listener` until `stop` says so. The calling thread owns the engine throughout; connections are served by
/// threads of their own.
///
/// # Errors
/// When no thread can be started, or the listener fails.
pub fn serve<D: Device>(
    listener: TcpListener,
    engine: &mut Engine<D>,
    model: ServedModel,
    options: ServerOptions,
    stop: impl Fn() -> bool + Send,
) -> Result<(), ServeError> {
    listener.set_nonblocking(true)?;
    let queue = Arc::new(Queue::new(options.queue_length));
    let metrics = Arc::new(Metrics::default());
    let mut sessions = Sessions::new(engine, &model.checkpoint_sha256, Arc::new(Store::new(options.store)));
    let options = Arc::new(options);
    let app = App { model: Arc::new(model), queue: queue.clone(), metrics: metrics.clone(), options: options.clone() };
    // One thread is enough to feed the clients of one engine, and leaves the others to it.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).max_blocking_threads(4).enable_all().build()?;
    std::thread::scope(|scope| {
        let (http_queue, limits) = (queue.clone(), &options.limits);
        let http = scope.spawn(move || {
            let result = runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                connection::accept(listener, router(app), limits, || stop() || http_queue.is_closed()).await
            });
            http_queue.close();
            http_queue.clear();
            // Connections that did not end in time end here, and with them their jobs.
            runtime.shutdown_timeout(Duration::from_secs(1));
            result
        });
        worker::run(engine, &mut sessions, &queue, &metrics, &options.planted_faults);
        match http.join() {
            Ok(result) => Ok(result?),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
