//! What the engine asks of a device: memory, two streams, events and kernel launches.
//!
//! The engine is written once, generic over [`Device`]. [`host::HostDevice`] runs the CPU kernels over an arena of exactly the
//! budget's size; [`cuda::CudaDevice`] runs CUDA kernels in a budget of a card's memory. Work is queued on two streams, [`Stream::Compute`] and
//! [`Stream::Copy`]; within a stream it runs in order, between streams only events order it.
//!
//! - [`cuda`]: NVIDIA GPUs
//! - `ranges`: the allocator that both share. `fault`: injected failures
//! - [`span`]: typed addresses ([`Span`]) and owned allocations ([`Buffer`])
//! - [`kernel`]: every kernel the engine may launch, as data
//! - `team`: threads of the host that compute experts for a captured token
//! - [`host`]: the device without a GPU

pub mod cuda;
mod fault;
pub mod host;
pub mod kernel;
mod ranges;
pub mod span;
mod team;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub use fault::FaultPlan;
pub use kernel::{Arithmetic, Kernel, Launch};
pub use span::{ALIGNMENT, Buffer, Carver, Span, align_up};

use crate::bank::HostBank;
use kernel::TeamWork;

/// Kinds of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// CPU kernels over an arena.
    Host,
    /// An NVIDIA GPU.
    Cuda,
}

impl DeviceKind {
    /// The name in configs and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Cuda => "cuda",
        }
    }
}

/// The two queues of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Kernels and the small uploads they read.
    Compute,
    /// Expert weights on their way over the link.
    Copy,
}

/// A point in a stream's order that another stream can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The stream it was recorded on.
    pub stream: Stream,
    /// How many pieces of work that stream had been given.
    pub sequence: u64,
}

/// Captured launches of one device, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphId(pub usize);

/// A download that was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DownloadId(pub usize);

/// What the link has carried since the device was made.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LinkCounters {
    /// Bytes of expert weights copied to the device.
    pub bytes: u64,
    /// Copies made.
    pub copies: u64,
    /// Experts that the host computed where they lay.
    pub by_host: u64,
    /// From the moment that a thread of the host sees a request for them to its answer, of all requests.
    pub host_time: Duration,
    /// Time those copies take on the declared link, in seconds. Zero where the link is real.
    pub modelled_s: f64,
}

/// Host memory that is to be copied to the device.
#[derive(Clone)]
pub struct Upload {
    /// Where it lies.
    pub source: Arc<dyn AsRef<[u8]> + Send + Sync>,
    /// Which bytes of that.
    pub range: Range<usize>,
    /// As many bytes of the device.
    pub to: Span<u8>,
}

impl Upload {
    /// The bytes; none where the range is not in the source.
    pub fn bytes(&self) -> &[u8] {
        (*self.source).as_ref().get(self.range.clone()).unwrap_or_default()
    }
    /// Refuses a range that is not in its source, or not as long as its destination.
    ///
    /// # Errors
    /// `Length`.
    pub fn check(&self) -> Result<(), DeviceError> {
        let (expected, found) = (self.to.size(), self.bytes().len() as u64);
        if expected == found { Ok(()) } else { Err(DeviceError::Length { what: "upload", expected, found }) }
    }
}

/// What of the budget the driver has, and not the engine's arena. Bytes, as the driver's gauge of the whole card sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overhead {
    /// Context, kernels' code and streams: taken off the budget when the device was opened.
    pub context_bytes: u64,
    /// Kept out of the arena for captured graphs.
    pub graphs_reserved_bytes: u64,
    /// What the card's free memory has shrunk by since the arena was taken: captured graphs, and whatever else runs there.
    pub graphs_bytes: u64,
}

/// A device error; every variant names what was asked and what was there.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DeviceError {
    /// A budget with no room beside the driver's own.
    #[error(
        "a budget of {budget} bytes leaves nothing beside the CUDA context: {taken} bytes of the card went while it was opened (a \
         context takes about 0.6 GB; more means that another process took memory at the same time)"
    )]
    NoRoomBesideContext {
        /// Bytes asked for.
        budget: u64,
        /// Bytes by which the card's free memory shrank.
        taken: u64,
    },
    /// The budget has no contiguous room.
    #[error(
        "out of device memory: {label} needs {requested} bytes, the largest free range has {largest_free} of a {budget}-byte budget"
    )]
    OutOfMemory {
        /// What the memory was for.
        label: &'static str,
        /// Bytes asked for.
        requested: u64,
        /// Largest contiguous free range.
        largest_free: u64,
        /// The whole budget.
        budget: u64,
    },
    /// An address outside what is allocated, or misaligned.
    #[error("{what}: bytes {address}..{end} are not inside one live allocation of this device")]
    BadAddress {
        /// The operand.
        what: &'static str,
        /// First byte.
        address: u64,
        /// One past the last byte.
        end: u64,
    },
    /// A kernel's output overlaps another operand.
    #[error("{kernel}: operands at byte {first} and byte {second} overlap and one of them is written")]
    Overlap {
        /// The kernel.
        kernel: &'static str,
        /// Address of the one.
        first: u64,
        /// Address of the other.
        second: u64,
    },
    /// Lengths that do not belong together.
    #[error("{what}: expected {expected} bytes, found {found}")]
    Length {
        /// The operand.
        what: &'static str,
        /// Bytes expected.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// A copy did not complete.
    #[error("copy {copy} of {bytes} bytes to the device failed")]
    CopyFailed {
        /// Which copy, counted from 1.
        copy: u64,
        /// Its size.
        bytes: u64,
    },
    /// An event was waited for and never fired.
    #[error("event {event} on the {stream:?} stream never fired")]
    EventLost {
        /// Which event, counted from 1.
        event: u64,
        /// The stream it was recorded on.
        stream: Stream,
    },
    /// The kernel refused its operands.
    #[error(transparent)]
    Kernel(#[from] assay_kernels::KernelError),
    /// A route chose an expert whose weights are not on the device.
    #[error("expert {expert} is routed to but has no address in the table")]
    ExpertAbsent {
        /// Expert within its layer.
        expert: usize,
    },
    /// The CUDA driver or a launcher refused.
    #[error(transparent)]
    Cuda(#[from] assay_kernels::cuda::CudaError),
    /// NVML, which says how full a card is before a context takes its part, is not there or refused.
    #[error("NVML ({call}): {reason}; it comes with the NVIDIA driver (libnvidia-ml.so.1)")]
    Nvml {
        /// What was asked.
        call: &'static str,
        /// NVML's words.
        reason: String,
    },
    /// A kernel that this device does not have.
    #[error("{kernel}: this device does not have it")]
    Unsupported {
        /// The kernel.
        kernel: &'static str,
    },
    /// A kernel that needs more scratch memory than its launch has.
    #[error("{kernel}: scratch memory of {found} bytes, expected at least {expected}")]
    Scratch {
        /// The kernel.
        kernel: &'static str,
        /// Bytes it needs.
        expected: u64,
        /// Bytes it was given.
        found: u64,
    },
    /// A kernel found something wrong in its data.
    #[error("a CUDA kernel found {what} at index {index}")]
    Data {
        /// What it found.
        what: &'static str,
        /// Where in the operand.
        index: u32,
    },
    /// The host's threads have not computed what a captured token asked for.
    #[error(
        "the host's threads have not computed the experts of MoE layer {layer} that a token needed; from here on experts are copied without \
         them"
    )]
    HostSilent {
        /// Among the layers that have experts.
        layer: usize,
    },
    /// The system refused a thread.
    #[error("cannot start a thread for experts on the host (--host-threads 0 does without): {reason}")]
    Thread {
        /// The system's words.
        reason: String,
    },
    /// The system refused memory or protection for the arena.
    #[error("cannot map a device arena of {bytes} bytes: {reason}")]
    Arena {
        /// Size asked for.
        bytes: u64,
        /// The system's words.
        reason: String,
    },
}

/// A device with a byte-exact memory budget.
pub trait Device {
    /// What it is.
    fn kind(&self) -> DeviceKind;
    /// The budget in bytes; what a driver takes for itself has been taken off.
    fn budget(&self) -> u64;
    /// Bytes not allocated now.
    fn free_bytes(&self) -> u64;
    /// Fewest bytes that were free since the last call; starts over from now.
    fn take_low_water(&mut self) -> u64;
    /// Allocates `bytes`, aligned to [`ALIGNMENT`]. The contents are undefined.
    fn allocate(&mut self, bytes: u64, label: &'static str) -> Result<Buffer, DeviceError>;
    /// Gives an allocation back. Work that still uses it must have been waited for.
    fn free(&mut self, buffer: Buffer);
    /// Prepares the bank for [`Device::copy_from_bank`], e.g. by registering its pages with a driver.
    fn adopt_bank(&mut self, bank: &Arc<HostBank>) -> Result<(), DeviceError>;
    /// Queues a copy of expert weights from the host bank on the copy stream.
    fn copy_from_bank(&mut self, bank: &Arc<HostBank>, source: Range<usize>, to: Span<u8>) -> Result<(), DeviceError>;
    /// Queues a small upload on the compute stream; the bytes are taken at once.
    fn upload(&mut self, bytes: &[u8], to: Span<u8>) -> Result<(), DeviceError>;
    /// Waits for the compute stream, then copies device memory to the host.
    fn download(&mut self, from: Span<u8>, to: &mut [u8]) -> Result<(), DeviceError>;
    /// Starts copying groups of host memory to the device in their order, once the compute stream is done. A device may go on behind
    /// the caller: what reads or writes a group's destinations is queued behind [`Device::await_upload`]. Groups that are still
    /// under way from an earlier call are waited for and forgotten.
    fn begin_uploads(&mut self, groups: Vec<Vec<Upload>>) -> Result<(), DeviceError> {
        groups.iter().flatten().try_for_each(|upload| self.upload(upload.bytes(), upload.to))
    }
    /// Waits until the first groups of the last [`Device::begin_uploads`], up to and with `group`, are there for whatever is queued from
    /// now on. Says the same again, an error too.
    fn await_upload(&mut self, _group: usize) -> Result<(), DeviceError> {
        Ok(())
    }
    /// [`Device::download`] of much at once.
    fn download_all(&mut self, pieces: Vec<(Span<u8>, &mut [u8])>) -> Result<(), DeviceError> {
        pieces.into_iter().try_for_each(|(from, to)| self.download(from, to))
    }
    /// Queues a kernel on the compute stream.
    fn launch(&mut self, kernel: Kernel, how: Launch) -> Result<(), DeviceError>;
    /// Queues kernels in their order, which a device may do with fewer launches. What one of them writes and a later one of them
    /// reads, nothing else reads: afterwards it may hold anything, the output of [`Kernel::RmsNorm`] apart.
    fn launch_all(&mut self, kernels: &[Kernel], how: Launch) -> Result<(), DeviceError> {
        kernels.iter().try_for_each(|kernel| self.launch(*kernel, how))
    }
    /// Records an event after all work now queued on `stream`.
    fn record(&mut self, stream: Stream) -> Result<Event, DeviceError>;
    /// Makes later work on `stream` wait for `event`.
    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DeviceError>;
    /// Whether it captures launches, and has [`Kernel::FetchExperts`].
    fn fetches(&self) -> bool {
        false
    }
    /// Has threads of the host compute experts of the adopted bank for [`Kernel::FetchExperts`], in the place of those hired before, as after
    /// [`Device::dismiss`]; whether it can.
    fn hire(&mut self, _: TeamWork) -> Result<bool, DeviceError> {
        Ok(false)
    }
    /// Lets them go, and forgets the graphs that ask them.
    fn dismiss(&mut self) {}
    /// How long they take for these experts of a layer, counted among those that have experts. Nothing may be queued.
    fn time_team(&mut self, _layer: usize, _experts: &[u32]) -> Result<Duration, DeviceError> {
        Err(DeviceError::Unsupported { kernel: "a team of the host" })
    }
    /// Whether its kernels for the experts take slots in the order of [`Kernel::Permute`].
    fn sorts_slots(&self, _: Arithmetic) -> bool {
        true
    }
    /// From here to [`Device::end_capture`] launches on the compute stream are written down and not run.
    fn begin_capture(&mut self) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported { kernel: "capture" })
    }
    /// What was launched since [`Device::begin_capture`].
    fn end_capture(&mut self) -> Result<GraphId, DeviceError> {
        Err(DeviceError::Unsupported { kernel: "capture" })
    }
    /// Queues what was captured, on the compute stream.
    fn replay(&mut self, _: GraphId) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported { kernel: "replay" })
    }
    /// Queues a copy of device memory to the host behind what is queued on the compute stream, for [`Device::finish_download`] or
    /// [`Device::discard_download`]; at most two are under way. Only on a device that captures.
    fn begin_download(&mut self, _: Span<u8>) -> Result<DownloadId, DeviceError> {
        Err(DeviceError::Unsupported { kernel: "a download that is not waited for" })
    }
    /// Waits for a download, not for what was queued behind it, and copies its bytes out. What kernels found wrong in their data is its
    /// error, those behind it included, as far as they have come.
    fn finish_download(&mut self, _: DownloadId, _: &mut [u8]) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported { kernel: "a download that is not waited for" })
    }
    /// Waits for a download with nothing queued behind it, and forgets it together with what kernels found wrong.
    fn discard_download(&mut self, _: DownloadId) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported { kernel: "a download that is not waited for" })
    }
    /// Waits for both streams.
    fn synchronize(&mut self) -> Result<(), DeviceError>;
    /// After an error: drops what is still queued, so that the next request starts from nothing.
    fn abandon(&mut self);
    /// Sets which of the coming calls fail, in place of what was set before, and says what of that has not happened. `None` on a
    /// device that fails only by itself.
    fn plant(&mut self, _: FaultPlan) -> Option<FaultPlan> {
        None
    }
    /// What the link has carried.
    fn link(&self) -> LinkCounters;
    /// What the driver takes beside the arena; `None` where there is no driver. Takes a millisecond: not for the token path.
    fn overhead(&self) -> Result<Option<Overhead>, DeviceError> {
        Ok(None)
    }
}

/// So that a caller can choose the device at run time.
impl Device for Box<dyn Device> {
    fn kind(&self) -> DeviceKind {
        (**self).kind()
    }
    fn budget(&self) -> u64 {
        (**self).budget()
    }
    fn free_bytes(&self) -> u64 {
        (**self).free_bytes()
    }
    fn take_low_water(&mut self) -> u64 {
        (**self).take_low_water()
    }
    fn allocate(&mut self, bytes: u64, label: &'static str) -> Result<Buffer, DeviceError> {
        (**self).allocate(bytes, label)
    }
    fn free(&mut self, buffer: Buffer) {
        (**self).free(buffer);
    }
    fn adopt_bank(&mut self, bank: &Arc<HostBank>) -> Result<(), DeviceError> {
        (**self).adopt_bank(bank)
    }
    fn copy_from_bank(&mut self, bank: &Arc<HostBank>, source: Range<usize>, to: Span<u8>) -> Result<(), DeviceError> {
        (**self).copy_from_bank(bank, source, to)
    }
    fn upload(&mut self, bytes: &[u8], to: Span<u8>) -> Result<(), DeviceError> {
        (**self).upload(bytes, to)
    }
    fn download(&mut self, from: Span<u8>, to: &mut [u8]) -> Result<(), DeviceError> {
        (**self).download(from, to)
    }
    fn begin_uploads(&mut self, groups: Vec<Vec<Upload>>) -> Result<(), DeviceError> {
        (**self).begin_uploads(groups)
    }
    fn await_upload(&mut self, group: usize) -> Result<(), DeviceError> {
        (**self).await_upload(group)
    }
    fn download_all(&mut self, pieces: Vec<(Span<u8>, &mut [u8])>) -> Result<(), DeviceError> {
        (**self).download_all(pieces)
    }
    fn launch(&mut self, kernel: Kernel, how: Launch) -> Result<(), DeviceError> {
        (**self).launch(kernel, how)
    }
    fn launch_all(&mut self, kernels: &[Kernel], how: Launch) -> Result<(), DeviceError> {
        (**self).launch_all(kernels, how)
    }
    fn record(&mut self, stream: Stream) -> Result<Event, DeviceError> {
        (**self).record(stream)
    }
    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        (**self).wait(stream, event)
    }
    fn fetches(&self) -> bool {
        (**self).fetches()
    }
    fn hire(&mut self, work: TeamWork) -> Result<bool, DeviceError> {
        (**self).hire(work)
    }
    fn dismiss(&mut self) {
        (**self).dismiss();
    }
    fn time_team(&mut self, layer: usize, experts: &[u32]) -> Result<Duration, DeviceError> {
        (**self).time_team(layer, experts)
    }
    fn sorts_slots(&self, arithmetic: Arithmetic) -> bool {
        (**self).sorts_slots(arithmetic)
    }
    fn begin_capture(&mut self) -> Result<(), DeviceError> {
        (**self).begin_capture()
    }
    fn end_capture(&mut self) -> Result<GraphId, DeviceError> {
        (**self).end_capture()
    }
    fn replay(&mut self, graph: GraphId) -> Result<(), DeviceError> {
        (**self).replay(graph)
    }
    fn begin_download(&mut self, from: Span<u8>) -> Result<DownloadId, DeviceError> {
        (**self).begin_download(from)
    }
    fn finish_download(&mut self, download: DownloadId, to: &mut [u8]) -> Result<(), DeviceError> {
        (**self).finish_download(download, to)
    }
    fn discard_download(&mut self, download: DownloadId) -> Result<(), DeviceError> {
        (**self).discard_download(download)
    }
    fn synchronize(&mut self) -> Result<(), DeviceError> {
        (**self).synchronize()
    }
    fn abandon(&mut self) {
        (**self).abandon();
    }
    fn plant(&mut self, plan: FaultPlan) -> Option<FaultPlan> {
        (**self).plant(plan)
    }
    fn link(&self) -> LinkCounters {
        (**self).link()
    }
    fn overhead(&self) -> Result<Option<Overhead>, DeviceError> {
        (**self).overhead()
    }
}
