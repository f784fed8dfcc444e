//! What else happened while something was timed: other work on the machine, and whatever held the card's clocks back. It is written
//! down and marked; no sample is dropped for it.

use super::load::{Counters, Disturbance};
use crate::config::Device;
use assay_engine::device::cuda::{CardClocks, CardGauge};
use assay_ledgers::Observation;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Watches from its start on; it looks at the card only when it is asked to, between repetitions.
pub struct Watch {
    before: Counters,
    card: Option<CardLooks>,
}

/// What was seen.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Of the machine.
    pub machine: Disturbance,
    /// Of the card, where one was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<CardSeen>,
}

/// What was seen of a card. Figures are absent where NVML does not say.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CardSeen {
    /// The slowest clock of the multiprocessors right after a repetition, MHz.
    pub sm_mhz_min: Option<u32>,
    /// The fastest.
    pub sm_mhz_max: Option<u32>,
    /// The highest temperature, degrees Celsius.
    pub temperature_c_max: Option<u32>,
    /// The most power, watts.
    pub power_w_max: Option<f64>,
    /// How long heat held the clocks back, seconds.
    pub thermal_throttle_s: Option<f64>,
    /// How long the power limit did.
    pub power_throttle_s: Option<f64>,
    /// What held them back at any look, by name.
    pub held_back_by: BTreeSet<String>,
}

struct CardLooks {
    gauge: CardGauge,
    first: CardClocks,
    last: CardClocks,
    seen: CardSeen,
}

impl Watch {
    /// Starts. A card that NVML does not show is not watched.
    pub fn start(device: Device) -> Self {
        let gauge = match device {
            Device::Host => None,
            Device::Cuda => CardGauge::new(0).ok(),
        };
        let card = gauge.map(|gauge| {
            let first = gauge.clocks();
            CardLooks { gauge, last: first.clone(), first, seen: CardSeen::default() }
        });
        Watch { before: Counters::now(), card }
    }

    /// Looks at the card: right after a repetition, while its clocks are still those of the work.
    pub fn look(&mut self) {
        if let Some(card) = &mut self.card {
            card.last = card.gauge.clocks();
            card.seen.add(&card.last);
        }
    }

    /// Ends.
    pub fn finish(mut self) -> Seen {
        self.look();
        let card = self.card.map(|card| card.seen.between(&card.first, &card.last));
        Seen { machine: self.before.until(Counters::now()), card }
    }
}

impl CardSeen {
    fn add(&mut self, now: &CardClocks) {
        self.sm_mhz_min = self.sm_mhz_min.into_iter().chain(now.sm_mhz).min();
        self.sm_mhz_max = self.sm_mhz_max.max(now.sm_mhz);
        self.temperature_c_max = self.temperature_c_max.max(now.temperature_c);
        let power_w = now.power_mw.map(|milliwatts| f64::from(milliwatts) / 1e3);
        self.power_w_max = self.power_w_max.into_iter().chain(power_w).reduce(f64::max);
        self.held_back_by.extend(now.held_back_by.iter().map(|&name| name.to_owned()));
    }

    fn between(mut self, first: &CardClocks, last: &CardClocks) -> Self {
        let seconds = |before: Option<u64>, after: Option<u64>| {
            before.zip(after).map(|(before, after)| after.saturating_sub(before) as f64 / 1e9)
        };
        self.thermal_throttle_s = seconds(first.thermal_ns, last.thermal_ns);
        self.power_throttle_s = seconds(first.power_ns, last.power_ns);
        self
    }

    /// Whether anything held its clocks back.
    pub fn is_throttled(&self) -> bool {
        let held = |seconds: Option<f64>| seconds.is_some_and(|seconds| seconds > 0.0);
        !self.held_back_by.is_empty() || held(self.thermal_throttle_s) || held(self.power_throttle_s)
    }

    /// By what, in words.
    fn reasons(&self) -> String {
        let mut reasons: Vec<String> = self.held_back_by.iter().cloned().collect();
        let mut timed = |name: &str, seconds: Option<f64>| {
            reasons
                .extend(seconds.filter(|&seconds| seconds > 0.0).map(|seconds| format!("{name} for {seconds:.2} s")));
        };
        timed("heat", self.thermal_throttle_s);
        timed("the power limit", self.power_throttle_s);
        reasons.join(", ")
    }
}

impl Seen {
    /// Whether what was timed is marked.
    pub fn is_marked(&self) -> bool {
        self.machine.is_marked() || self.card.as_ref().is_some_and(CardSeen::is_throttled)
    }

    /// For a record.
    pub fn observations(&self) -> BTreeMap<String, Observation> {
        let mut seen = BTreeMap::from([
            ("disturbed".to_owned(), Observation::Flag(self.is_marked())),
            ("others_share".to_owned(), Observation::Number(self.machine.others_share)),
            ("stolen_share".to_owned(), Observation::Number(self.machine.stolen_share)),
            ("throttle_events".to_owned(), Observation::Number(self.machine.throttled as f64)),
        ]);
        let Some(card) = &self.card else { return seen };
        let numbers = [
            ("gpu_sm_mhz_min", card.sm_mhz_min.map(f64::from)),
            ("gpu_sm_mhz_max", card.sm_mhz_max.map(f64::from)),
            ("gpu_temperature_c_max", card.temperature_c_max.map(f64::from)),
            ("gpu_power_w_max", card.power_w_max),
            ("gpu_thermal_throttle_s", card.thermal_throttle_s),
            ("gpu_power_throttle_s", card.power_throttle_s),
        ];
        seen.extend(
            numbers.into_iter().filter_map(|(name, value)| Some((name.to_owned(), Observation::Number(value?)))),
        );
        seen.insert("gpu_throttled".to_owned(), Observation::Flag(card.is_throttled()));
        if !card.held_back_by.is_empty() {
            let names: Vec<&str> = card.held_back_by.iter().map(String::as_str).collect();
            seen.insert("gpu_held_back_by".to_owned(), Observation::Text(names.join(", ")));
        }
        seen
    }

    /// One sentence where something is marked.
    pub fn line(&self) -> Option<String> {
        let mut parts = Vec::new();
        let Disturbance { others_share, stolen_share, throttled } = self.machine;
        if self.machine.is_marked() {
            parts.push(format!(
                "other work had {:.0} % of the processors, other machines took {:.0} %, they slowed down {throttled} times for heat",
                others_share * 100.0,
                stolen_share * 100.0
            ));
        }
        if let Some(card) = self.card.as_ref().filter(|card| card.is_throttled()) {
            parts.push(format!("the card's clocks were held back ({})", card.reasons()));
        }
        (!parts.is_empty()).then(|| format!("Disturbed: {}; every sample counts.", parts.join("; ")))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn clocks(sm_mhz: u32, held_back_by: &[&'static str], thermal_ns: u64) -> CardClocks {
        CardClocks {
            sm_mhz: Some(sm_mhz),
            temperature_c: Some(60),
            power_mw: Some(500_000),
            held_back_by: held_back_by.to_vec(),
            thermal_ns: Some(thermal_ns),
            power_ns: None,
        }
    }

    fn seen(looks: &[CardClocks]) -> Seen {
        let mut card = CardSeen::default();
        looks.iter().for_each(|now| card.add(now));
        let card = card.between(&looks[0], &looks[looks.len() - 1]);
        Seen { machine: Disturbance::default(), card: Some(card) }
    }

    #[test]
    fn a_card_that_is_held_back_is_marked() {
        let steady = seen(&[clocks(1980, &[], 7), clocks(1980, &[], 7)]);
        assert!(!steady.is_marked() && steady.line().is_none());
        assert_eq!(steady.observations()["gpu_throttled"], Observation::Flag(false));

        let capped = seen(&[clocks(1980, &[], 7), clocks(1500, &["power cap"], 7), clocks(1980, &[], 7)]);
        let observations = capped.observations();
        assert!(capped.is_marked());
        assert_eq!(observations["disturbed"], Observation::Flag(true));
        assert_eq!(observations["gpu_sm_mhz_min"], Observation::Number(1500.0));
        assert_eq!(observations["gpu_held_back_by"], Observation::Text("power cap".to_owned()));
        assert!(capped.line().unwrap().contains("(power cap)"));

        // Between two looks: the driver's own counter tells.
        let hot = seen(&[clocks(1980, &[], 0), clocks(1980, &[], 1_500_000_000)]);
        assert_eq!(hot.observations()["gpu_thermal_throttle_s"], Observation::Number(1.5));
        assert!(hot.is_marked() && hot.line().unwrap().contains("heat for 1.50 s"));
    }

    #[test]
    fn without_a_card_the_machine_alone_is_watched() {
        let mut watch = Watch::start(Device::Host);
        watch.look();
        let seen = watch.finish();
        assert!(seen.card.is_none());
        assert!(!seen.observations().contains_key("gpu_throttled"));
        let text = serde_json::to_string(&seen).unwrap();
        assert_eq!(serde_json::from_str::<Seen>(&text).unwrap(), seen);
    }
}
