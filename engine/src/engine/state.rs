//! Rows of the KV cache in and out of host memory, a split of 128 positions at a time: a split's bytes are contiguous in every
//! layer, whatever the format (`assay_kernels::KvLayout`).

use std::sync::Arc;

use super::Engine;
use super::sequence::Sequence;
use crate::device::kernel::KvSpan;
use crate::device::{Device, DeviceError, Span, Upload};
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

    /// Copies splits of every layer to host memory, each `[split_bytes]`, layers in order.
    ///
    /// # Errors
    /// A split outside the cache, memory of another length, device errors.
    pub(crate) fn save_splits<'a>(
        &mut self,
        splits: impl Iterator<Item = (usize, &'a mut [u8])>,
    ) -> Result<(), EngineError> {
        self.discard_ahead()?;
        let mut pieces = Vec::new();
        for (split, to) in splits {
            let mut rest = to;
            for kv in &self.kv {
                let span = split_of(kv, split)?;
                let (bytes, after) =
                    rest.split_at_mut_checked(span.len()).ok_or(EngineError::TooLarge { what: "a saved split" })?;
                pieces.push((span, bytes));
                rest = after;
            }
        }
        // A layer's neighbours are neighbours on the device.
        pieces.sort_by_key(|(span, _)| span.address());
        Ok(self.device.download_all(pieces)?)
    }

    /// Starts copying saved splits back to where they were, the first of `blocks` being split `first`, and makes `tokens`, whose
    /// prefix the sequence is, the sequence: prefill wrote their rows. Prefill waits for each layer's rows before it needs them.
    ///
    /// # Errors
    /// A split outside the cache, device errors: the sequence is then as before. What fails later is the error of the prefill, and the
    /// sequence is then as before this call.
    pub(crate) fn restore<B>(&mut self, tokens: &[u32], first: usize, blocks: &[Arc<B>]) -> Result<(), EngineError>
    where
        B: AsRef<[u8]> + Send + Sync + 'static,
    {
        let (mut layers, mut offset) = (Vec::with_capacity(self.kv.len()), 0);
        for kv in &self.kv {
            let range = offset..offset + layer_split_bytes(&kv.layout);
            let upload = |(index, block): (usize, &Arc<B>)| {
                Ok(Upload { source: block.clone(), range: range.clone(), to: split_of(kv, first + index)? })
            };
            layers.push(blocks.iter().enumerate().map(upload).collect::<Result<Vec<_>, DeviceError>>()?);
            offset = range.end;
        }
        self.discard_ahead()?;
        self.logits_replaced();
        self.device.begin_uploads(layers)?;
        let known = self.position.min(tokens.len());
        self.restoring = Some(known);
        self.sequence.append_prefilled(&tokens[known..]);
        self.position = tokens.len();
        Ok(())
    }

    /// Has what is queued from now on find the restored rows of the layers up to and with `layer`.
    pub(super) fn await_rows(&mut self, layer: usize) -> Result<(), EngineError> {
        if self.restoring.is_some() {
            self.device.await_upload(layer)?;
        }
        Ok(())
    }

    /// Every layer's restored rows are there.
    ///
    /// # Errors
    /// Device errors: the sequence is then as before the restoration.
    pub(crate) fn finish_restoring(&mut self) -> Result<(), EngineError> {
        let arrived = self.kv.len().checked_sub(1).map_or(Ok(()), |last| self.await_rows(last));
        match arrived {
            Ok(()) => self.restoring = None,
            Err(_) => self.forget_restored(),
        }
        arrived
    }

    /// Rows that may not all be there are not those of any token.
    pub(super) fn forget_restored(&mut self) {
        if let Some(known) = self.restoring.take() {
            self.truncate(known);
        }
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
