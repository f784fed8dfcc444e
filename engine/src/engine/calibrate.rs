//! Calibration: real short and long runs without resident experts, and the residency that their memory needs allow
//! (white paper §8).
//!
//! A requirement is a transient delta, `baseline free − low-water`, never an absolute figure: it is applied to the memory that is
//! free when a request runs.

use std::time::{Duration, Instant};

use super::Engine;
use super::low_water::Phase;
use crate::device::{Device, DeviceError, Span, align_up};
use crate::error::EngineError;

/// What one run borrowed at its peak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Requirement {
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Bytes borrowed by its prefill.
    pub prefill_bytes: u64,
    /// Bytes borrowed by decoding after it.
    pub decode_bytes: u64,
}

/// The measurements, and what follows from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Calibration {
    /// Bytes free with no expert resident.
    pub baseline_free_bytes: u64,
    /// A prompt of one chunk.
    pub short: Requirement,
    /// A prompt of several.
    pub long: Requirement,
    /// Tokens in a chunk during the runs.
    pub chunk: usize,
    /// The longest prompt that fits with the margin kept.
    pub max_prompt_tokens: usize,
    /// Experts that stay through prefill.
    pub hard_experts: usize,
    /// Experts whose memory is lent to prefill.
    pub soft_experts: usize,
}

/// How decode brings cold experts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ColdPath {
    /// The host reads each layer's routes back, and the copy engine copies.
    CopyEngine,
    /// Multiprocessors look experts up and copy them out of mapped host memory; a token is one graph.
    Multiprocessors,
    /// The same, while processors of the host compute some of the cold experts where they lie.
    WithHost,
}

impl ColdPath {
    /// The name in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::CopyEngine => "copy_engine",
            Self::Multiprocessors => "multiprocessors",
            Self::WithHost => "with_host",
        }
    }
}

/// Tokens that each cold path is timed on: how many of their experts are cold differs.
const TIMED_TOKENS: usize = 12;

/// Chunks in the long run: enough for the requirement to have become a straight line.
const LONG_CHUNKS: usize = 4;

/// Tokens decoded after each prompt.
const DECODE_TOKENS: usize = 2;

impl Calibration {
    /// Bytes that prefill of `tokens` borrows: the short run's up to its length, then the line through both runs.
    pub fn prefill_requirement(&self, tokens: usize) -> u64 {
        let (short, long) = (self.short, self.long);
        if tokens <= short.tokens || long.tokens == short.tokens {
            return short.prefill_bytes;
        }
        let rise = u128::from(long.prefill_bytes.saturating_sub(short.prefill_bytes));
        let run = (long.tokens - short.tokens) as u128;
        let extra = (rise * (tokens - short.tokens) as u128).div_ceil(run);
        let bytes = short.prefill_bytes.saturating_add(u64::try_from(extra).unwrap_or(u64::MAX));
        align_up(bytes).unwrap_or(u64::MAX)
    }

    /// The longest prompt, at most `context`, whose requirement is within `free` bytes.
    fn longest_prompt(&self, context: usize, free: u64) -> usize {
        let (mut fits, mut too_long) = (0, context + 1);
        while fits + 1 < too_long {
            let middle = fits + (too_long - fits) / 2;
            if self.prefill_requirement(middle) <= free {
                fits = middle;
            } else {
                too_long = middle;
            }
        }
        fits
    }

    /// Bytes that decode borrows, the larger of both runs.
    pub fn decode_requirement(&self) -> u64 {
        self.short.decode_bytes.max(self.long.decode_bytes)
    }
}

impl<D: Device> Engine<D> {
    /// Runs, measures, and fills the tiers.
    pub(super) fn calibrate(&mut self) -> Result<(), EngineError> {
        let margin = self.options.margin_bytes;
        let context = self.options.context_tokens;
        let free = self.device.free_bytes();
        let staging = self.plan.full_staging_bytes();
        while self.chunk > self.options.min_chunk
            && self.plan.prefill_bytes(context, self.chunk, staging).saturating_add(margin) > free
        {
            self.halve_chunk();
        }
        let short = self.measure(self.chunk.min(context))?;
        let long = self.measure(self.chunk.saturating_mul(LONG_CHUNKS).min(context))?;
        let mut calibration = Calibration {
            baseline_free_bytes: free,
            short,
            long,
            chunk: self.chunk,
            max_prompt_tokens: 0,
            hard_experts: 0,
            soft_experts: 0,
        };
        calibration.max_prompt_tokens = calibration.longest_prompt(context, free.saturating_sub(margin));
        self.size_tiers(&mut calibration);
        // Its prompts are nobody's: what they used says nothing about what is wanted.
        self.forget_usage();
        self.fill_hard(calibration.hard_experts)?;
        self.note(Phase::Calibration);
        self.calibration = Some(calibration);
        self.restore_soft()?;
        self.note(Phase::Restore);
        self.choose_cold_path()
    }

    /// Times decode by every path, with the experts that are resident now, and keeps the fastest.
    fn choose_cold_path(&mut self) -> Result<(), EngineError> {
        if self.captured.is_none() {
            return Ok(());
        }
        let tokens = TIMED_TOKENS.min(self.options.context_tokens.saturating_sub(1));
        let asked = self.options.cold_path;
        self.cold_path = match asked {
            Some(ColdPath::WithHost) => {
                if !self.hire_team()? {
                    let (option, found, expected) = ("cold_path", "with_host".to_owned(), "another on this device");
                    return Err(EngineError::Option { option, found, expected });
                }
                self.share_half()?;
                ColdPath::WithHost
            }
            Some(path) => path,
            None if tokens == 0 => ColdPath::CopyEngine,
            None => {
                let host = self.time_decode(ColdPath::CopyEngine, tokens)?;
                let device = self.time_decode(ColdPath::Multiprocessors, tokens)?;
                let without = if device <= host { ColdPath::Multiprocessors } else { ColdPath::CopyEngine };
                if self.share_with_host(tokens, device.min(host))? { ColdPath::WithHost } else { without }
            }
        };
        self.forget_usage();
        self.reset();
        Ok(())
    }

    /// The mean of some tokens, the slowest left out: the first one captures.
    pub(super) fn time_decode(&mut self, path: ColdPath, tokens: usize) -> Result<Duration, EngineError> {
        self.cold_path = path;
        self.reset();
        let mut token = 0;
        let mut times = Vec::with_capacity(tokens);
        for _ in 0..tokens {
            let start = Instant::now();
            token = self.decode(token)?;
            times.push(start.elapsed());
        }
        times.sort();
        times.truncate(tokens.saturating_sub(1).max(1));
        Ok(times.iter().sum::<Duration>() / times.len().max(1) as u32)
    }

    /// One run on fixed token ids; routes matter for time, not for memory.
    fn measure(&mut self, tokens: usize) -> Result<Requirement, EngineError> {
        let vocab_size = self.spec.vocab_size as u64;
        let prompt: Vec<u32> = (0..tokens as u64).map(|i| ((i * 7919 + 13) % vocab_size) as u32).collect();
        let baseline = self.device.free_bytes();
        self.reset();
        self.device.take_low_water();
        self.run_low_water = baseline;
        let mut token = self.prefill(&prompt)?;
        let prefill_bytes = baseline - std::mem::replace(&mut self.run_low_water, baseline);
        for _ in 0..DECODE_TOKENS.min(self.options.context_tokens - self.position) {
            token = self.decode(token)?;
        }
        let decode_bytes = baseline - self.run_low_water;
        self.reset();
        Ok(Requirement { tokens, prefill_bytes, decode_bytes })
    }

    /// How many experts stay through any prefill, and how many more decode has room for.
    fn size_tiers(&self, calibration: &mut Calibration) {
        let slot = self.plan.slot_bytes();
        let total = self.residency.total();
        if slot == 0 || total == 0 {
            return;
        }
        let free = calibration.baseline_free_bytes.saturating_sub(self.options.margin_bytes);
        let context = self.options.context_tokens;
        let most = ((total as f64 * self.options.max_resident_share) as usize).min(total);
        let fits = |bytes: u64| usize::try_from(bytes / slot).unwrap_or(usize::MAX);
        let beside_prefill = free.saturating_sub(calibration.prefill_requirement(context));
        calibration.hard_experts = most.min(fits(beside_prefill));
        // With every expert resident nothing is streamed, and prefill does without staging regions.
        let unstreamed = self.plan.prefill_bytes(context, self.chunk, 0);
        if most == total && fits(free.saturating_sub(unstreamed)) >= total {
            calibration.hard_experts = total;
        }
        let beside_decode = free.saturating_sub(calibration.decode_requirement());
        calibration.soft_experts = most.min(fits(beside_decode)).saturating_sub(calibration.hard_experts);
    }

    fn fill_hard(&mut self, experts: usize) -> Result<(), EngineError> {
        let slot = self.plan.slot_bytes();
        if experts == 0 || slot == 0 {
            return Ok(());
        }
        let buffer = self.device.allocate(experts as u64 * slot, "hard expert slots")?;
        for index in 0..experts as u64 {
            self.residency.add_hard(Span::new(buffer.address() + index * slot, slot as usize));
        }
        self.buffers.push(buffer);
        let copies = self.residency.fill();
        self.copy_experts(&copies)
    }

    /// Takes back what prefill had borrowed from the soft tier, as far as decode's need and the margin allow.
    pub(super) fn restore_soft(&mut self) -> Result<(), EngineError> {
        let Some(calibration) = self.calibration else { return Ok(()) };
        let slot = self.plan.slot_bytes();
        let floor = self.options.margin_bytes.saturating_add(calibration.decode_requirement());
        while self.residency.soft_slots() < calibration.soft_experts
            && self.device.free_bytes() >= floor.saturating_add(slot)
        {
            match self.device.allocate(slot, "a soft expert slot") {
                Ok(buffer) => self.residency.add_soft(buffer),
                // The cache is smaller than planned; answers are the same.
                Err(DeviceError::OutOfMemory { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let copies = self.residency.fill();
        self.copy_experts(&copies)
    }

    pub(super) fn halve_chunk(&mut self) {
        self.chunk = (self.chunk / 2).max(self.options.min_chunk);
    }
}
