//! What a process takes of the card, seen from outside: the card's free memory, read again and again.

use assay_engine::device::DeviceError;
use assay_engine::device::cuda::CardGauge;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two readings. Memory of an inference process comes in a few large pieces that stay.
const INTERVAL: Duration = Duration::from_millis(10);

/// Watches until it is dropped.
pub struct CardWatch {
    /// Free bytes when watching began.
    free_before: u64,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// Least free bytes since the last question.
    least_free: AtomicU64,
    ended: AtomicBool,
}

impl CardWatch {
    /// Of CUDA device 0. What other processes take while it watches is counted too.
    ///
    /// # Errors
    /// When there is no driver or card.
    pub fn start() -> Result<Self, DeviceError> {
        let gauge = CardGauge::new(0)?;
        let free_before = gauge.read()?.free_bytes;
        let shared = Arc::new(Shared { least_free: AtomicU64::new(free_before), ended: AtomicBool::new(false) });
        let seen = shared.clone();
        let thread = std::thread::spawn(move || {
            while !seen.ended.load(Ordering::Relaxed) {
                if let Ok(memory) = gauge.read() {
                    seen.least_free.fetch_min(memory.free_bytes, Ordering::Relaxed);
                }
                std::thread::sleep(INTERVAL);
            }
        });
        Ok(Self { free_before, shared, thread: Some(thread) })
    }

    /// Most bytes in use beyond those at the start, since the last call.
    pub fn take_peak(&self) -> u64 {
        let least = self.shared.least_free.swap(self.free_before, Ordering::Relaxed);
        self.free_before.saturating_sub(least)
    }
}

impl Drop for CardWatch {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It only reads; a panic there has nothing to say.
            let _ = thread.join();
        }
    }
}
