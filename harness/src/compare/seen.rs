//! What else happened beside the processes of a comparison, for its record. Those that were disturbed are counted, and stay in.

use crate::runtime::{CardSeen, Seen};
use assay_ledgers::Observation;
use std::collections::{BTreeMap, BTreeSet};

/// Over all processes.
pub fn observations(processes: &[&Seen]) -> BTreeMap<String, Observation> {
    let most = |of: fn(&Seen) -> f64| processes.iter().map(|seen| of(seen)).fold(0.0, f64::max);
    let count = |of: fn(&Seen) -> bool| processes.iter().filter(|seen| of(seen)).count() as f64;
    let mut numbers = BTreeMap::from([
        ("processes", processes.len() as f64),
        ("processes_disturbed", count(Seen::is_marked)),
        ("others_share_max", most(|seen| seen.machine.others_share)),
        ("stolen_share_max", most(|seen| seen.machine.stolen_share)),
        ("throttle_events", processes.iter().map(|seen| seen.machine.throttled as f64).sum()),
    ]);
    let cards: Vec<&CardSeen> = processes.iter().filter_map(|seen| seen.card.as_ref()).collect();
    if !cards.is_empty() {
        numbers.insert("gpu_throttled_processes", cards.iter().filter(|card| card.is_throttled()).count() as f64);
    }
    let slowest = cards.iter().filter_map(|card| card.sm_mhz_min).min();
    numbers.extend(slowest.map(|mhz| ("gpu_sm_mhz_min", f64::from(mhz))));
    let mut seen: BTreeMap<String, Observation> =
        numbers.into_iter().map(|(name, value)| (name.to_owned(), Observation::Number(value))).collect();
    let reasons: BTreeSet<&str> = cards.iter().flat_map(|card| card.held_back_by.iter().map(String::as_str)).collect();
    if !reasons.is_empty() {
        let reasons = reasons.into_iter().collect::<Vec<_>>().join(", ");
        seen.insert("gpu_held_back_by".to_owned(), Observation::Text(reasons));
    }
    seen
}

/// A sentence about [`observations`], where something was disturbed.
pub fn disturbed(observations: &BTreeMap<String, Observation>) -> Option<String> {
    let number = |name: &str| match observations.get(name) {
        Some(Observation::Number(number)) => *number,
        _ => 0.0,
    };
    let count = number("processes_disturbed");
    let card = match observations.get("gpu_held_back_by") {
        Some(Observation::Text(reasons)) => {
            format!("; {} had the card's clocks held back ({reasons})", number("gpu_throttled_processes"))
        }
        _ => String::new(),
    };
    (count > 0.0).then(|| {
        format!(
            "{count} of {} processes were disturbed (other work on up to {:.0} % of the processors, {:.0} % taken by other \
             machines, {} throttle events{card}); all of them count.",
            number("processes"),
            number("others_share_max") * 100.0,
            number("stolen_share_max") * 100.0,
            number("throttle_events"),
        )
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::runtime::Disturbance;

    #[test]
    fn the_worst_of_all_processes_is_kept() {
        let quiet = Seen::default();
        let busy = Seen { machine: Disturbance { others_share: 0.4, ..Disturbance::default() }, card: None };
        assert_eq!(disturbed(&observations(&[&quiet, &quiet])), None);
        let seen = observations(&[&quiet, &busy]);
        assert_eq!(seen["processes_disturbed"], Observation::Number(1.0));
        assert!(!seen.contains_key("gpu_throttled_processes"));
        assert!(disturbed(&seen).unwrap().starts_with("1 of 2 processes were disturbed (other work on up to 40 %"));

        let held_back_by = BTreeSet::from(["power cap".to_owned()]);
        let card = CardSeen { sm_mhz_min: Some(1500), held_back_by, ..CardSeen::default() };
        let seen = observations(&[&quiet, &Seen { card: Some(card), ..Seen::default() }]);
        assert_eq!(seen["gpu_sm_mhz_min"], Observation::Number(1500.0));
        assert!(disturbed(&seen).unwrap().contains("1 had the card's clocks held back (power cap)"));
    }
}
