//! Rows of the KV cache in and out of host memory, a split of 128 positions at a time: a split's bytes are contiguous in every
//! layer, whatever the format (`assay_kernels::KvLayout`).

use super::Engine;
use super::sequence::Sequence;
use crate::device::kernel::KvSpan;
use crate::device::{Device, DeviceError, Span};
use crate::error::EngineError;
use assay_kernels::KvLayout;

impl<D: Device> Engine<D> {
    /// The tokens whose rows the device holds.
    pub fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// Shape of every layer's cache.
    pub fn kv_layouts(&self) -> impl Iterator<Item = KvLayout> + '_ {
        self.kv.iter().map(|kv| kv.layout)
    }

    /// Bytes that the keys and values of one split take in all layers together.
    pub fn split_bytes(&self) -> usize {
        self.kv.iter().map(|kv| layer_split_bytes(&kv.layout)).sum()
    }

    /// Copies a split of every layer into `to`, `[split_bytes]`, layers in order.
    ///
    /// # Errors
    /// A split outside the cache, device errors.
    pub(crate) fn save_split(&mut self, split: usize, to: &mut [u8]) -> Result<(), EngineError> {
        let mut rest = to;
        for index in 0..self.kv.len() {
            let span = split_of(&self.kv[index], split)?;
            let (bytes, after) = std::mem::take(&mut rest)
                .split_at_mut_checked(span.len())
                .ok_or(EngineError::TooLarge { what: "a saved split" })?;
            self.device.download(span, bytes)?;
            rest = after;
        }
        Ok(())
    }

    /// Queues the copy of a saved split back to where it was.
    ///
    /// # Errors
    /// As [`Engine::save_split`].
    pub(crate) fn restore_split(&mut self, split: usize, from: &[u8]) -> Result<(), EngineError> {
        let mut rest = from;
        for index in 0..self.kv.len() {
            let span = split_of(&self.kv[index], split)?;
            let (bytes, after) =
                rest.split_at_checked(span.len()).ok_or(EngineError::TooLarge { what: "a saved split" })?;
            self.device.upload(bytes, span)?;
            rest = after;
        }
        Ok(())
    }

    /// Waits for restored splits, and makes `tokens`, whose prefix the sequence is, the sequence: prefill wrote their rows.
    ///
    /// # Errors
    /// Device errors: the sequence is then as before.
    pub(crate) fn resume(&mut self, tokens: &[u32]) -> Result<(), EngineError> {
        self.device.synchronize()?;
        let known = self.position.min(tokens.len());
        self.sequence.append_prefilled(&tokens[known..]);
        self.position = tokens.len();
        Ok(())
    }

    /// After a failed restoration: nothing queued.
    pub(crate) fn abandon_restore(&mut self) {
        self.recover(Vec::new());
    }
}

fn layer_split_bytes(layout: &KvLayout) -> usize {
    // A cache exists, so its sizes do not overflow.
    layout.prefix_bytes(1).unwrap_or(0)
}

fn split_of(kv: &KvSpan, split: usize) -> Result<Span<u8>, DeviceError> {
    let bytes = layer_split_bytes(&kv.layout);
    kv.bytes.part(split.saturating_mul(bytes), bytes)
}
