//! One token ahead: the device goes on with its own choice before the host has read it.
//!
//! A captured token ends by leaving its choice and the next position where the next token reads them, so that one can be queued
//! at once, and the device never waits for the host. What was computed so and is not wanted is waited for and forgotten: nothing
//! else of the engine knows of it, its row of the KV cache lies beyond the sequence, its routes are not counted, and what its kernels
//! found wrong is nobody's error. It leaves one thing behind, its logits in the place of those before; who asks for these has that
//! token computed again, with the same bits.

use super::Engine;
use super::captured::{Cold, Step};
use crate::device::{Device, DownloadId};
use crate::error::EngineError;
use assay_kernels::Choice;

/// A token that the device computes without having been asked for it.
pub(super) struct Ahead {
    pub(super) step: Step,
    /// The one that chose it.
    pub(super) before: Step,
    pub(super) download: DownloadId,
}

impl<D: Device> Engine<D> {
    /// [`Engine::decode`], and where `more` is said the device goes on with the choice while the caller looks at it: `more` says that the
    /// caller will, in all likelihood, decode the answer next. Bits and counts are those of [`Engine::decode`], whatever comes next; only
    /// [`Engine::last_logits`] takes a token's time while one is ahead. Nothing is ahead at the end of the context, in a trace, and
    /// where an expert is cold or the copy engine's path is taken.
    ///
    /// # Errors
    /// As [`Engine::decode`]. What is wrong with the token ahead is said when it is decoded, or never.
    pub fn decode_ahead(&mut self, token: u32, more: bool) -> Result<u32, EngineError> {
        self.decode_as(token, None, more)
    }

    /// Waits for a step, and notes what is behind it.
    pub(super) fn finish_step(
        &mut self,
        step: Step,
        choice: Option<Choice>,
        (download, mut next): (DownloadId, Option<DownloadId>),
        outputs: &mut [u32],
    ) -> Result<(), EngineError> {
        let mut finished = self.device.finish_download(download, bytemuck::cast_slice_mut(outputs));
        if finished.is_err() && next.take().is_some() {
            // Either may be at fault. Alone, this one says so again, or it was the other.
            self.device.abandon();
            let alone = self.queue_step(step, choice, Cold::None)?;
            finished = self.device.finish_download(alone, bytemuck::cast_slice_mut(outputs));
        }
        finished?;
        if let (Some(captured), Some(&chosen)) = (&mut self.captured, outputs.first()) {
            let then = Step { token: chosen, position: step.position + 1 };
            // A sampled choice is not the one that the graph has left for the next step.
            captured.inputs = (next.is_none() && choice.is_none()).then_some(then);
            captured.ahead = next.map(|download| Ahead { step: then, before: step, download });
            captured.logits_lost = None;
        }
        Ok(())
    }

    /// Computes a step that was computed before, for its logits. Something was ahead of it, so every expert was resident, and still is.
    fn compute_again(&mut self, step: Step) -> Result<(), EngineError> {
        let download = self.queue_step(step, None, Cold::None)?;
        let mut outputs = vec![0u32; self.captured.as_ref().map_or(0, |captured| captured.exchange.outputs.len())];
        self.finish_step(step, None, (download, None), &mut outputs)
    }

    /// Once nothing is queued any more: of what the device holds nothing is known.
    pub(super) fn forget_captured(&mut self) {
        if let Some(captured) = &mut self.captured {
            (captured.inputs, captured.ahead, captured.logits_lost) = (None, None, None);
        }
    }

    /// The token ahead, if it is this one; any other is discarded.
    pub(super) fn take_ahead(&mut self, step: Step) -> Result<Option<DownloadId>, EngineError> {
        let captured = self.captured.as_mut();
        match captured.and_then(|captured| captured.ahead.take_if(|ahead| ahead.step == step)) {
            Some(ahead) => Ok(Some(ahead.download)),
            None => self.discard_ahead().map(|()| None),
        }
    }

    /// Waits for the token ahead and forgets it.
    pub(super) fn discard_ahead(&mut self) -> Result<(), EngineError> {
        let Some(captured) = &mut self.captured else { return Ok(()) };
        let Some(ahead) = captured.ahead.take() else { return Ok(()) };
        captured.logits_lost = Some(ahead.before);
        Ok(self.device.discard_download(ahead.download)?)
    }

    /// Has the logits be those of the last token that was decoded.
    pub(super) fn restore_logits(&mut self) -> Result<(), EngineError> {
        let restored = self.discard_ahead().and_then(|()| {
            let Some(lost) = self.captured.as_ref().and_then(|captured| captured.logits_lost) else { return Ok(()) };
            self.compute_again(lost)
        });
        restored.inspect_err(|_| self.recover(Vec::new()))
    }

    /// The logits are another token's from here on, or nobody's.
    pub(super) fn logits_replaced(&mut self) {
        if let Some(captured) = &mut self.captured {
            captured.logits_lost = None;
        }
    }
}
