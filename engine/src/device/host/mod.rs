//! The device without a GPU: CPU kernels over an arena of exactly the budget's size.
//!
//! Its "VRAM", streams and events are real in every respect that the engine can observe, so residency, streaming, calibration
//! and running out of memory can be tested on any machine.
//!
//! - [`arena`]: memory, allocator, poison, checked operands
//! - [`schedule`]: the order of work between streams, adversarial on request
//! - [`link`]: the declared link and its virtual clock
//! - [`execute`]: from a [`Kernel`] to the kernel crate

mod arena;
mod execute;
mod link;
mod schedule;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

pub use link::LinkModel;
pub use schedule::Schedule;

use super::fault::Countdown;
use super::{
    Buffer, Device, DeviceError, DeviceKind, Event, FaultPlan, Kernel, Launch, LinkCounters, Span, Stream, Upload,
};
use crate::bank::HostBank;
use arena::Arena;
use schedule::Chooser;

/// What a host device is made with.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostOptions {
    /// The declared link.
    pub link: LinkModel,
    /// Order of work between streams.
    pub schedule: Schedule,
    /// Fill new allocations with poison too, so that a kernel that reads what nobody wrote shows.
    pub poison_fresh: bool,
    /// Makes every kernel this share of its time slower, so that a harness can show that it would notice: 0.03 is 3 %.
    pub planted_slowdown: f64,
}

enum Work {
    Kernel(Box<Kernel>),
    Upload { bytes: Vec<u8>, to: Span<u8> },
    BankCopy { bank: Arc<HostBank>, source: Range<usize>, to: Span<u8>, fails: bool, number: u64 },
    Wait(Event),
}

/// One in-order queue.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Work>,
    queued: u64,
    done: u64,
}

/// The host device.
pub struct HostDevice {
    arena: Arena,
    link_model: LinkModel,
    link: LinkCounters,
    chooser: Chooser,
    queues: [Queue; 2],
    allocations: Countdown,
    copies: Countdown,
    events: Countdown,
    lost: Vec<Event>,
    /// Groups that have not been waited for, the next one first.
    uploads: VecDeque<Vec<Upload>>,
    /// Groups that have.
    uploaded: usize,
    upload_failed: Option<DeviceError>,
    guarded: Option<BankGuard>,
    planted_slowdown: f64,
}

impl HostDevice {
    /// A device with `budget` bytes of memory.
    pub fn new(budget: u64, options: HostOptions) -> Result<Self, DeviceError> {
        Ok(Self {
            arena: Arena::new(budget, options.poison_fresh)?,
            link_model: options.link,
            link: LinkCounters::default(),
            chooser: Chooser::new(options.schedule),
            queues: [Queue::default(), Queue::default()],
            allocations: Countdown::default(),
            copies: Countdown::default(),
            events: Countdown::default(),
            lost: Vec::new(),
            uploads: VecDeque::new(),
            uploaded: 0,
            upload_failed: None,
            guarded: None,
            planted_slowdown: options.planted_slowdown,
        })
    }

    /// Sets which of the coming calls fail.
    pub fn inject(&mut self, plan: FaultPlan) {
        self.allocations.set(plan.fail_allocation);
        self.copies.set(plan.fail_copy);
        self.events.set(plan.lose_event);
    }

    /// Makes the bank's pages unreadable while a kernel runs: a kernel that looks at host memory then ends the process.
    pub fn guard(&mut self, bank: Arc<HostBank>) {
        self.guarded = Some(BankGuard { bank, taken: false });
    }

    fn submit(&mut self, stream: Stream, work: Work) -> Result<(), DeviceError> {
        if self.chooser.runs_when_queued() {
            let queue = &mut self.queues[stream as usize];
            queue.queued += 1;
            queue.done += 1;
            return self.perform(work);
        }
        let queue = &mut self.queues[stream as usize];
        queue.queued += 1;
        queue.waiting.push_back(work);
        Ok(())
    }

    fn ready(&self, stream: Stream) -> bool {
        match self.queues[stream as usize].waiting.front() {
            None => false,
            Some(Work::Wait(event)) => self.queues[event.stream as usize].done >= event.sequence,
            Some(_) => true,
        }
    }

    /// Runs queued work until `stream` has completed `sequence` pieces of it.
    fn run_until(&mut self, stream: Stream, sequence: u64) -> Result<(), DeviceError> {
        while self.queues[stream as usize].done < sequence {
            let next = match (self.ready(Stream::Compute), self.ready(Stream::Copy)) {
                (true, true) if self.chooser.copy_first() => Stream::Copy,
                (true, _) => Stream::Compute,
                (false, true) => Stream::Copy,
                (false, false) => return Err(DeviceError::EventLost { event: self.events.seen(), stream }),
            };
            let queue = &mut self.queues[next as usize];
            queue.done += 1;
            if let Some(work) = queue.waiting.pop_front() {
                self.perform(work)?;
            }
        }
        Ok(())
    }

    fn perform(&mut self, work: Work) -> Result<(), DeviceError> {
        match work {
            Work::Wait(_) => Ok(()),
            Work::Upload { bytes, to } => {
                self.arena.bytes_mut("upload", to)?.copy_from_slice(&bytes);
                Ok(())
            }
            Work::BankCopy { bank, source, to, fails, number } => {
                let bytes = to.size();
                if fails {
                    return Err(DeviceError::CopyFailed { copy: number, bytes });
                }
                if let Some(guard) = &mut self.guarded {
                    guard.give_back()?;
                }
                let from = bank.bytes(source.clone()).ok_or(DeviceError::Length {
                    what: "source range of a copy from the host bank",
                    expected: bank.len() as u64,
                    found: source.end as u64,
                })?;
                self.arena.bytes_mut("copy from the host bank", to)?.copy_from_slice(from);
                self.link.bytes += bytes;
                self.link.copies += 1;
                self.link.modelled_s += self.link_model.copy_s(bytes);
                Ok(())
            }
            Work::Kernel(kernel) if self.planted_slowdown > 0.0 => {
                let start = Instant::now();
                let result = self.execute(&kernel);
                let until = start.elapsed().mul_f64(1.0 + self.planted_slowdown);
                while start.elapsed() < until {
                    std::hint::spin_loop();
                }
                result
            }
            Work::Kernel(kernel) => self.execute(&kernel),
        }
    }

    fn execute(&mut self, kernel: &Kernel) -> Result<(), DeviceError> {
        if let Some(guard) = &mut self.guarded {
            guard.take()?;
        }
        execute::execute(&mut self.arena, kernel)
    }
}

/// Takes the bank's pages away before a kernel; the next copy and the guard's end give them back. Not every kernel does both: to
/// change the pages of a whole bank takes longer than a small kernel.
struct BankGuard {
    bank: Arc<HostBank>,
    taken: bool,
}

impl BankGuard {
    fn take(&mut self) -> Result<(), DeviceError> {
        self.set(true, region::Protection::NONE)
    }

    fn give_back(&mut self) -> Result<(), DeviceError> {
        self.set(false, region::Protection::READ_WRITE)
    }

    fn set(&mut self, taken: bool, protection: region::Protection) -> Result<(), DeviceError> {
        if self.taken != taken && !self.bank.is_empty() {
            // SAFETY: the pages belong to the bank's private mapping; nobody else writes to them, and whoever reads them
            // meanwhile is what this is meant to catch.
            unsafe { region::protect(self.bank.as_ptr(), self.bank.len(), protection) }
                .map_err(|error| DeviceError::Arena { bytes: self.bank.len() as u64, reason: error.to_string() })?;
        }
        self.taken = taken;
        Ok(())
    }
}

impl Drop for BankGuard {
    fn drop(&mut self) {
        // Without its pages the next copy faults, so a failure here cannot pass unnoticed.
        let _ = self.give_back();
    }
}

impl Device for HostDevice {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Host
    }
    fn budget(&self) -> u64 {
        self.arena.budget()
    }
    fn free_bytes(&self) -> u64 {
        self.arena.free_bytes()
    }
    fn take_low_water(&mut self) -> u64 {
        self.arena.take_low_water()
    }

    fn allocate(&mut self, bytes: u64, label: &'static str) -> Result<Buffer, DeviceError> {
        if self.allocations.strikes() {
            return Err(DeviceError::OutOfMemory { label, requested: bytes, largest_free: 0, budget: self.budget() });
        }
        self.arena.allocate(bytes, label)
    }

    fn free(&mut self, buffer: Buffer) {
        self.arena.free(&buffer);
    }

    fn adopt_bank(&mut self, _: &Arc<HostBank>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn copy_from_bank(&mut self, bank: &Arc<HostBank>, source: Range<usize>, to: Span<u8>) -> Result<(), DeviceError> {
        let found = source.len() as u64;
        if found != to.size() {
            return Err(DeviceError::Length { what: "copy from the host bank", expected: to.size(), found });
        }
        let fails = self.copies.strikes();
        let number = self.copies.seen();
        self.submit(Stream::Copy, Work::BankCopy { bank: bank.clone(), source, to, fails, number })
    }

    fn upload(&mut self, bytes: &[u8], to: Span<u8>) -> Result<(), DeviceError> {
        if bytes.len() as u64 != to.size() {
            return Err(DeviceError::Length { what: "upload", expected: to.size(), found: bytes.len() as u64 });
        }
        self.submit(Stream::Compute, Work::Upload { bytes: bytes.to_vec(), to })
    }

    fn download(&mut self, from: Span<u8>, to: &mut [u8]) -> Result<(), DeviceError> {
        if to.len() as u64 != from.size() {
            return Err(DeviceError::Length { what: "download", expected: from.size(), found: to.len() as u64 });
        }
        self.run_until(Stream::Compute, self.queues[Stream::Compute as usize].queued)?;
        to.copy_from_slice(self.arena.bytes("download", from)?);
        Ok(())
    }

    fn begin_uploads(&mut self, groups: Vec<Vec<Upload>>) -> Result<(), DeviceError> {
        groups.iter().flatten().try_for_each(Upload::check)?;
        self.run_until(Stream::Compute, self.queues[Stream::Compute as usize].queued)?;
        (self.uploads, self.uploaded, self.upload_failed) = (groups.into(), 0, None);
        Ok(())
    }

    /// A group arrives when it is waited for, not before: who forgets to wait reads what was there.
    fn await_upload(&mut self, group: usize) -> Result<(), DeviceError> {
        while self.uploaded <= group && self.upload_failed.is_none() {
            for upload in self.uploads.pop_front().unwrap_or_default() {
                if self.copies.strikes() {
                    let (copy, bytes) = (self.copies.seen(), upload.to.size());
                    self.upload_failed = Some(DeviceError::CopyFailed { copy, bytes });
                    break;
                }
                self.arena.bytes_mut("upload", upload.to)?.copy_from_slice(upload.bytes());
            }
            self.uploaded += 1;
        }
        self.upload_failed.clone().map_or(Ok(()), Err)
    }

    /// Every kernel has the contract's arithmetic here, whatever is asked for, and none needs scratch memory.
    fn launch(&mut self, kernel: Kernel, _: Launch) -> Result<(), DeviceError> {
        self.submit(Stream::Compute, Work::Kernel(Box::new(kernel)))
    }

    fn record(&mut self, stream: Stream) -> Result<Event, DeviceError> {
        let event = Event { stream, sequence: self.queues[stream as usize].queued };
        if self.events.strikes() {
            self.lost.push(event);
        }
        Ok(event)
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        if self.lost.contains(&event) {
            return Err(DeviceError::EventLost { event: event.sequence, stream: event.stream });
        }
        self.submit(stream, Work::Wait(event))
    }

    fn synchronize(&mut self) -> Result<(), DeviceError> {
        for stream in [Stream::Compute, Stream::Copy] {
            self.run_until(stream, self.queues[stream as usize].queued)?;
        }
        Ok(())
    }

    fn abandon(&mut self) {
        for queue in &mut self.queues {
            queue.waiting.clear();
            queue.done = queue.queued;
        }
        self.lost.clear();
    }

    fn plant(&mut self, plan: FaultPlan) -> Option<FaultPlan> {
        let before = FaultPlan {
            fail_allocation: self.allocations.pending(),
            fail_copy: self.copies.pending(),
            lose_event: self.events.pending(),
        };
        self.inject(plan);
        Some(before)
    }

    fn link(&self) -> LinkCounters {
        self.link
    }
}
