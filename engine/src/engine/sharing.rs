//! Cold experts that the host computes while the link carries others: whether that pays on this machine, and how many.
//!
//! A layer with m cold experts has c of them computed by the host and m - c copied, both at once, so it takes the longer of the two. What either takes is
//! measured; but they share the host's memory, and then each takes longer than alone. So several ratios are tried on whole tokens, and what was
//! fastest is kept: the copies alone too.
//!
//! A host that had time at startup may have none later, and everything waits for the slowest of its threads. So it is watched: when over some tokens it
//! takes longer for its part than the link would for all, it is done without from there on.

use std::time::Duration;

use super::Engine;
use super::calibrate::ColdPath;
use super::counting::routes_of_layers;
use crate::device::kernel::{TeamLayer, TeamWork};
use crate::device::{Device, Stream};
use crate::error::EngineError;
use crate::model::spec::FfnSpec;

/// How much longer than alone the host is taken to need beside copies.
const SLOWDOWNS: [f64; 4] = [1.0, 1.25, 1.6, 2.2];

/// How often either is timed; the fastest counts.
const TIMINGS: usize = 5;

/// From a kernel's request to the thread that sees it, and back.
const ROUND_TRIP: Duration = Duration::from_micros(5);

/// Tokens after which it is asked whether the host was worth it.
const WATCHED: u64 = 32;

/// What was measured, and what follows from it.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Sharing {
    /// Of the host.
    pub threads: usize,
    /// `[top_k + 1]`: of so many cold experts of a layer, how many the host computes.
    pub by_host: Vec<u32>,
    /// Of one expert over the link, among several.
    pub copy: Duration,
    /// `[top_k]`: of 1, 2, ... experts on the host, with nothing else to do.
    pub host: Vec<Duration>,
    /// A token with both.
    pub token: Duration,
    /// A token by the faster way without the host.
    pub without: Duration,
    /// Where the host is done without since.
    pub given_up: Option<GivenUp>,
}

/// A host that became too slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct GivenUp {
    /// That it had a share in.
    pub tokens: u64,
    /// That it took for its part of a token, of late.
    pub host: Duration,
    /// That the link would have taken for all cold experts of those layers.
    pub link: Duration,
}

/// What is known of the host since it was hired.
#[derive(Debug, Default)]
pub(super) struct Watch {
    tokens: u64,
    /// Of the tokens since it was last asked about: when it was asked, and what the link would have taken.
    host_before: Duration,
    link: Duration,
}

impl<D: Device> Engine<D> {
    /// How cold experts are shared between the link and the host, where they are.
    pub fn sharing(&self) -> Option<&Sharing> {
        self.sharing.as_ref()
    }

    /// Whether tokens are faster than `without` with the host's help, which is then arranged.
    pub(super) fn share_with_host(&mut self, tokens: usize, without: Duration) -> Result<bool, EngineError> {
        if self.residency.resident() == self.residency.total() || !self.hire_team()? {
            return Ok(false);
        }
        let (copy, host) = (self.time_copy()?, self.time_team()?);
        let mut tried: Vec<Vec<u32>> = vec![vec![0; host.len() + 1]];
        let mut best: Option<Sharing> = None;
        for slowdown in SLOWDOWNS {
            let by_host = shares(copy, &host, slowdown);
            if tried.contains(&by_host) {
                continue;
            }
            self.send_shares(&by_host)?;
            let token = self.time_decode(ColdPath::WithHost, tokens)?;
            if token < best.as_ref().map_or(without, |best| best.token) {
                let (threads, host) = (self.options.host_threads, host.clone());
                best = Some(Sharing { threads, by_host: by_host.clone(), copy, host, token, without, given_up: None });
            }
            tried.push(by_host);
        }
        // Experts have been promoted meanwhile: what comes last has fewer cold ones.
        let without = without.min(self.time_decode(ColdPath::Multiprocessors, tokens)?);
        match best.filter(|best| best.token < without) {
            Some(sharing) => {
                self.send_shares(&sharing.by_host)?;
                self.watch = Watch { host_before: self.device.link().host_time, ..Watch::default() };
                self.sharing = Some(Sharing { without, ..sharing });
                Ok(true)
            }
            None => {
                self.do_without_host();
                Ok(false)
            }
        }
    }

    /// After a token with these routes, before its promotions: whether the host is still worth waiting for.
    pub(super) fn watch_host(&mut self, routes: &[u32]) {
        let Some(sharing) = self.sharing.as_ref().filter(|_| self.cold_path == ColdPath::WithHost) else { return };
        for (layer, routes) in routes_of_layers(&self.spec, self.plan.sizes.top_k, routes) {
            let cold = routes.iter().filter(|&&expert| self.residency.tier(layer, expert as usize).is_none()).count();
            if sharing.by_host[cold] > 0 {
                self.watch.link += sharing.copy * cold as u32;
            }
        }
        self.watch.tokens += 1;
        if !self.watch.tokens.is_multiple_of(WATCHED) {
            return;
        }
        let (now, link) = (self.device.link().host_time, std::mem::take(&mut self.watch.link));
        let host = now.saturating_sub(std::mem::replace(&mut self.watch.host_before, now));
        if host > link {
            let each = |time: Duration| time / WATCHED as u32;
            let given_up = Some(GivenUp { tokens: self.watch.tokens, host: each(host), link: each(link) });
            let sharing = self.sharing.take();
            self.do_without_host();
            self.sharing = sharing.map(|sharing| Sharing { given_up, ..sharing });
        }
    }

    /// Cold experts are copied from here on. After an error of the host's threads nothing that asks them is under way.
    pub(super) fn do_without_host(&mut self) {
        self.device.dismiss();
        self.sharing = None;
        self.cold_path = ColdPath::Multiprocessors;
        if let Some(captured) = &mut self.captured {
            captured.forget_shared();
        }
    }

    /// Has the host compute half of what is cold, rounded up, whatever that takes.
    pub(super) fn share_half(&mut self) -> Result<(), EngineError> {
        let by_host: Vec<u32> = (0..=self.plan.sizes.top_k as u32).map(|cold| cold.div_ceil(2)).collect();
        self.send_shares(&by_host)
    }

    /// Starts the host's threads, where the device can use them.
    pub(super) fn hire_team(&mut self) -> Result<bool, EngineError> {
        let (Some(bank), Some(captured)) = (self.plan.bank, &self.captured) else { return Ok(false) };
        let moe = self.spec.layers.iter().filter_map(|layer| match &layer.ffn {
            FfnSpec::Moe(moe) => Some(moe),
            FfnSpec::Dense(_) => None,
        });
        let layer = |(index, moe): (usize, &crate::model::spec::MoeSpec)| TeamLayer {
            bank_start: bank.layer_offset(index),
            activation: moe.activation(),
        };
        let work = TeamWork {
            layers: moe.enumerate().map(layer).collect(),
            expert: bank.expert,
            num_experts: bank.num_experts,
            top_k: self.plan.sizes.top_k,
            threads: self.options.host_threads,
            sequence: captured.exchange.sequence,
        };
        Ok(self.device.hire(work)?)
    }

    fn send_shares(&mut self, by_host: &[u32]) -> Result<(), EngineError> {
        let Some(captured) = &self.captured else { return Ok(()) };
        let to = captured.exchange.by_host.first(by_host.len())?;
        Ok(self.device.upload(bytemuck::cast_slice(by_host), to.as_bytes())?)
    }

    /// How long the link takes for one expert of several.
    fn time_copy(&mut self) -> Result<Duration, EngineError> {
        let Some(bank) = self.plan.bank else { return Ok(Duration::ZERO) };
        let landing: Vec<u64> = self.residency.landing(self.plan.sizes.top_k).collect();
        let mut fastest = Duration::MAX;
        for _ in 0..TIMINGS {
            self.device.synchronize()?;
            let start = std::time::Instant::now();
            for (expert, &to) in landing.iter().enumerate() {
                let to = crate::device::Span::new(to, bank.expert.bytes);
                let expert = crate::residency::ExpertId((expert % bank.num_experts) as u32);
                self.device.copy_from_bank(&self.bank, bank.expert_range(expert), to)?;
            }
            let event = self.device.record(Stream::Copy)?;
            self.device.wait(Stream::Compute, event)?;
            self.device.synchronize()?;
            fastest = fastest.min(start.elapsed());
        }
        Ok(fastest / landing.len().max(1) as u32)
    }

    /// How long the host takes for 1, 2, ... experts of a layer.
    fn time_team(&mut self) -> Result<Vec<Duration>, EngineError> {
        let Some(bank) = self.plan.bank else { return Ok(Vec::new()) };
        let (layers, experts) = (self.plan.sizes.moe_layers.max(1), bank.num_experts.max(1));
        self.device.synchronize()?;
        let mut times = Vec::new();
        for count in 1..=self.plan.sizes.top_k {
            let mut fastest = Duration::MAX;
            for timing in 0..TIMINGS {
                // Others each time: what was just read is in the processors' caches.
                let first = (timing * self.plan.sizes.top_k + count) * 7;
                let ids: Vec<u32> = (0..count).map(|i| ((first + i) % experts) as u32).collect();
                fastest = fastest.min(self.device.time_team((timing * 5 + count) % layers, &ids)?);
            }
            times.push(fastest + ROUND_TRIP);
        }
        Ok(times)
    }
}

/// `[top_k + 1]`: of m cold experts, how many the host computes, where one copy takes `copy`, and 1, 2, ... experts on the host take `host`
/// times `slowdown`. Fewer where it makes no difference.
fn shares(copy: Duration, host: &[Duration], slowdown: f64) -> Vec<u32> {
    let takes = |cold: usize, by_host: usize| {
        let computed = if by_host == 0 { 0.0 } else { host[by_host - 1].as_secs_f64() * slowdown };
        computed.max((cold - by_host) as f64 * copy.as_secs_f64())
    };
    let best = |cold: usize| (0..=cold).min_by(|&a, &b| takes(cold, a).total_cmp(&takes(cold, b))).unwrap_or(0);
    (0..=host.len()).map(|cold| best(cold) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_takes_the_longer_of_both_parts() {
        let micros = Duration::from_micros;
        let host: Vec<Duration> = (1..=8).map(|experts| micros(10 + 20 * experts)).collect();
        // One copy is 50: 30 for one on the host, 50 for two beside nothing, then both sides grow.
        assert_eq!(shares(micros(50), &host, 1.0), [0, 1, 1, 2, 3, 4, 4, 5, 6]);
        // Twice as slow, so that one alone is better copied.
        assert_eq!(shares(micros(50), &host, 2.0)[..4], [0, 0, 1, 1]);
        // A host that is never worth it.
        assert_eq!(shares(micros(5), &[micros(100), micros(200)], 1.0), [0, 0, 0]);
        assert_eq!(shares(micros(5), &[], 1.0), [0]);
    }
}
