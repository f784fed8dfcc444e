//! What is kept, shared between the engine's thread and those that deliver answers.

use std::sync::Arc;

use super::Key;
use super::memory;
use super::sync::Mutex;
use super::tree::{Block, Forest, Found, Published};

/// How much host memory kept state may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreOptions {
    /// Bytes of kept state at most. State that waits for its answer's delivery is held beside it.
    pub limit_bytes: u64,
    /// Bytes that must stay available to the process, as the machine and its control groups count: where less is, the least
    /// recently used goes.
    pub reserve_bytes: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { limit_bytes: 4 << 30, reserve_bytes: 512 << 20 }
    }
}

/// What a store holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Bytes kept.
    pub bytes: u64,
    /// Blocks of up to 128 tokens kept.
    pub blocks: usize,
}

/// Says how many bytes the process may still take; `None` where that is not known.
type Headroom = Box<dyn Fn() -> Option<u64> + Send + Sync>;

/// Rows of earlier requests in pageable host memory. Looking up changes nothing; [`super::Pending::commit`] alone does.
pub struct Store {
    forest: Mutex<Forest>,
    options: StoreOptions,
    headroom: Headroom,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("options", &self.options).field("usage", &self.usage()).finish()
    }
}

impl Store {
    /// An empty store that watches this machine's memory.
    pub fn new(options: StoreOptions) -> Self {
        Self::with_headroom(options, Box::new(memory::headroom))
    }

    /// An empty store that is told how much memory is left.
    pub fn with_headroom(options: StoreOptions, headroom: Headroom) -> Self {
        Self { forest: Mutex::new(Forest::default()), options, headroom }
    }

    /// What is kept now.
    pub fn usage(&self) -> StoreUsage {
        self.locked(|forest| StoreUsage { bytes: forest.bytes(), blocks: forest.blocks() })
    }

    pub(super) fn find(&self, key: &Key, tokens: &[u32]) -> Found {
        self.locked(|forest| forest.find(key, tokens))
    }

    /// Whether `bytes` more may be taken now, for state that is not yet published.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        bytes <= self.options.limit_bytes && (self.headroom)().is_none_or(|left| bytes <= left)
    }

    pub(super) fn publish(&self, key: &Key, chain: &[Arc<Block>], answer: &[u32]) -> Published {
        // Reads files: not under the lock.
        let left = (self.headroom)();
        self.locked(|forest| {
            // The chain's bytes are taken already: what it adds is no longer part of what is left.
            let short = left.map_or(0, |left| self.options.reserve_bytes.saturating_sub(left));
            let added = forest.missing_bytes(key, chain);
            let limit = self.options.limit_bytes.min((forest.bytes() + added).saturating_sub(short));
            forest.publish(key, chain, answer, limit)
        })
    }

    fn locked<R>(&self, f: impl FnOnce(&mut Forest) -> R) -> R {
        f(&mut self.forest.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}
