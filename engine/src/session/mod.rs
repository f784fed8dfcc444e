//! Sessions: requests that begin as an earlier one did do not compute that beginning again.
//!
//! - [`turn`]: a request from reservation to commit; `Sessions` (this file): what joins it with an engine
//! - [`store`]: what is kept in host memory, by a limit; [`tree`]: how; [`rows`]: in which memory; [`memory`]: how much is left
//!
//! **What is reused is a function of the token ids alone.** Only rows that prefill wrote, at their absolute positions, are reused:
//! rows that decode wrote are prefilled again together with the next message, because prefill need not give a row the bits that
//! decode gives it. Prefill itself gives a row the same bits whatever chunk it came in. So a continued conversation answers as
//! one that is sent afresh, to the bit.
//!
//! **Nothing happens before delivery.** [`Sessions::begin`] reserves and changes nothing that is kept; [`Sessions::finish`]
//! copies what is new to host memory; [`Pending::commit`], called when the answer has been delivered in full, publishes it
//! together with the evictions it needs. Dropping a [`Turn`] or a [`Pending`] at any time leaves what is kept as it was.

mod memory;
mod rows;
mod store;
mod sync;
mod tree;
mod turn;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Instant;

use assay_kernels::KvLayout;

use crate::device::{Arithmetic, Device, DeviceKind};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::options::Precision;
pub use memory::headroom;
use rows::Rows;
pub use store::{Store, StoreOptions, StoreUsage};
use sync::{AtomicBool, Ordering};
use tree::{Block, SPLIT, shared};
pub use tree::{Published, kept_bytes};
pub use turn::{Pending, Source, Turn};

/// Everything of an engine that its rows depend on, tokens apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Signature {
    checkpoint_sha256: String,
    precision: Precision,
    device: DeviceKind,
    prefill: Arithmetic,
    layers: Vec<KvLayout>,
}

impl Signature {
    /// Of an engine over the checkpoint with this fingerprint.
    pub fn of<D: Device>(engine: &Engine<D>, checkpoint_sha256: &str) -> Self {
        let options = engine.options();
        Self {
            checkpoint_sha256: checkpoint_sha256.to_owned(),
            precision: options.precision,
            device: options.device,
            prefill: options.prefill,
            // Where a row lies does not depend on how many there may be.
            layers: engine.kv_layouts().map(|layout| KvLayout { capacity_tokens: 0, ..layout }).collect(),
        }
    }
}

/// Who may share state with whom: requests of one template and one tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Scope {
    /// Fingerprint of the template that rendered the tokens; empty for token ids as they came.
    pub template: String,
    /// Whose requests they are; what one tenant sends is neither reused for another nor felt by it.
    pub tenant: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    signature: Arc<Signature>,
    scope: Scope,
}

/// What of the sequence on the device may be reused.
#[derive(Debug)]
struct Active {
    scope: Scope,
    /// Tokens of it that were published before the request that wrote the rest.
    base: usize,
    /// Whether that request has been published.
    published: Arc<AtomicBool>,
}

/// A request that could not be continued or kept.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The engine does not hold what the request was.
    #[error("the engine holds {found} prefilled tokens of the request, expected all {expected}")]
    Unfinished {
        /// Tokens that it holds.
        found: usize,
        /// Tokens of the request.
        expected: usize,
    },
    /// The engine's words.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// The sessions of one engine: one is active on the device, the others are in the store.
#[derive(Debug)]
pub struct Sessions {
    store: Arc<Store>,
    signature: Arc<Signature>,
    active: Option<Active>,
}

impl Sessions {
    /// For an engine over the checkpoint with this fingerprint. Several may share a store.
    pub fn new<D: Device>(engine: &Engine<D>, checkpoint_sha256: &str, store: Arc<Store>) -> Self {
        Self { store, signature: Arc::new(Signature::of(engine, checkpoint_sha256)), active: None }
    }

    /// What is kept.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Makes the device hold the longest beginning of `tokens` that may be reused, at most `most` tokens of it (0 for a fresh
    /// start), and always fewer than all: the last token's logits are computed.
    ///
    /// # Errors
    /// An empty request, device errors. What is kept has not changed then.
    pub fn begin<D: Device>(
        &mut self,
        engine: &mut Engine<D>,
        scope: &Scope,
        tokens: &[u32],
        most: usize,
    ) -> Result<Turn, SessionError> {
        let Some(last) = tokens.len().checked_sub(1) else { return Err(EngineError::EmptyPrompt.into()) };
        // A restoration for a request that was dropped; if it failed, its rows are forgotten, and nobody waits for them.
        let _ = engine.finish_restoring();
        let key = Key { signature: self.signature.clone(), scope: scope.clone() };
        let most = most.min(last);
        let (usable, computed) = self.usable(engine, scope, tokens);
        let active = usable.min(most);
        let found = self.store.find(&key, &tokens[..most]);
        let published = Arc::new(AtomicBool::new(false));
        engine.truncate(active);
        self.active = Some(Active { scope: scope.clone(), base: active, published: published.clone() });
        let mut turn = Turn {
            key,
            tokens: tokens.into(),
            published,
            reused: active,
            restored_bytes: 0,
            recomputed: computed.saturating_sub(active).min(tokens.len() - active),
            source: if active > 0 { Source::Active } else { Source::Fresh },
            restore_s: 0.0,
        };
        if found.tokens > active {
            let started = Instant::now();
            turn.restored_bytes = restore(engine, tokens, &found, active)?;
            turn.restore_s = started.elapsed().as_secs_f64();
            turn.reused = found.tokens;
            turn.source = Source::Restored;
            turn.recomputed = computed.saturating_sub(found.tokens).max(found.answered);
            if let Some(active) = &mut self.active {
                active.base = found.tokens;
            }
        }
        Ok(turn)
    }

    /// How many tokens of a request the device holds and may be reused, and how many it has computed in any way.
    fn usable<D: Device>(&self, engine: &Engine<D>, scope: &Scope, tokens: &[u32]) -> (usize, usize) {
        let Some(active) = self.active.as_ref().filter(|active| active.scope == *scope) else { return (0, 0) };
        let sequence = engine.sequence();
        if active.published.load(Ordering::Acquire) {
            return (shared(sequence.prefilled(), tokens), shared(sequence.tokens(), tokens));
        }
        let base = shared(sequence.prefilled(), tokens).min(active.base);
        (base, base)
    }

    /// Copies what the answered request added to host memory, for [`Pending::commit`]. Call it before the next
    /// [`Sessions::begin`]; where memory is short nothing is copied, and only the device still holds it.
    ///
    /// # Errors
    /// A request whose tokens were not all prefilled, device errors. What is kept has not changed then.
    pub fn finish<D: Device>(&mut self, engine: &mut Engine<D>, turn: Turn) -> Result<Pending, SessionError> {
        let Turn { key, tokens, published, .. } = turn;
        let found = shared(engine.sequence().prefilled(), &tokens);
        if found < tokens.len() {
            return Err(SessionError::Unfinished { found, expected: tokens.len() });
        }
        let answer = engine.sequence().tokens()[tokens.len()..].to_vec();
        let started = Instant::now();
        let (chain, saved_bytes) = save(engine, &self.store, &key, &tokens)?;
        let save_s = started.elapsed().as_secs_f64();
        Ok(Pending { store: self.store.clone(), key, chain, answer, published, saved_bytes, save_s })
    }
}

/// Starts copying the splits that hold positions from `active` on; the bytes. The sequence is then the first `found.tokens` of `tokens`.
fn restore<D: Device>(
    engine: &mut Engine<D>,
    tokens: &[u32],
    found: &tree::Found,
    active: usize,
) -> Result<u64, SessionError> {
    let first = active / SPLIT;
    let blocks = &found.blocks[first..];
    engine.restore(&tokens[..found.tokens], first, blocks)?;
    Ok(blocks.iter().map(|block| block.bytes.len() as u64).sum())
}

/// Blocks of the whole request: those that are kept already, and copies of the others. None where there is no memory for them.
fn save<D: Device>(
    engine: &mut Engine<D>,
    store: &Store,
    key: &Key,
    tokens: &[u32],
) -> Result<(Vec<Arc<Block>>, u64), SessionError> {
    let kept = store.find(key, tokens);
    let split_bytes = engine.split_bytes();
    let parts = tokens.chunks(SPLIT).enumerate();
    let is_kept = |split: usize, part: &[u32]| kept.blocks.get(split).filter(|block| block.tokens.starts_with(part));
    let missing = parts.clone().filter(|&(split, part)| is_kept(split, part).is_none()).count();
    if !store.has_room((missing * split_bytes) as u64) {
        return Ok((Vec::new(), 0));
    }
    let mut copies = Vec::with_capacity(missing);
    for (split, part) in parts.clone().filter(|&(split, part)| is_kept(split, part).is_none()) {
        let Ok(bytes) = Rows::new(split_bytes) else { return Ok((Vec::new(), 0)) };
        copies.push((split, Block { tokens: part.into(), bytes }));
    }
    engine.save_splits(copies.iter_mut().map(|(split, block)| (*split, block.bytes.bytes_mut())))?;
    let mut copies = copies.into_iter().map(|(_, block)| Arc::new(block));
    let chain = parts.filter_map(|(split, part)| is_kept(split, part).cloned().or_else(|| copies.next())).collect();
    Ok((chain, (missing * split_bytes) as u64))
}
