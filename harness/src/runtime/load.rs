//! What else the machine did while a process ran. It is written down and marked; no sample is dropped for it.

use serde::{Deserialize, Serialize};
use std::path::Path;

/// A process beside which others took more of the processors' time than this is marked.
const MARKED_SHARE: f64 = 0.05;

/// Counters of the machine at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    /// Ticks that any processor was busy.
    busy: u64,
    /// Ticks that another machine took away.
    stolen: u64,
    /// Ticks in all.
    total: u64,
    /// Ticks of this process and of its children that have ended.
    own: u64,
    /// Times that a processor slowed itself down because of its heat.
    throttled: u64,
}

/// What happened beside a process.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Disturbance {
    /// Share of the processors' time that other processes took, 0 to 1.
    pub others_share: f64,
    /// Share that other machines took of a virtual one's processors, 0 to 1.
    pub stolen_share: f64,
    /// Times that a processor slowed itself down because of its heat.
    pub throttled: u64,
}

impl Counters {
    /// As they are now; zero where the system does not say.
    pub(crate) fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let own = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let (busy, stolen, total) = processors(&stat).unwrap_or_default();
        Counters { busy, stolen, total, own: own_ticks(&own).unwrap_or_default(), throttled: throttled() }
    }

    /// What happened from `self` to `later`, apart from what this process and its children did.
    pub(crate) fn until(self, later: Self) -> Disturbance {
        let total = later.total.saturating_sub(self.total).max(1) as f64;
        let busy = later.busy.saturating_sub(self.busy);
        let own = later.own.saturating_sub(self.own);
        Disturbance {
            others_share: busy.saturating_sub(own) as f64 / total,
            stolen_share: later.stolen.saturating_sub(self.stolen) as f64 / total,
            throttled: later.throttled.saturating_sub(self.throttled),
        }
    }
}

impl Disturbance {
    /// Whether the process is marked.
    pub fn is_marked(&self) -> bool {
        self.others_share + self.stolen_share > MARKED_SHARE || self.throttled > 0
    }
}

/// Busy, stolen and all ticks: the first line of `/proc/stat` (user, nice, system, idle, iowait, irq, softirq, steal, …).
fn processors(stat: &str) -> Option<(u64, u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let [user, nice, system, idle, iowait, irq, softirq, steal] = *ticks.first_chunk::<8>()?;
    let busy = user + nice + system + irq + softirq;
    Some((busy, steal, busy + steal + idle + iowait))
}

/// User and system ticks of this process and of its children that were waited for: fields 14 to 17 of `/proc/self/stat`.
fn own_ticks(stat: &str) -> Option<u64> {
    // The second field is a name in brackets and may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().skip(11).take(4).map(|field| field.parse::<u64>().ok()).sum()
}

fn throttled() -> u64 {
    let Ok(folders) = std::fs::read_dir("/sys/devices/system/cpu") else { return 0 };
    let count = |folder: &Path| {
        let text = std::fs::read_to_string(folder.join("thermal_throttle/core_throttle_count")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    folders.flatten().filter_map(|folder| count(&folder.path())).sum()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_system_s_files_are_read() {
        let stat = "cpu  100 1 50 1000 20 3 4 7 0 0\ncpu0 1 2\n";
        assert_eq!(processors(stat), Some((158, 7, 1185)));
        assert_eq!(processors("cpu  1 2"), None);
        let own = "42 (a ) name) S 1 2 3 4 5 6 7 8 9 10 500 60 30 4 20 0";
        assert_eq!(own_ticks(own), Some(594));
    }

    #[test]
    fn what_others_did_is_what_is_left() {
        let before = Counters { busy: 100, stolen: 0, total: 1_000, own: 50, throttled: 3 };
        let after = Counters { busy: 260, stolen: 10, total: 1_200, own: 190, throttled: 3 };
        let seen = before.until(after);
        assert_eq!(seen, Disturbance { others_share: 0.1, stolen_share: 0.05, throttled: 0 });
        assert!(seen.is_marked() && !Disturbance::default().is_marked());
        assert!(Disturbance { throttled: 1, ..Disturbance::default() }.is_marked());
    }
}
