//! The host's share of a token: threads that compute cold experts where they lie while multiprocessors copy others.
//!
//! A captured token asks from the device: [`Kernel::FetchExperts`](super::Kernel::FetchExperts) writes a request into memory that both see, the
//! threads see it there, and the kernel sees their answer likewise. No driver takes part in it. Each thread computes its part of every
//! expert, in the contract's order, so that neither their number nor what is theirs changes a bit.
//!
//! While a token that may ask is under way every thread watches for a request, and so takes a processor; a few milliseconds later they sleep.

use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use assay_kernels::cuda::{MAX_FETCHED, TeamAnswer, TeamRequest};
use assay_kernels::simd::{Member, TeamExpert};

use super::DeviceError;
use super::kernel::TeamWork;
use crate::bank::HostBank;

/// How long threads watch after the last token.
const LINGER: Duration = Duration::from_millis(5);

/// How long [`Team::time`] waits.
const PATIENCE: Duration = Duration::from_secs(20);

/// Memory that the host and the device see.
pub(super) trait CommonMemory: Send + Sync {
    /// Its first byte, at a multiple of 64.
    fn start(&self) -> *mut u8;
}

/// What the threads share. Of `memory`, the request is the device's and the answer the threads'; neither is touched out of turn.
struct Shared {
    memory: Box<dyn CommonMemory>,
    answer_at: usize,
    bank: Arc<HostBank>,
    work: TeamWork,
    /// `[top_k, moe_intermediate_size]`, written in parts, read when all parts are there.
    act: Box<[UnsafeCell<f32>]>,
    /// How often a thread has ended its part of gate and up, and of down.
    ended: [Counter; 2],
    computed: AtomicU64,
    /// When the team began, and since then, in nanoseconds, when the first thread last saw a request, and how long all of them took.
    began: Instant,
    seen_at: AtomicU64,
    spent: AtomicU64,
    busy: AtomicBool,
    stop: AtomicBool,
    sleepers: Mutex<usize>,
    wake: Condvar,
}

/// On a cache line of its own.
#[repr(align(64))]
#[derive(Default)]
struct Counter(AtomicU64);

// SAFETY: parts of `act` and of the answer are each written by one thread, and read by others behind a counter that orders the two; the
// request is written while no thread reads it.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Threads that wait for requests.
pub(super) struct Team {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Team {
    /// Starts the threads. `memory` gives as many bytes as it is asked for, all zero.
    pub(super) fn new(
        bank: Arc<HostBank>,
        work: TeamWork,
        memory: impl FnOnce(usize) -> Result<Box<dyn CommonMemory>, DeviceError>,
    ) -> Result<Self, DeviceError> {
        let (hidden, inner, top_k) = (work.expert.hidden_size, work.expert.moe_intermediate_size, work.top_k);
        if top_k > MAX_FETCHED || work.threads == 0 {
            return Err(DeviceError::Unsupported { kernel: "a team of these sizes" });
        }
        let answer_at = size_of::<TeamRequest>() + (hidden * size_of::<f32>()).next_multiple_of(256);
        let memory = memory(answer_at + size_of::<TeamAnswer>() + top_k * hidden * size_of::<f32>())?;
        let act = (0..top_k * inner).map(|_| UnsafeCell::new(0.0)).collect();
        let shared = Arc::new(Shared {
            memory,
            answer_at,
            bank,
            act,
            ended: Default::default(),
            computed: AtomicU64::new(0),
            began: Instant::now(),
            seen_at: AtomicU64::new(0),
            spent: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleepers: Mutex::new(0),
            wake: Condvar::new(),
            work,
        });
        let threads = shared.work.threads;
        let mut team = Self { shared, threads: Vec::with_capacity(threads) };
        for index in 0..threads {
            let shared = Arc::clone(&team.shared);
            let named = std::thread::Builder::new().name(format!("experts-{index}"));
            let member = Member { index, threads };
            let spawned = named.spawn(move || shared.serve(member));
            let thread = spawned.map_err(|error| DeviceError::Thread { reason: error.to_string() })?;
            team.threads.push(thread);
        }
        Ok(team)
    }

    /// What the threads were hired for.
    pub(super) fn work(&self) -> &TeamWork {
        &self.shared.work
    }

    /// The first byte of the request, and how far behind it the answer lies.
    pub(super) fn memory(&self) -> (*const u8, usize) {
        (self.shared.memory.start(), self.shared.answer_at)
    }

    /// Number of the last request. Nothing that may ask is under way.
    pub(super) fn sequence(&self) -> u32 {
        self.shared.request().sequence.load(Ordering::Acquire)
    }

    /// Experts that were computed so far.
    pub(super) fn computed(&self) -> u64 {
        self.shared.computed.load(Ordering::Relaxed)
    }

    /// From when a thread saw a request to its answer, of all requests so far.
    pub(super) fn spent(&self) -> Duration {
        Duration::from_nanos(self.shared.spent.load(Ordering::Relaxed))
    }

    /// From here on requests may come.
    pub(super) fn watch(&self) {
        let sleepers = self.shared.sleepers();
        self.shared.busy.store(true, Ordering::Relaxed);
        if *sleepers > 0 {
            self.shared.wake.notify_all();
        }
    }

    /// None will come until [`Team::watch`].
    pub(super) fn rest(&self) {
        self.shared.busy.store(false, Ordering::Relaxed);
    }

    /// How long these experts of a layer take, asked for from here with an input of zeros. Nothing that may ask is under way.
    pub(super) fn time(&mut self, layer: usize, experts: &[u32]) -> Result<Duration, DeviceError> {
        self.watch();
        let taken = self.shared.ask(layer, experts);
        self.rest();
        taken
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.watch();
        for thread in self.threads.drain(..) {
            // One that has panicked has nothing more to say.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// As a kernel asks.
    fn ask(&self, layer: usize, experts: &[u32]) -> Result<Duration, DeviceError> {
        let request = self.memory.start().cast::<TeamRequest>();
        let sequence = self.request().sequence.load(Ordering::Acquire).wrapping_add(1);
        let count = experts.len().min(MAX_FETCHED);
        // SAFETY: the request is the device's, which does not ask now, and the threads read it only after its number has changed.
        unsafe {
            (&raw mut (*request).layer).write(layer as u32);
            (&raw mut (*request).count).write(count as u32);
            (&raw mut (*request).ids).cast::<u32>().copy_from_nonoverlapping(experts.as_ptr(), count);
        }
        let start = Instant::now();
        self.request().sequence.store(sequence, Ordering::Release);
        while self.answer().sequence.load(Ordering::Acquire) != sequence {
            if start.elapsed() > PATIENCE {
                return Err(DeviceError::HostSilent { layer });
            }
            spin_loop();
        }
        let elapsed = start.elapsed();
        match self.answer().fault.load(Ordering::Relaxed) {
            0 => Ok(elapsed),
            _ => Err(DeviceError::HostSilent { layer }),
        }
    }

    fn request(&self) -> &TeamRequest {
        // SAFETY: memory of at least that size and its alignment; no part of it but the atomic number is written while it is read.
        unsafe { &*self.memory.start().cast::<TeamRequest>() }
    }

    fn answer(&self) -> &TeamAnswer {
        // SAFETY: as above; both fields are atomic.
        unsafe { &*self.memory.start().add(self.answer_at).cast::<TeamAnswer>() }
    }

    /// `[hidden]` behind the request.
    fn x(&self) -> &[f32] {
        // SAFETY: inside the allocation, and written by the device before the request's number.
        unsafe {
            let start = self.memory.start().add(size_of::<TeamRequest>()).cast::<f32>();
            std::slice::from_raw_parts(start, self.work.expert.hidden_size)
        }
    }

    fn sleepers(&self) -> MutexGuard<'_, usize> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread's life.
    fn serve(&self, member: Member) {
        let (mut served, mut seen) = (0u64, 0u32);
        let mut experts = Vec::with_capacity(self.work.top_k);
        while let Some(sequence) = self.next_request(seen) {
            seen = sequence;
            served += 1;
            if member.index == 0 {
                self.seen_at.store(self.nanoseconds(), Ordering::Relaxed);
            }
            let all = served * self.work.threads as u64;
            let Some(whole) = self.compute(member, all, &mut experts) else { return };
            if self.end(1) == all {
                self.computed.fetch_add(if whole { experts.len() as u64 } else { 0 }, Ordering::Relaxed);
                let taken = self.nanoseconds().saturating_sub(self.seen_at.load(Ordering::Relaxed));
                self.spent.fetch_add(taken, Ordering::Relaxed);
                self.answer().fault.store(u32::from(!whole), Ordering::Relaxed);
                self.answer().sequence.store(sequence, Ordering::Release);
            }
        }
    }

    fn nanoseconds(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Waits for a request other than `seen`; `None` at the end.
    fn next_request(&self, seen: u32) -> Option<u32> {
        let mut quiet_since = None;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            let sequence = self.request().sequence.load(Ordering::Acquire);
            if sequence != seen {
                return Some(sequence);
            }
            if self.busy.load(Ordering::Relaxed) {
                quiet_since = None;
            } else if quiet_since.get_or_insert_with(Instant::now).elapsed() > LINGER {
                self.sleep();
                quiet_since = None;
            }
            spin_loop();
        }
    }

    fn sleep(&self) {
        let mut sleepers = self.sleepers();
        *sleepers += 1;
        while !self.busy.load(Ordering::Relaxed) && !self.stop.load(Ordering::Relaxed) {
            sleepers = self.wake.wait(sleepers).unwrap_or_else(PoisonError::into_inner);
        }
        *sleepers -= 1;
    }

    /// Notes that this thread has ended a part; how often that has happened.
    fn end(&self, part: usize) -> u64 {
        self.ended[part].0.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// This member's part of both halves; between them it waits until gate and up have ended `all` times. Whether
    /// every expert was there; `None` at the end of the team.
    fn compute<'a>(&'a self, member: Member, all: u64, experts: &mut Vec<TeamExpert<'a>>) -> Option<bool> {
        let request = self.request();
        let layer = self.work.layers.get(request.layer as usize);
        experts.clear();
        let ids = request.ids.iter().take((request.count as usize).min(self.work.top_k));
        experts.extend(ids.filter_map(|&id| self.expert(layer?.bank_start, id as usize)));
        let whole = experts.len() == request.count as usize;
        if let (Some(layer), true) = (layer, whole) {
            // SAFETY: `act` has room for `top_k` experts of this shape, and members write different parts of it.
            unsafe { member.gate_up(self.x(), experts, layer.activation, self.act_start()) };
        }
        self.end(0);
        while self.ended[0].0.load(Ordering::Acquire) < all {
            // Another thread may have died, or lost its step: who let the team go shall not wait for it.
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            spin_loop();
        }
        if whole {
            let len = experts.len() * self.work.expert.moe_intermediate_size;
            // SAFETY: every member has written its part, and none writes again before this request is answered. The answer has room for
            // `top_k` outputs, of which members write different parts.
            unsafe {
                let act = std::slice::from_raw_parts(self.act_start().as_ptr(), len);
                let out = self.memory.start().add(self.answer_at + size_of::<TeamAnswer>()).cast::<f32>();
                member.down(act, experts, NonNull::new_unchecked(out));
            }
        }
        Some(whole)
    }

    fn act_start(&self) -> NonNull<f32> {
        NonNull::from(&*self.act).cast()
    }

    /// Expert `id` of the layer whose experts begin at `bank_start`.
    fn expert(&self, bank_start: usize, id: usize) -> Option<TeamExpert<'_>> {
        let layout = &self.work.expert;
        let start = bank_start.checked_add(id.checked_mul(layout.bytes)?)?;
        let bytes = self.bank.bytes(start..start.checked_add(layout.bytes)?)?;
        TeamExpert::new(layout, bytes).ok().filter(|_| id < self.work.num_experts)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use assay_kernels::layout::{ExpertLayout, MatrixFormat};
    use assay_kernels::{Activation, twin};

    use super::super::Span;
    use super::super::kernel::TeamLayer;
    use super::*;

    const LAYERS: usize = 2;
    const EXPERTS: usize = 5;
    const TOP_K: usize = 4;
    const CLAMPED: Activation = Activation::ClampedSwiGlu { alpha: 1.702, limit: 2.0 };

    #[repr(align(64))]
    struct Line(#[allow(dead_code, reason = "its bytes are read through pointers")] [u8; 64]);

    struct Memory(Box<[UnsafeCell<Line>]>);

    // SAFETY: whoever uses the memory orders its accesses.
    unsafe impl Send for Memory {}
    // SAFETY: as above.
    unsafe impl Sync for Memory {}

    impl CommonMemory for Memory {
        fn start(&self) -> *mut u8 {
            self.0.as_ptr().cast_mut().cast()
        }
    }

    fn memory(bytes: usize) -> Result<Box<dyn CommonMemory>, DeviceError> {
        Ok(Box::new(Memory((0..bytes.div_ceil(64)).map(|_| UnsafeCell::new(Line([0; 64]))).collect())))
    }

    /// Bytes of any integers, scales and biases that are small numbers.
    fn bank(layout: &ExpertLayout) -> Arc<HostBank> {
        let mut bank = HostBank::zeroed(LAYERS * EXPERTS * layout.bytes).unwrap();
        let mut state = 7u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        let small = |random: u32| (0x3c00 | random as u16 & 0x83ff).to_le_bytes();
        for expert in bank.bytes_mut().chunks_exact_mut(layout.bytes) {
            for range in [layout.gate(), layout.up(), layout.down()] {
                let (rows, cols) = match range.start == layout.down_offset {
                    true => (layout.hidden_size, layout.moe_intermediate_size),
                    false => (layout.moe_intermediate_size, layout.hidden_size),
                };
                let groups = rows.div_ceil(16) * cols.div_ceil(128);
                let integers = layout.format.group_bytes().map_or(0, |bytes| groups * bytes);
                let (integers, words) = expert[range].split_at_mut(integers);
                integers.iter_mut().for_each(|byte| *byte = random() as u8);
                words.chunks_exact_mut(2).for_each(|word| word.copy_from_slice(&small(random())));
            }
            for range in layout.biases().into_iter().flatten() {
                let words = expert[range].chunks_exact_mut(4);
                words.for_each(|word| word.copy_from_slice(&(random() as i32 as f32 / 1e9).to_le_bytes()));
            }
        }
        Arc::new(bank)
    }

    fn work(expert: ExpertLayout, threads: usize) -> TeamWork {
        let layer = |index| TeamLayer {
            bank_start: index * EXPERTS * expert.bytes,
            activation: if index == 0 { Activation::SwiGlu } else { CLAMPED },
        };
        let layers = (0..LAYERS).map(layer).collect();
        TeamWork { layers, expert, num_experts: EXPERTS, top_k: TOP_K, threads, sequence: Span::new(0, 1) }
    }

    /// What the twins give for one input and these experts, one after another.
    fn expected(bank: &HostBank, work: &TeamWork, layer: usize, ids: &[u32], x: &[f32]) -> Vec<f32> {
        let layout = &work.expert;
        let mut all = Vec::new();
        for &id in ids {
            let start = work.layers[layer].bank_start + id as usize * layout.bytes;
            let expert = TeamExpert::new(layout, bank.bytes(start..start + layout.bytes).unwrap()).unwrap();
            let (mut act, mut out) = (vec![0.0; layout.moe_intermediate_size], vec![0.0; layout.hidden_size]);
            let activation = work.layers[layer].activation;
            twin::grouped_gate_up(x, 1, &[0], &[0, 1], &[Some(expert.gate_up)], activation, &mut act).unwrap();
            twin::grouped_down(&act, &[0], &[0, 1], &[Some(expert.down)], &mut out).unwrap();
            all.extend(out);
        }
        all
    }

    /// Asks as a kernel does; the bits of what comes back.
    fn ask(team: &mut Team, layer: usize, ids: &[u32], x: &[f32]) -> Vec<u32> {
        let shared = Arc::clone(&team.shared);
        // SAFETY: the request is this thread's until it is made.
        unsafe {
            let to = shared.memory.start().add(size_of::<TeamRequest>()).cast::<f32>();
            to.copy_from_nonoverlapping(x.as_ptr(), x.len());
        }
        team.time(layer, ids).unwrap();
        // SAFETY: answered, and nothing is asked until this ends.
        let out = unsafe {
            let start = shared.memory.start().add(shared.answer_at + size_of::<TeamAnswer>()).cast::<f32>();
            std::slice::from_raw_parts(start, ids.len() * x.len())
        };
        out.iter().map(|value| value.to_bits()).collect()
    }

    #[test]
    fn any_number_of_threads_gives_the_twins_bits() {
        for (format, hidden, inner, biases) in [
            (MatrixFormat::Int4, 320, 176, false),
            (MatrixFormat::Int4, 128, 16, true),
            (MatrixFormat::Int8, 260, 40, true),
            (MatrixFormat::Bf16, 36, 50, false),
        ] {
            let layout = ExpertLayout::new(format, hidden, inner, biases).unwrap();
            let bank = bank(&layout);
            for threads in [1, 2, 3, 7] {
                let work = work(layout, threads);
                let mut team = Team::new(Arc::clone(&bank), work.clone(), memory).unwrap();
                let start = Instant::now();
                for (turn, ids) in [&[3u32][..], &[0, 4], &[1, 2, 3, 4], &[4], &[2, 0, 1]].into_iter().enumerate() {
                    let x: Vec<f32> = (0..hidden).map(|i| ((i * 37 + turn * 11) % 101) as f32 / 50.0 - 1.0).collect();
                    let expected = expected(&bank, &work, turn % LAYERS, ids, &x);
                    assert!(expected.iter().all(|value| value.is_finite()));
                    let expected: Vec<u32> = expected.iter().map(|value| value.to_bits()).collect();
                    assert!(
                        ask(&mut team, turn % LAYERS, ids, &x) == expected,
                        "{format:?}, {threads} threads, {ids:?}"
                    );
                }
                assert_eq!(team.computed(), 11);
                assert!((Duration::from_nanos(1)..start.elapsed()).contains(&team.spent()));
            }
        }
    }

    #[test]
    fn sleepers_wake_and_what_is_not_there_is_said() {
        let layout = ExpertLayout::new(MatrixFormat::Int4, 128, 16, false).unwrap();
        let bank = bank(&layout);
        let mut team = Team::new(Arc::clone(&bank), work(layout, 2), memory).unwrap();
        let first = ask(&mut team, 0, &[1], &[0.5; 128]);
        while *team.shared.sleepers() < 2 {
            std::thread::sleep(LINGER);
        }
        assert_eq!(ask(&mut team, 0, &[1], &[0.5; 128]), first);
        assert!(matches!(team.time(0, &[5]), Err(DeviceError::HostSilent { layer: 0 })));
        assert!(matches!(team.time(2, &[0]), Err(DeviceError::HostSilent { layer: 2 })));
        assert_eq!(ask(&mut team, 0, &[1], &[0.5; 128]), first);
    }

    #[test]
    fn a_team_whose_thread_is_gone_can_be_let_go() {
        let layout = ExpertLayout::new(MatrixFormat::Int4, 128, 16, false).unwrap();
        let team = Team::new(bank(&layout), work(layout, 2), memory).unwrap();
        // As if a third thread had to end its part too: both wait for it.
        team.shared.ended[0].0.fetch_sub(1, Ordering::AcqRel);
        team.watch();
        team.shared.request().sequence.store(1, Ordering::Release);
        std::thread::sleep(LINGER);
        drop(team);
    }
}
