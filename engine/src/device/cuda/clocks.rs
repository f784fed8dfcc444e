//! What holds a card's clocks back, as NVML tells it: for records, never on the token path.

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, PerformancePolicy, TemperatureSensor};

use super::gauge::Gauge;

/// Reasons that slow a card down, by name. Being idle, and clocks that somebody has set, are none.
const REASONS: [(ThrottleReasons, &str); 6] = [
    (ThrottleReasons::SW_POWER_CAP, "power cap"),
    (ThrottleReasons::HW_SLOWDOWN, "hardware slowdown"),
    (ThrottleReasons::SYNC_BOOST, "sync boost"),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, "thermal slowdown"),
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, "hardware thermal slowdown"),
    (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power brake"),
];

/// A card at one moment; a field is absent where NVML does not say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CardClocks {
    /// Of the multiprocessors, MHz.
    pub sm_mhz: Option<u32>,
    /// Degrees Celsius.
    pub temperature_c: Option<u32>,
    /// Milliwatts.
    pub power_mw: Option<u32>,
    /// What slows it down now.
    pub held_back_by: Vec<&'static str>,
    /// How long heat has held it back since the driver was loaded, nanoseconds.
    pub thermal_ns: Option<u64>,
    /// How long its power limit has.
    pub power_ns: Option<u64>,
}

impl Gauge {
    /// The card's clocks now, and what slows them down.
    pub fn clocks(&self) -> CardClocks {
        let Ok(device) = self.device() else { return CardClocks::default() };
        let reasons = device.current_throttle_reasons().unwrap_or(ThrottleReasons::NONE);
        let held_back = |policy| device.violation_status(policy).ok().map(|time| time.violation_time);
        CardClocks {
            sm_mhz: device.clock_info(Clock::SM).ok(),
            temperature_c: device.temperature(TemperatureSensor::Gpu).ok(),
            power_mw: device.power_usage().ok(),
            held_back_by: REASONS
                .iter()
                .filter(|(reason, _)| reasons.contains(*reason))
                .map(|(_, name)| *name)
                .collect(),
            thermal_ns: held_back(PerformancePolicy::Thermal),
            power_ns: held_back(PerformancePolicy::Power),
        }
    }
}
