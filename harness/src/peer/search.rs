//! The peer's best setting inside a budget: how many layers' experts fit on the card, micro-batch, load mode, threads.
//!
//! Where all experts may fit they are tried on the card first. Where they do not, the card's memory is measured with every expert on
//! the CPU; each layer that moves to the card adds the bytes of its experts, so that one more load of the model usually hits the
//! budget. What is found is checked by the peak of its own run.

use super::bench::{Row, Setting, Workload};
use super::{CardWatch, LlamaBench};
use crate::statistics::median;
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

/// Micro-batches that are tried for prefill, as far as the prompt is that long.
const UBATCHES: [u32; 4] = [512, 2048, 4096, 8192];
/// Decode reads one token at a time: llama.cpp's own default.
const DECODE_UBATCH: u32 = 512;
/// What the card's free memory may be off by between two runs of one setting.
const SLACK_BYTES: u64 = 32 << 20;
/// How files are read: `none` copies weights to pinned memory, `mmap` leaves them in the page cache.
const LOAD_MODES: [&str; 2] = ["none", "mmap"];
/// Repetitions of a trial: the winner is timed again in full.
const REPETITIONS: u32 = 1;

/// The room that the peer has.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// Bytes of the card that it may take.
    pub budget_bytes: u64,
    /// Layers of the model.
    pub layers: u32,
    /// Bytes of one layer's experts in its file.
    pub layer_bytes: u64,
}

/// One setting that was timed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// What it was.
    pub setting: Setting,
    /// Median of its repetitions.
    pub tokens_per_s: f64,
    /// Peak of the card's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
    /// Whether that is inside the budget.
    pub fits: bool,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// The fastest setting that fits.
    pub best: Trial,
    /// Everything that was tried, in order.
    pub trials: Vec<Trial>,
}

/// Runs a setting at several micro-batches and thread counts.
pub trait Runner {
    /// One row for each micro-batch and thread count.
    ///
    /// # Errors
    /// When the program fails.
    fn run(
        &mut self,
        setting: &Setting,
        ubatches: &[u32],
        threads: &[u32],
        workload: Workload,
    ) -> anyhow::Result<Vec<Row>>;
}

/// The program itself, watched.
pub struct Watched<'a> {
    /// The program.
    pub bench: &'a LlamaBench,
    /// Sees the card; absent where nothing runs on one.
    pub watch: Option<&'a CardWatch>,
    /// Everything that it printed so far.
    pub raw: String,
}

impl Runner for Watched<'_> {
    fn run(
        &mut self,
        setting: &Setting,
        ubatches: &[u32],
        threads: &[u32],
        workload: Workload,
    ) -> anyhow::Result<Vec<Row>> {
        if let Some(watch) = self.watch {
            watch.take_peak();
        }
        let finished = self.bench.run(setting, ubatches, threads, workload, REPETITIONS, self.watch)?;
        self.raw.push_str(&format!("$ {}\n{}", finished.command, finished.raw));
        Ok(finished.rows)
    }
}

/// The fastest setting for a workload. Without `room` nothing runs on a card, and only threads are to be chosen.
///
/// # Errors
/// When the program fails, or nothing fits.
pub fn search(runner: &mut impl Runner, room: Option<Room>, workload: Workload, cores: u32) -> anyhow::Result<Found> {
    let mut search = Search { runner, room, workload, trials: Vec::new() };
    let half = [cores, (cores / 2).max(1)];
    let threads = if cores > 1 { &half[..] } else { &half[..1] };
    match room {
        None => {
            let setting = setting(0, 0, DECODE_UBATCH, LOAD_MODES[0], cores);
            search.rows(&setting, &search.ubatches(), threads)?;
        }
        Some(room) => search.on_card(room, threads, cores)?,
    }
    search.best()
}

fn setting(n_gpu_layers: u32, n_cpu_moe: u32, n_ubatch: u32, load_mode: &str, threads: u32) -> Setting {
    Setting { n_gpu_layers, n_cpu_moe, n_ubatch, load_mode: load_mode.to_owned(), threads }
}

struct Search<'a, R> {
    runner: &'a mut R,
    room: Option<Room>,
    workload: Workload,
    trials: Vec<Trial>,
}

/// More than any model's layers: all of them, and the head.
const ALL_LAYERS: u32 = 999;

impl<R: Runner> Search<'_, R> {
    fn ubatches(&self) -> Vec<u32> {
        match self.workload {
            Workload::Decode { .. } => vec![DECODE_UBATCH],
            // A micro-batch beyond the prompt is the prompt; one is tried whatever the prompt's length.
            Workload::Prefill { tokens } => {
                UBATCHES.into_iter().filter(|&size| size <= tokens.max(UBATCHES[0])).collect()
            }
        }
    }

    /// All experts on the card, if they fit; else every expert on the CPU says what the rest takes, and then as many layers as fit,
    /// for each micro-batch.
    fn on_card(&mut self, room: Room, threads: &[u32], cores: u32) -> anyhow::Result<()> {
        if u64::from(room.layers) * room.layer_bytes < room.budget_bytes {
            let all = setting(ALL_LAYERS, 0, DECODE_UBATCH, LOAD_MODES[0], cores);
            self.rows(&all, &self.ubatches(), &[cores])?;
            if self.trials.iter().any(|trial| trial.fits) {
                // Nothing is left to the CPU: neither threads nor how files are read change anything.
                return Ok(());
            }
        }
        let base = setting(ALL_LAYERS, room.layers, DECODE_UBATCH, LOAD_MODES[0], cores);
        let rows = self.rows(&base, &self.ubatches(), &[cores])?;
        let mut wanted: Vec<(u32, u32)> = rows
            .iter()
            .filter_map(|row| Some((room.least_n_cpu_moe(row.peak_bytes?)?, row.n_ubatch)))
            .filter(|&(n_cpu_moe, _)| n_cpu_moe < room.layers)
            .collect();
        wanted.sort_unstable();
        for group in wanted.chunk_by(|a, b| a.0 == b.0) {
            let ubatches: Vec<u32> = group.iter().map(|&(_, size)| size).collect();
            self.fitted(room, group[0].0, &ubatches, threads)?;
        }
        let best = self.best()?.best.setting;
        let other = Setting { load_mode: LOAD_MODES[1].to_owned(), ..best.clone() };
        self.rows(&other, &[best.n_ubatch], &[best.threads])?;
        Ok(())
    }

    /// From `n_cpu_moe` on, the first that fits.
    fn fitted(&mut self, room: Room, n_cpu_moe: u32, ubatches: &[u32], threads: &[u32]) -> anyhow::Result<()> {
        for n_cpu_moe in n_cpu_moe..room.layers {
            let setting = setting(ALL_LAYERS, n_cpu_moe, ubatches[0], LOAD_MODES[0], threads[0]);
            let rows = self.rows(&setting, ubatches, threads)?;
            if rows.iter().all(|row| row.peak_bytes.is_some_and(|peak| peak <= room.budget_bytes)) {
                break;
            }
        }
        Ok(())
    }

    fn rows(&mut self, setting: &Setting, ubatches: &[u32], threads: &[u32]) -> anyhow::Result<Vec<Row>> {
        let rows = self.runner.run(setting, ubatches, threads, self.workload)?;
        for row in &rows {
            let fits = self.room.is_none_or(|room| row.peak_bytes.is_some_and(|peak| peak <= room.budget_bytes));
            self.trials.push(Trial {
                setting: Setting { n_ubatch: row.n_ubatch, threads: row.n_threads, ..setting.clone() },
                tokens_per_s: median(&row.samples_ts)?.value,
                peak_bytes: row.peak_bytes,
                fits,
            });
        }
        Ok(rows)
    }

    fn best(&self) -> anyhow::Result<Found> {
        let fitting = self.trials.iter().filter(|trial| trial.fits);
        let best = fitting.max_by(|a, b| a.tokens_per_s.total_cmp(&b.tokens_per_s)).cloned();
        let best = best.with_context(|| {
            let least = self.trials.iter().filter_map(|trial| trial.peak_bytes).min();
            let budget = self.room.map(|room| room.budget_bytes);
            format!("no setting of the peer fits: the least peak is {least:?} bytes, the budget {budget:?}")
        })?;
        ensure!(best.tokens_per_s > 0.0, "the peer's best setting made no token: {best:?}");
        Ok(Found { best, trials: self.trials.clone() })
    }
}

impl Room {
    /// The fewest layers whose experts must stay on the CPU, where `base` bytes are taken with all of them there.
    fn least_n_cpu_moe(&self, base: u64) -> Option<u32> {
        let free = self.budget_bytes.checked_sub(base.checked_add(SLACK_BYTES)?)?;
        let fit =
            free.checked_div(self.layer_bytes).map_or(self.layers, |layers| layers.min(self.layers.into()) as u32);
        Some(self.layers - fit)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A peer that takes 2 GiB, 256 MiB for every 1,024 tokens of a micro-batch, and its layers on the card; experts on the CPU slow
    /// it, a large micro-batch and half the threads speed it up.
    struct Modelled {
        room: Room,
        /// Taken beyond what the file says, a layer.
        hidden_bytes: u64,
        runs: usize,
    }

    impl Runner for Modelled {
        fn run(
            &mut self,
            setting: &Setting,
            ubatches: &[u32],
            threads: &[u32],
            workload: Workload,
        ) -> anyhow::Result<Vec<Row>> {
            self.runs += 1;
            let on_card = u64::from(self.room.layers - setting.n_cpu_moe);
            let rows =
                ubatches.iter().flat_map(|&n_ubatch| threads.iter().map(move |&n_threads| (n_ubatch, n_threads)));
            let row = |(n_ubatch, n_threads): (u32, u32)| {
                let cpu = f64::from(setting.n_cpu_moe) * (1.0 + f64::from(n_threads) / 16.0);
                let load = if setting.load_mode == "mmap" { 1.5 } else { 1.0 };
                let speed = 1000.0 * f64::from(n_ubatch).sqrt() / (10.0 + cpu * load);
                let peak =
                    2 * GIB + u64::from(n_ubatch) * (256 << 10) + on_card * (self.room.layer_bytes + self.hidden_bytes);
                Row {
                    build_commit: "x".to_owned(),
                    model_type: "x".to_owned(),
                    model_size: 1,
                    n_prompt: workload.tokens(),
                    n_gen: 0,
                    n_depth: 0,
                    n_ubatch,
                    n_threads,
                    samples_ts: vec![speed, speed],
                    peak_bytes: Some(peak),
                }
            };
            Ok(rows.map(row).collect())
        }
    }

    fn found(budget_gib: u64, hidden_bytes: u64, workload: Workload) -> anyhow::Result<(Found, usize)> {
        let room = Room { budget_bytes: budget_gib * GIB, layers: 48, layer_bytes: GIB / 3 };
        let mut peer = Modelled { room, hidden_bytes, runs: 0 };
        Ok((search(&mut peer, Some(room), workload, 16)?, peer.runs))
    }

    #[test]
    fn everything_on_the_card_where_it_fits() {
        let (found, runs) = found(24, 0, Workload::Prefill { tokens: 8192 }).unwrap();
        let best = found.best.setting;
        assert_eq!((best.n_cpu_moe, best.n_ubatch, best.load_mode.as_str(), runs), (0, 8192, "none", 1));
    }

    #[test]
    fn as_many_layers_as_fit_and_the_better_threads() {
        let (found, _) = found(10, 0, Workload::Decode { tokens: 128, depth: 512 }).unwrap();
        let best = &found.best;
        // 10 GiB less 2.125 for the rest: 23 layers of a third.
        assert_eq!((best.setting.n_cpu_moe, best.setting.threads), (25, 8));
        assert!(best.peak_bytes.unwrap() <= 10 * GIB && found.trials.iter().any(|trial| trial.setting.threads == 16));
    }

    #[test]
    fn a_layer_that_takes_more_than_its_file_moves_back() {
        let (found, _) = found(10, 16 << 20, Workload::Decode { tokens: 128, depth: 512 }).unwrap();
        assert!(found.best.fits && found.best.setting.n_cpu_moe == 26, "{:?}", found.best);
        assert!(found.trials.iter().any(|trial| !trial.fits), "one did not fit");
    }

    #[test]
    fn what_does_not_fit_at_all_is_an_error() {
        let error = found(2, 0, Workload::Decode { tokens: 128, depth: 512 }).unwrap_err().to_string();
        assert!(error.contains("no setting of the peer fits") && error.contains(&(2 * GIB).to_string()), "{error}");
    }
}
