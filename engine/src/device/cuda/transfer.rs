//! Large copies between pageable host memory and the card, in pieces that several threads carry through pinned blocks: one thread
//! copies pageable memory at a tenth of the link's speed.
//!
//! A hand is a thread's stream and blocks. Uploads go on behind the caller, group by group in their order, so that kernels can start
//! on the first group while the last one is still in host memory; downloads are waited for.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use assay_kernels::cuda::CudaError;

use super::driver::{CurrentContext, Pinned, Queue, Signal, copy_in, copy_out};
use crate::device::{DeviceError, Upload};

/// Bytes of a block, and of a piece at most: what a layer's split takes for the models in use, in BF16.
const PIECE: usize = 256 << 10;

/// Blocks of a hand: one is filled while the copy engine reads the others.
const BLOCKS: usize = 3;

/// More hands than this bring nothing: together they are faster than any link.
const MOST_HANDS: usize = 12;

/// A thread for less is not worth its start.
const BYTES_A_HAND: usize = 1 << 20;

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

    /// Starts copies of `groups`, whose sources are as long as their destinations. What uses the destinations is done.
    pub(super) fn start(&mut self, groups: Vec<Vec<Upload>>) -> Result<(), DeviceError> {
        self.join();
        let context = CurrentContext::get()?;
        let job = Arc::new(Job::new(groups));
        self.job = Some(job.clone());
        let bytes = job.pieces.iter().map(|piece| piece.len).sum();
        let mut threads = Vec::new();
        for hand in self.hands_for(bytes) {
            let (hand, job) = (hand.clone(), job.clone());
            threads.push(thread::spawn(move || {
                let carried = context.bind().and_then(|()| lock(&hand).upload(&job));
                if let Err(error) = carried {
                    job.fail(error);
                }
            }));
        }
        self.threads = threads;
        Ok(())
    }

    /// Waits until the first groups, up to and with `group`, have arrived.
    pub(super) fn wait(&self, group: usize) -> Result<(), CudaError> {
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
            to.chunks_mut(PIECE).enumerate().map(move |(index, to)| (from + (index * PIECE) as u64, to))
        });
        let pieces = Mutex::new(pieces);
        let carry = |hand: &Mutex<Hand>| context.bind().and_then(|()| lock(hand).download(|| lock(&pieces).next()));
        thread::scope(|scope| {
            let threads: Vec<_> = self.hands_for(bytes).map(|hand| scope.spawn(|| carry(hand))).collect();
            let carried = threads.into_iter().map(|thread| match thread.join() {
                Ok(carried) => carried,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            // All are waited for, whatever the first says.
            carried.fold(Ok(()), Result::and)
        })
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
        Ok(Self { queue: Queue::new()?, memory: Pinned::new(BLOCKS * PIECE)?, done })
    }

    /// Carries pieces of a job until there are no more. No copy is under way when it returns.
    fn upload(&mut self, job: &Job) -> Result<(), CudaError> {
        let carried = self.upload_all(job);
        carried.and(self.queue.synchronize())
    }

    fn upload_all(&mut self, job: &Job) -> Result<(), CudaError> {
        let mut carried: [Option<&Piece>; BLOCKS] = [None; BLOCKS];
        for block in (0..BLOCKS).cycle() {
            // An event that was never recorded is done.
            self.done[block].synchronize()?;
            if let Some(piece) = carried[block].take() {
                job.arrived(piece);
            }
            match job.next() {
                Some(piece) => {
                    self.send(block, piece)?;
                    carried[block] = Some(piece);
                }
                None if carried.iter().all(Option::is_none) => break,
                None => {}
            }
        }
        Ok(())
    }

    fn send(&mut self, block: usize, piece: &Piece) -> Result<(), CudaError> {
        let start = block * PIECE;
        if let Some(pinned) = self.memory.part_mut(start, piece.len) {
            pinned.copy_from_slice(piece.bytes());
        }
        // SAFETY: pinned, and not written again before the block's event; the destination is a checked span of the device's.
        unsafe { copy_in(&self.queue, self.memory.as_ptr().add(start), piece.to, piece.len)? };
        self.done[block].record(&self.queue)
    }

    /// Carries what `next` gives until it gives nothing. No copy is under way when it returns.
    fn download<'a>(&mut self, next: impl Fn() -> Option<(u64, &'a mut [u8])>) -> Result<(), CudaError> {
        let carried = self.download_all(next);
        carried.and(self.queue.synchronize())
    }

    fn download_all<'a>(&mut self, next: impl Fn() -> Option<(u64, &'a mut [u8])>) -> Result<(), CudaError> {
        let mut carried: [Option<&mut [u8]>; BLOCKS] = [const { None }; BLOCKS];
        for block in (0..BLOCKS).cycle() {
            if let Some(to) = carried[block].take() {
                self.done[block].synchronize()?;
                if let Some(pinned) = self.memory.part(block * PIECE, to.len()) {
                    to.copy_from_slice(pinned);
                }
            }
            match next() {
                Some((from, to)) => {
                    // SAFETY: pinned, a block long, and read only after its event; the source is a span of the device's.
                    unsafe { copy_out(&self.queue, from, self.memory.as_ptr().add(block * PIECE), to.len())? };
                    self.done[block].record(&self.queue)?;
                    carried[block] = Some(to);
                }
                None if carried.iter().all(Option::is_none) => break,
                None => {}
            }
        }
        Ok(())
    }
}

/// A part of an upload, as large as a block at most.
struct Piece {
    group: usize,
    upload: Arc<Upload>,
    first: usize,
    len: usize,
    to: u64,
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
    next: AtomicUsize,
    progress: Mutex<Progress>,
    changed: Condvar,
}

struct Progress {
    /// Pieces of each group that have not arrived.
    left: Vec<usize>,
    failed: Option<CudaError>,
}

impl Job {
    fn new(groups: Vec<Vec<Upload>>) -> Self {
        let (mut pieces, mut left) = (Vec::new(), vec![0; groups.len()]);
        for (group, uploads) in groups.into_iter().enumerate() {
            for upload in uploads.into_iter().map(Arc::new) {
                let (bytes, to) = (upload.range.len(), upload.to.address());
                for first in (0..bytes).step_by(PIECE) {
                    let len = PIECE.min(bytes - first);
                    pieces.push(Piece { group, upload: upload.clone(), first, len, to: to + first as u64 });
                    left[group] += 1;
                }
            }
        }
        let progress = Mutex::new(Progress { left, failed: None });
        Self { pieces, next: AtomicUsize::new(0), progress, changed: Condvar::new() }
    }

    fn next(&self) -> Option<&Piece> {
        self.pieces.get(self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn arrived(&self, piece: &Piece) {
        let left = &mut lock(&self.progress).left[piece.group];
        *left -= 1;
        if *left == 0 {
            self.changed.notify_all();
        }
    }

    /// Nothing more is carried.
    fn fail(&self, error: CudaError) {
        self.next.store(self.pieces.len(), Ordering::Relaxed);
        lock(&self.progress).failed.get_or_insert(error);
        self.changed.notify_all();
    }

    fn wait(&self, group: usize) -> Result<(), CudaError> {
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
