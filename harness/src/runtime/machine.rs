//! The processor, as an input and as an observation.

use assay_ledgers::{Observation, Observations};

/// Where Linux tells about the processor.
const CPUINFO: &str = "/proc/cpuinfo";

/// The processor's model name; `unknown` where the system does not say.
pub fn cpu_name() -> String {
    cpuinfo("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// What was seen of the machine now; each field only where the system says.
pub fn observations() -> Observations {
    let load = std::fs::read_to_string("/proc/loadavg").ok();
    let mut seen = Observations {
        load_average_1m: load.and_then(|text| text.split_whitespace().next()?.parse().ok()),
        cpu_mhz: cpuinfo("cpu MHz").and_then(|text| text.parse().ok()),
        ..Observations::default()
    };
    if let Some(kib) = peak_memory_kib() {
        seen.other.insert("peak_resident_kib".to_owned(), Observation::Number(kib));
    }
    seen
}

/// The most memory that this process has had resident, in KiB.
fn peak_memory_kib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn cpuinfo(field: &str) -> Option<String> {
    let text = std::fs::read_to_string(CPUINFO).ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
