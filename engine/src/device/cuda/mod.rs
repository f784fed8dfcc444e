//! An NVIDIA GPU: an arena of the budget's size in its memory, two streams, registered host memory, and the CUDA kernels.
//!
//! The budget includes what the driver takes for the context and the kernels' code. Operands are not checked against live
//! allocations here, as the host device does for the same engine; launchers check shapes.
//!
//! - [`driver`]: streams, events, memory as owners
//! - [`gauge`]: memory of the whole card, as NVML sees it
//! - `clocks`: what holds the card's clocks back; `health`: what of CUDA is there
//! - [`roofline`]: what the card allows, measured
//! - [`staging`]: small uploads through pinned memory; [`outbox`]: small downloads that are waited for later; [`transfer`]: large copies both ways, by several threads
//! - [`execute`]: from a [`Kernel`] to the kernel crate's launchers; [`fuse`]: from several to one of them

mod clocks;
mod driver;
mod execute;
mod fuse;
mod gauge;
mod health;
mod outbox;
pub mod roofline;
mod staging;
mod transfer;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use assay_kernels::cuda::{Cuda, Fault, MAX_FETCHED};

use super::fault::{Countdown, FaultPlan};
use super::kernel::TeamWork;
use super::ranges::Ranges;
use super::team::{CommonMemory, Team};
use super::{
    Arithmetic, Buffer, Device, DeviceError, DeviceKind, DownloadId, Event, GraphId, Kernel, Launch, LinkCounters,
    Overhead, Span, Stream, Upload,
};
use crate::bank::HostBank;
use driver::{Graph, Memory, Pinned, Queue, Registered, Signal, copy_in, copy_out, device_address};
pub use health::{DeviceHealth, Health, health};

pub use clocks::CardClocks;
use gauge::Gauge;
pub use gauge::{CardMemory, Description, Gauge as CardGauge, describe};
use outbox::Outbox;
use staging::Staging;
use transfer::Transfers;

/// Enough for a context, its streams and the kernels' code, where a caller wants a budget that is sure to do: 0.55 GB on an H200.
pub const CONTEXT_BYTES: u64 = 1 << 30;

/// Kept out of the arena for captured graphs: about one for each doubling of the context, some hundred nodes a layer.
const GRAPHS_BYTES: u64 = 64 << 20;

/// Events that can be waited for apart. One that is older is waited for by a later one of its stream, which is only stricter.
const EVENTS: usize = 64;

/// Pinned bytes for downloads.
const DOWNLOAD: usize = 4 << 20;

/// One stream with its events.
struct Lane {
    queue: Queue,
    signals: Vec<Signal>,
    recorded: u64,
}

impl Lane {
    fn new() -> Result<Self, DeviceError> {
        let signals = (0..EVENTS).map(|_| Signal::new()).collect::<Result<_, _>>()?;
        Ok(Self { queue: Queue::new()?, signals, recorded: 0 })
    }
    fn signal(&self, sequence: u64) -> &Signal {
        &self.signals[sequence as usize % EVENTS]
    }
}

/// A captured graph, and whether it asks the team; it is gone when that is.
struct Captured {
    graph: Option<Graph>,
    asks: bool,
}

/// A GPU under a budget.
pub struct CudaDevice {
    // Dropped from the first to the last: the context goes when nothing is left in it.
    graphs: Vec<Captured>,
    team: Option<Team>,
    bank: Option<(Registered, Arc<HostBank>)>,
    staging: Staging,
    transfers: Transfers,
    outbox: Outbox,
    download: Pinned,
    lanes: [Lane; 2],
    _memory: Memory,
    ranges: Ranges,
    link: LinkCounters,
    allocations: Countdown,
    copies: Countdown,
    capturing: bool,
    /// Whether what is captured asks the team.
    asks: bool,
    gauge: Gauge,
    context_bytes: u64,
    /// Of the card when the arena was taken.
    free_after: u64,
    cuda: Cuda,
}

impl CudaDevice {
    /// Opens device `ordinal` and takes `budget` bytes of it, of which the context, the kernels' code and captured graphs are a
    /// part.
    ///
    /// # Errors
    /// `Cuda` where there is no driver or device; `OutOfMemory` where the budget is not free, `NoRoomBesideContext` where it is smaller than the
    /// context.
    pub fn new(ordinal: usize, budget: u64) -> Result<Self, DeviceError> {
        Self::open(ordinal, |overhead| budget.checked_sub(overhead + GRAPHS_BYTES).filter(|&bytes| bytes > 0), budget)
    }

    /// Opens device `ordinal` with `arena` bytes for the engine, beside whatever the context takes.
    ///
    /// # Errors
    /// As [`CudaDevice::new`].
    pub fn with_arena(ordinal: usize, arena: u64) -> Result<Self, DeviceError> {
        Self::open(ordinal, |_| Some(arena), arena)
    }

    fn open(ordinal: usize, arena: impl FnOnce(u64) -> Option<u64>, requested: u64) -> Result<Self, DeviceError> {
        let gauge = Gauge::new(ordinal)?;
        let before = gauge.read()?;
        let cuda = Cuda::open(ordinal)?;
        let lanes = [Lane::new()?, Lane::new()?];
        let (staging, transfers, outbox) = (Staging::new()?, Transfers::new()?, Outbox::new()?);
        let download = Pinned::new(DOWNLOAD)?;
        let free = gauge.read()?.free_bytes;
        let overhead_bytes = before.free_bytes.saturating_sub(free);
        let refused = || DeviceError::OutOfMemory {
            label: "the device arena, beside the CUDA context",
            requested,
            largest_free: free,
            budget: before.total_bytes,
        };
        let no_room = || DeviceError::NoRoomBesideContext { budget: requested, taken: overhead_bytes };
        let arena = arena(overhead_bytes).ok_or_else(no_room)?;
        let memory = Memory::new(arena).map_err(|error| match error.is_out_of_memory() {
            true => refused(),
            false => error.into(),
        })?;
        let free_after = gauge.read()?.free_bytes;
        Ok(Self {
            graphs: Vec::new(),
            team: None,
            bank: None,
            staging,
            transfers,
            outbox,
            download,
            lanes,
            ranges: Ranges::new(memory.address(), arena),
            _memory: memory,
            link: LinkCounters::default(),
            allocations: Countdown::default(),
            copies: Countdown::default(),
            capturing: false,
            asks: false,
            gauge,
            context_bytes: overhead_bytes,
            free_after,
            cuda,
        })
    }

    /// Sets which of the coming calls fail. Events are not injected here.
    pub fn inject(&mut self, plan: FaultPlan) {
        self.allocations.set(plan.fail_allocation);
        self.copies.set(plan.fail_copy);
    }

    fn lane(&self, stream: Stream) -> &Lane {
        &self.lanes[stream as usize]
    }

    /// Nothing that asks the team is under way.
    fn rest(&self) {
        if let Some(team) = &self.team {
            team.rest();
        }
    }

    /// After waiting: what kernels found wrong in their data.
    fn check_fault(&self) -> Result<(), DeviceError> {
        match self.cuda.take_fault() {
            None => Ok(()),
            Some(Fault::NotANumber(index)) => {
                Err(DeviceError::Data { what: "a NaN where a decision depends on it", index })
            }
            Some(Fault::ExpertAbsent(expert)) => Err(DeviceError::ExpertAbsent { expert: expert as usize }),
            Some(Fault::HostSilent(layer)) => Err(DeviceError::HostSilent { layer: layer as usize }),
            Some(Fault::Index(index)) => Err(DeviceError::Data { what: "an index out of range", index }),
        }
    }
}

impl CommonMemory for Pinned {
    fn start(&self) -> *mut u8 {
        self.as_ptr()
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // What follows is freed in the current context.
        let _ = self.cuda.bind();
        self.abandon();
    }
}

impl Device for CudaDevice {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cuda
    }
    fn budget(&self) -> u64 {
        self.ranges.budget()
    }
    fn free_bytes(&self) -> u64 {
        self.ranges.free_bytes()
    }
    fn take_low_water(&mut self) -> u64 {
        self.ranges.take_low_water()
    }

    fn allocate(&mut self, bytes: u64, label: &'static str) -> Result<Buffer, DeviceError> {
        if self.allocations.strikes() {
            return Err(DeviceError::OutOfMemory { label, requested: bytes, largest_free: 0, budget: self.budget() });
        }
        self.ranges.allocate(bytes, label)
    }

    fn free(&mut self, buffer: Buffer) {
        self.ranges.free(&buffer);
    }

    fn adopt_bank(&mut self, bank: &Arc<HostBank>) -> Result<(), DeviceError> {
        if !bank.is_empty() {
            // SAFETY: the bank's memory lives as long as the bank, which is kept beside its registration and dropped after it.
            let registered = unsafe { Registered::new(bank.as_ptr(), bank.len())? };
            self.bank = Some((registered, bank.clone()));
        }
        Ok(())
    }

    fn copy_from_bank(&mut self, bank: &Arc<HostBank>, source: Range<usize>, to: Span<u8>) -> Result<(), DeviceError> {
        let found = source.len() as u64;
        if found != to.size() {
            return Err(DeviceError::Length { what: "copy from the host bank", expected: to.size(), found });
        }
        let copy = self.link.copies + 1;
        let adopted = self.bank.as_ref().is_some_and(|(_, adopted)| Arc::ptr_eq(adopted, bank));
        let from = bank.bytes(source.clone()).filter(|_| adopted).ok_or(DeviceError::Length {
            what: "source range of a copy from the registered host bank",
            expected: if adopted { bank.len() as u64 } else { 0 },
            found: source.end as u64,
        })?;
        if self.copies.strikes() {
            return Err(DeviceError::CopyFailed { copy, bytes: found });
        }
        // SAFETY: registered, kept by `self.bank`, never written after loading; the engine owns `to`.
        unsafe { copy_in(&self.lane(Stream::Copy).queue, from.as_ptr(), to.address(), from.len())? };
        self.link.bytes += found;
        self.link.copies = copy;
        Ok(())
    }

    fn upload(&mut self, bytes: &[u8], to: Span<u8>) -> Result<(), DeviceError> {
        if bytes.len() as u64 != to.size() {
            return Err(DeviceError::Length { what: "upload", expected: to.size(), found: bytes.len() as u64 });
        }
        let queue = &self.lanes[Stream::Compute as usize].queue;
        Ok(self.staging.upload(queue, bytes, to.address())?)
    }

    fn download(&mut self, from: Span<u8>, to: &mut [u8]) -> Result<(), DeviceError> {
        if to.len() as u64 != from.size() {
            return Err(DeviceError::Length { what: "download", expected: from.size(), found: to.len() as u64 });
        }
        let queue = &self.lane(Stream::Compute).queue;
        let mut address = from.address();
        for piece in to.chunks_mut(self.download.len()) {
            // SAFETY: the buffer is pinned and not in use: the copy before was waited for.
            unsafe { copy_out(queue, address, self.download.as_ptr(), piece.len())? };
            queue.synchronize()?;
            if let Some(bytes) = self.download.part(0, piece.len()) {
                piece.copy_from_slice(bytes);
            }
            address += piece.len() as u64;
        }
        self.check_fault()
    }

    fn begin_uploads(&mut self, groups: Vec<Vec<Upload>>) -> Result<(), DeviceError> {
        groups.iter().flatten().try_for_each(Upload::check)?;
        self.lane(Stream::Compute).queue.synchronize()?;
        self.transfers.start(groups, || self.copies.strikes())
    }

    fn await_upload(&mut self, group: usize) -> Result<(), DeviceError> {
        self.transfers.wait(group)
    }

    fn download_all(&mut self, pieces: Vec<(Span<u8>, &mut [u8])>) -> Result<(), DeviceError> {
        for (from, to) in &pieces {
            if to.len() as u64 != from.size() {
                return Err(DeviceError::Length { what: "download", expected: from.size(), found: to.len() as u64 });
            }
        }
        self.lane(Stream::Compute).queue.synchronize()?;
        self.transfers.download(pieces.into_iter().map(|(from, to)| (from.address(), to)).collect())?;
        self.check_fault()
    }

    fn launch(&mut self, kernel: Kernel, how: Launch) -> Result<(), DeviceError> {
        self.launch_all(&[kernel], how)
    }

    fn launch_all(&mut self, kernels: &[Kernel], how: Launch) -> Result<(), DeviceError> {
        let stream = self.lane(Stream::Compute).queue.stream();
        let bank = self.bank.as_ref().map(|(registered, bank)| (registered.mapped(), bank.len()));
        let asks = kernels.iter().any(|kernel| matches!(kernel, Kernel::FetchExperts { team: Some(_), .. }));
        let team = match self.team.as_ref().filter(|_| asks) {
            Some(team) => {
                match self.capturing {
                    true => self.asks = true,
                    false => team.watch(),
                }
                let (start, answer_at) = team.memory();
                let request = device_address(start)?;
                Some((request, request + answer_at as u64))
            }
            None => None,
        };
        execute::Launcher { cuda: &self.cuda, stream, scratch: how.scratch, bank, team }
            .launch_all(kernels, how.arithmetic)
    }

    fn record(&mut self, stream: Stream) -> Result<Event, DeviceError> {
        let lane = &mut self.lanes[stream as usize];
        lane.recorded += 1;
        lane.signal(lane.recorded).record(&lane.queue)?;
        Ok(Event { stream, sequence: lane.recorded })
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        let signal = self.lane(event.stream).signal(event.sequence);
        Ok(self.lane(stream).queue.wait(signal)?)
    }

    fn fetches(&self) -> bool {
        true
    }

    fn hire(&mut self, work: TeamWork) -> Result<bool, DeviceError> {
        self.dismiss();
        let Some((_, bank)) = &self.bank else { return Ok(false) };
        if work.threads == 0 || work.top_k > MAX_FETCHED || !work.expert.hidden_size.is_multiple_of(4) {
            return Ok(false);
        }
        let team = Team::new(Arc::clone(bank), work, |bytes| {
            let mut memory = Pinned::mapped(bytes)?;
            memory.part_mut(0, bytes).into_iter().for_each(|bytes| bytes.fill(0));
            Ok(Box::new(memory))
        })?;
        self.upload(bytemuck::bytes_of(&team.sequence()), team.work().sequence.as_bytes())?;
        self.team = Some(team);
        Ok(true)
    }

    fn dismiss(&mut self) {
        if let Some(team) = self.team.take() {
            self.link.by_host += team.computed();
            self.link.host_time += team.spent();
            self.graphs.iter_mut().filter(|captured| captured.asks).for_each(|captured| captured.graph = None);
        }
    }

    fn time_team(&mut self, layer: usize, experts: &[u32]) -> Result<Duration, DeviceError> {
        let Some(team) = &mut self.team else { return Err(DeviceError::Unsupported { kernel: "a team of the host" }) };
        let taken = team.time(layer, experts);
        let (sequence, at) = (team.sequence(), team.work().sequence);
        // The device goes on counting from there.
        self.upload(bytemuck::bytes_of(&sequence), at.as_bytes())?;
        taken
    }

    fn sorts_slots(&self, arithmetic: Arithmetic) -> bool {
        arithmetic == Arithmetic::Tensor
    }

    fn begin_capture(&mut self) -> Result<(), DeviceError> {
        self.lane(Stream::Compute).queue.begin_capture()?;
        self.capturing = true;
        Ok(())
    }

    fn end_capture(&mut self) -> Result<GraphId, DeviceError> {
        self.capturing = false;
        let asks = std::mem::take(&mut self.asks);
        let graph = self.lane(Stream::Compute).queue.end_capture()?;
        self.graphs.push(Captured { graph: Some(graph), asks });
        Ok(GraphId(self.graphs.len() - 1))
    }

    fn replay(&mut self, graph: GraphId) -> Result<(), DeviceError> {
        let Some(Captured { graph: Some(captured), asks }) = self.graphs.get(graph.0) else {
            return Err(DeviceError::Unsupported {
                kernel: "a graph that was not captured here, or whose team is gone",
            });
        };
        if let (true, Some(team)) = (asks, &self.team) {
            team.watch();
        }
        Ok(captured.launch(&self.lane(Stream::Compute).queue)?)
    }

    fn begin_download(&mut self, from: Span<u8>) -> Result<DownloadId, DeviceError> {
        self.outbox.begin(&self.lanes[Stream::Compute as usize].queue, from.address(), from.len())
    }

    fn finish_download(&mut self, download: DownloadId, to: &mut [u8]) -> Result<(), DeviceError> {
        let bytes = self.outbox.wait(download)?;
        if bytes.len() != to.len() {
            let (expected, found) = (bytes.len() as u64, to.len() as u64);
            return Err(DeviceError::Length { what: "download", expected, found });
        }
        to.copy_from_slice(bytes);
        self.rest();
        self.check_fault()
    }

    fn discard_download(&mut self, download: DownloadId) -> Result<(), DeviceError> {
        self.outbox.wait(download)?;
        self.rest();
        let _ = self.cuda.take_fault();
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), DeviceError> {
        for lane in &self.lanes {
            lane.queue.synchronize()?;
        }
        self.check_fault()
    }

    /// What is queued cannot be dropped: it is waited for, and its faults are forgotten.
    fn abandon(&mut self) {
        if std::mem::take(&mut self.capturing) {
            self.asks = false;
            // A stream that still captures would run nothing that comes after.
            self.lane(Stream::Compute).queue.drop_capture();
        }
        self.transfers.join();
        for lane in &self.lanes {
            // The error that led here is the one that is reported.
            let _ = lane.queue.synchronize();
        }
        self.rest();
        self.outbox.clear();
        let _ = self.cuda.take_fault();
    }

    fn link(&self) -> LinkCounters {
        let mut link = self.link;
        if let Some(team) = &self.team {
            link.by_host += team.computed();
            link.host_time += team.spent();
        }
        link
    }

    fn overhead(&self) -> Result<Option<Overhead>, DeviceError> {
        let free = self.gauge.read()?.free_bytes;
        Ok(Some(Overhead {
            context_bytes: self.context_bytes,
            graphs_reserved_bytes: GRAPHS_BYTES,
            graphs_bytes: self.free_after.saturating_sub(free),
        }))
    }
}
