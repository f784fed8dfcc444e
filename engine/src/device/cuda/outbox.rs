//! Downloads that nobody waits for yet: each has a pinned place, and an event that says when its bytes are there.

use assay_kernels::cuda::CudaError;

use super::super::{DeviceError, DownloadId};
use super::driver::{Pinned, Queue, Signal, copy_out};

/// Downloads under way: of a token, and of the one ahead.
const PLACES: usize = 2;

/// The least size of a place, in bytes.
const LEAST: usize = 4 << 10;

#[derive(Debug)]
struct Place {
    memory: Pinned,
    arrived: Signal,
    /// Bytes under way.
    holds: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Outbox(Vec<Place>);

impl Outbox {
    pub(super) fn new() -> Result<Self, CudaError> {
        let place = |_| Ok(Place { memory: Pinned::new(LEAST)?, arrived: Signal::new()?, holds: None });
        (0..PLACES).map(place).collect::<Result<_, _>>().map(Self)
    }

    /// Queues a copy of `bytes` of device memory at `from`.
    pub(super) fn begin(&mut self, queue: &Queue, from: u64, bytes: usize) -> Result<DownloadId, DeviceError> {
        let free = self.0.iter_mut().enumerate().find(|(_, place)| place.holds.is_none());
        let (index, place) = free.ok_or(DeviceError::Unsupported { kernel: "a third download at once" })?;
        if place.memory.len() < bytes {
            place.memory = Pinned::new(bytes.next_power_of_two())?;
        }
        // SAFETY: pinned, and of no other download: the last one here has been waited for.
        unsafe { copy_out(queue, from, place.memory.as_ptr(), bytes)? };
        // From here on the place is in use, whatever happens.
        place.holds = Some(bytes);
        place.arrived.record(queue)?;
        Ok(DownloadId(index))
    }

    /// Waits for a download, and for nothing that was queued behind it.
    pub(super) fn wait(&mut self, download: DownloadId) -> Result<&[u8], DeviceError> {
        let unknown = DeviceError::Unsupported { kernel: "a download that was not begun" };
        let Some(place) = self.0.get_mut(download.0) else { return Err(unknown) };
        let Some(bytes) = place.holds.take() else { return Err(unknown) };
        if let Err(error) = place.arrived.synchronize() {
            place.holds = Some(bytes);
            return Err(error.into());
        }
        place.memory.part(0, bytes).ok_or(unknown)
    }

    /// Forgets all of them; the stream has been waited for.
    pub(super) fn clear(&mut self) {
        self.0.iter_mut().for_each(|place| place.holds = None);
    }
}
