//! A request's way from reservation to what later requests may use.

use std::sync::Arc;

use super::Key;
use super::store::Store;
use super::sync::{AtomicBool, Ordering};
use super::tree::{Block, Published};

/// Where a request's beginning came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Nothing was reused.
    Fresh,
    /// It was on the device.
    Active,
    /// It was copied back, the whole or a part of it.
    Restored,
}

/// A reservation: the device holds the first [`Turn::reused`] tokens of the request, or will when prefill needs them, and nothing that is
/// kept has changed.
///
/// The caller prefills [`Turn::rest`], decodes, and hands it to [`super::Sessions::finish`]. Dropping it is a rollback.
#[derive(Debug)]
#[must_use = "prefill its rest, then finish it"]
pub struct Turn {
    pub(super) key: Key,
    pub(super) tokens: Arc<[u32]>,
    pub(super) published: Arc<AtomicBool>,
    /// Tokens at the beginning whose rows are not computed again.
    pub reused: usize,
    /// Bytes that were copied to the device for that.
    pub restored_bytes: u64,
    /// Tokens after those that decode had computed: prefill computes them again.
    pub recomputed: usize,
    /// Where the reused rows were.
    pub source: Source,
    /// Seconds before prefill could begin, where copying goes on beside it.
    pub restore_s: f64,
}

impl Turn {
    /// The whole request.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
    /// What is to be prefilled: never empty.
    pub fn rest(&self) -> &[u32] {
        &self.tokens[self.reused..]
    }
}

/// An answered request whose answer is being delivered. Nothing of it can be reused yet.
///
/// It may outlive later requests, on any thread. Dropping it is a rollback: what was kept before is kept still.
#[derive(Debug)]
#[must_use = "commit it once the answer is delivered in full"]
pub struct Pending {
    pub(super) store: Arc<Store>,
    pub(super) key: Key,
    /// Empty where there was no memory for it.
    pub(super) chain: Vec<Arc<Block>>,
    pub(super) answer: Vec<u32>,
    pub(super) published: Arc<AtomicBool>,
    /// Bytes that were copied from the device.
    pub saved_bytes: u64,
    /// Seconds that copying took.
    pub save_s: f64,
}

impl Pending {
    /// The answer was delivered: its state and the evictions that make room for it become visible together.
    pub fn commit(self) -> Published {
        let published = self.store.publish(&self.key, &self.chain, &self.answer);
        self.published.store(true, Ordering::Release);
        published
    }
}
