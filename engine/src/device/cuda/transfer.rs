//! Large copies between pageable host memory and the card, in pieces that several threads carry through pinned blocks: one thread
//! copies pageable memory at a fifth of the link's speed. Neighbouring pieces share a block, and what is neighbours on the card is one copy: a
//! copy of 256 KB takes half as long again as its share of a large one, and an event for each as much again.
//!
//! A hand is a thread's stream and blocks. Uploads go on behind the caller, group by group in their order, so that kernels can start
//! on the first group while the last one is still in host memory; downloads are waited for.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use assay_kernels::cuda::CudaError;

use super::driver::{CurrentContext, Pinned, Queue, Signal, copy_in, copy_out};
use crate::device::{DeviceError, Upload};

/// Bytes of a block, and of a piece at most.
const BLOCK: usize = 1 << 20;

/// Blocks of a hand: one is filled while the copy engine reads the others.
const BLOCKS: usize = 3;

/// More hands than this bring nothing: eight are as fast as memory, and twelve where pages are new.
const MOST_HANDS: usize = 12;

/// A thread for less is not worth its start.
const BYTES_A_HAND: usize = 2 << 20;

/// The hands, and the uploads that they were last given.
pub(super) struct Transfers {
    hands: Vec<Arc<Mutex<Hand>>>,
    job: Option<Arc<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Transfers {
    pub(super) fn new() -> Result<Self, CudaError> {
        let hands = thread::available_parallelism().map_or(1, usize::from).min(MOST_HANDS);
        let hands = (0..hands).map(|_| Ok(Arc::new(Mutex::new(Hand::new()?)))).collect::<Result<_, CudaError>>()?;
        Ok(Self { hands, job: None, threads: Vec::new() })
    }

    fn hands_for(&self, bytes: usize) -> impl Iterator<Item = &Arc<Mutex<Hand>>> {
        self.hands.iter().take((bytes / BYTES_A_HAND).max(1))
    }

    /// Starts copies of `groups`, whose sources are as long as their destinations. What uses the destinations is done. An upload for which
    /// `strikes` says so fails when its turn comes.
    pub(super) fn start(&mut self, groups: Vec<Vec<Upload>>, strikes: impl FnMut() -> bool) -> Result<(), DeviceError> {
        self.join();
        let context = CurrentContext::get()?;
        let job = Arc::new(Job::new(groups, strikes));
        self.job = Some(job.clone());
        let bytes = job.pieces.iter().map(|piece| piece.len).sum();
        let mut threads = Vec::new();
        for hand in self.hands_for(bytes) {
            let (hand, job) = (hand.clone(), job.clone());
            match thread::Builder::new().spawn(move || upload(context, &hand, &job)) {
                Ok(thread) => threads.push(thread),
                Err(_) => break,
            }
        }
        if let (true, Some(hand)) = (threads.is_empty(), self.hands.first()) {
            // A system without a thread to spare.
            upload(context, hand, &job);
        }
        self.threads = threads;
        Ok(())
    }

    /// Waits until the first groups, up to and with `group`, have arrived.
    pub(super) fn wait(&self, group: usize) -> Result<(), DeviceError> {
        self.job.as_ref().map_or(Ok(()), |job| job.wait(group))
    }

    /// Waits until nothing is under way. An error is still [`Transfers::wait`]'s to report.
    pub(super) fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // A thread's error is in the job.
            let _ = thread.join();
        }
    }

    /// Copies device memory to the host; the addresses are those of bytes that nothing writes meanwhile.
    pub(super) fn download(&self, pieces: Vec<(u64, &mut [u8])>) -> Result<(), CudaError> {
        let context = CurrentContext::get()?;
        let bytes = pieces.iter().map(|(_, to)| to.len()).sum();
        let pieces = pieces.into_iter().flat_map(|(from, to)| {
            to.chunks_mut(BLOCK).enumerate().map(move |(index, to)| (from + (index * BLOCK) as u64, to))
        });
        let pieces = Mutex::new(pieces.peekable());
        let next = || {
            let (mut pieces, mut batch, mut room) = (lock(&pieces), Vec::new(), BLOCK);
            while let Some(piece) = pieces.next_if(|(_, to)| to.len() <= room) {
                room -= piece.1.len();
                batch.push(piece);
            }
            batch
        };
        let carry = |hand: &Mutex<Hand>| context.bind().and_then(|()| lock(hand).download(next));
        thread::scope(|scope| {
            let carry = &carry;
            let threads: Vec<_> = self
                .hands_for(bytes)
                .map_while(|hand| thread::Builder::new().spawn_scoped(scope, move || carry(hand)).ok())
                .collect();
            let alone = if threads.is_empty() { self.hands.first().map(|hand| carry(hand)) } else { None };
            let carried = threads.into_iter().map(|thread| match thread.join() {
                Ok(carried) => carried,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            // All are waited for, whatever the first says.
            carried.chain(alone).fold(Ok(()), Result::and)
        })
    }
}

/// What a thread does for a job.
fn upload(context: CurrentContext, hand: &Mutex<Hand>, job: &Job) {
    let bound = context.bind().map_err(DeviceError::from);
    if let Err(error) = bound.and_then(|()| lock(hand).upload(job)) {
        job.fail(error);
    }
}

/// A thread's own stream and pinned blocks.
struct Hand {
    queue: Queue,
    memory: Pinned,
    /// After the last copy of each block.
    done: [Signal; BLOCKS],
}

// SAFETY: the driver's handles may be used from any thread in which their context is current.
unsafe impl Send for Hand {}

impl Hand {
    fn new() -> Result<Self, CudaError> {
        let done = [Signal::new()?, Signal::new()?, Signal::new()?];
        Ok(Self { queue: Queue::new()?, memory: Pinned::new(BLOCKS * BLOCK)?, done })
    }

    /// Carries pieces of a job until there are no more. No copy is under way when it returns.
    fn upload(&mut self, job: &Job) -> Result<(), DeviceError> {
        let carried = self.upload_all(job);
        carried.and(self.queue.synchronize().map_err(DeviceError::from))
    }

    fn upload_all(&mut self, job: &Job) -> Result<(), DeviceError> {
        let mut carried: [&[Piece]; BLOCKS] = [&[]; BLOCKS];
        for block in (0..BLOCKS).cycle() {
            // An event that was never recorded is done.
            self.done[block].synchronize()?;
            job.arrived(std::mem::take(&mut carried[block]));
            let batch = job.next();
            if !batch.is_empty() {
                self.send(block, batch)?;
                carried[block] = batch;
            } else if carried.iter().all(|batch| batch.is_empty()) {
                break;
            }
        }
        Ok(())
    }

    fn send(&mut self, block: usize, batch: &[Piece]) -> Result<(), DeviceError> {
        let mut start = block * BLOCK;
        for run in batch.chunk_by(|one, next| one.to + one.len as u64 == next.to) {
            let first = start;
            for piece in run {
                if let Some(copy) = piece.fails {
                    return Err(DeviceError::CopyFailed { copy, bytes: piece.upload.to.size() });
                }
                if let Some(pinned) = self.memory.part_mut(start, piece.len) {
                    pinned.copy_from_slice(piece.bytes());
                }
                start += piece.len;
            }
            // SAFETY: pinned, and not written again before the block's event; the destinations are checked spans of the device's.
            unsafe { copy_in(&self.queue, self.memory.as_ptr().add(first), run[0].to, start - first)? };
        }
        Ok(self.done[block].record(&self.queue)?)
    }

    /// Carries what `next` gives until it gives nothing. No copy is under way when it returns.
    fn download<'a>(&mut self, next: impl Fn() -> Vec<(u64, &'a mut [u8])>) -> Result<(), CudaError> {
        let carried = self.download_all(next);
        carried.and(self.queue.synchronize())
    }

    fn download_all<'a>(&mut self, next: impl Fn() -> Vec<(u64, &'a mut [u8])>) -> Result<(), CudaError> {
        let mut carried: [Vec<(u64, &mut [u8])>; BLOCKS] = [const { Vec::new() }; BLOCKS];
        for block in (0..BLOCKS).cycle() {
            let mut start = block * BLOCK;
            if !carried[block].is_empty() {
                self.done[block].synchronize()?;
            }
            for (_, to) in carried[block].drain(..) {
                if let Some(pinned) = self.memory.part(start, to.len()) {
                    to.copy_from_slice(pinned);
                }
                start += to.len();
            }
            let batch = next();
            if !batch.is_empty() {
                self.fetch(block, &batch)?;
                carried[block] = batch;
            } else if carried.iter().all(Vec::is_empty) {
                break;
            }
        }
        Ok(())
    }

    fn fetch(&mut self, block: usize, batch: &[(u64, &mut [u8])]) -> Result<(), CudaError> {
        let mut start = block * BLOCK;
        for run in batch.chunk_by(|(one, to), (next, _)| one + to.len() as u64 == *next) {
            let bytes = run.iter().map(|(_, to)| to.len()).sum();
            // SAFETY: pinned, a block long at most, and read only after the block's event; the sources are spans of the device's.
            unsafe { copy_out(&self.queue, run[0].0, self.memory.as_ptr().add(start), bytes)? };
            start += bytes;
        }
        self.done[block].record(&self.queue)
    }
}

/// A part of an upload, as large as a block at most.
struct Piece {
    group: usize,
    upload: Arc<Upload>,
    first: usize,
    len: usize,
    to: u64,
    /// Which upload it is of, where that one is to fail.
    fails: Option<u64>,
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        let bytes = self.upload.bytes();
        &bytes[self.first..self.first + self.len]
    }
}

/// Uploads under way.
struct Job {
    pieces: Vec<Piece>,
    /// Ends of the batches of neighbouring pieces that fill a block.
    batches: Vec<usize>,
    next: AtomicUsize,
    progress: Mutex<Progress>,
    changed: Condvar,
}

struct Progress {
    /// Pieces of each group that have not arrived.
    left: Vec<usize>,
    failed: Option<DeviceError>,
}

impl Job {
    fn new(groups: Vec<Vec<Upload>>, mut strikes: impl FnMut() -> bool) -> Self {
        let (mut pieces, mut left, mut uploads_seen) = (Vec::new(), vec![0; groups.len()], 0);
        for (group, uploads) in groups.into_iter().enumerate() {
            for upload in uploads.into_iter().map(Arc::new) {
                let (bytes, to) = (upload.range.len(), upload.to.address());
                uploads_seen += 1;
                let fails = strikes().then_some(uploads_seen);
                for first in (0..bytes).step_by(BLOCK) {
                    let len = BLOCK.min(bytes - first);
                    pieces.push(Piece { group, upload: upload.clone(), first, len, to: to + first as u64, fails });
                    left[group] += 1;
                }
            }
        }
        let (mut batches, mut room) = (Vec::new(), BLOCK);
        for (index, piece) in pieces.iter().enumerate() {
            if piece.len > room {
                batches.push(index);
                room = BLOCK;
            }
            room -= piece.len;
        }
        batches.push(pieces.len());
        let progress = Mutex::new(Progress { left, failed: None });
        Self { pieces, batches, next: AtomicUsize::new(0), progress, changed: Condvar::new() }
    }

    /// Some neighbouring pieces, a block's worth at most; none at the end.
    fn next(&self) -> &[Piece] {
        let batch = self.next.fetch_add(1, Ordering::Relaxed);
        let Some(&end) = self.batches.get(batch) else { return &[] };
        let start = batch.checked_sub(1).map_or(0, |before| self.batches[before]);
        &self.pieces[start..end]
    }

    fn arrived(&self, batch: &[Piece]) {
        if batch.is_empty() {
            return;
        }
        let mut progress = lock(&self.progress);
        batch.iter().for_each(|piece| progress.left[piece.group] -= 1);
        self.changed.notify_all();
    }

    /// Nothing more is carried.
    fn fail(&self, error: DeviceError) {
        self.next.store(self.batches.len(), Ordering::Relaxed);
        lock(&self.progress).failed.get_or_insert(error);
        self.changed.notify_all();
    }

    fn wait(&self, group: usize) -> Result<(), DeviceError> {
        let mut progress = lock(&self.progress);
        loop {
            if let Some(error) = &progress.failed {
                return Err(error.clone());
            }
            if progress.left.iter().take(group + 1).all(|&left| left == 0) {
                return Ok(());
            }
            progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
