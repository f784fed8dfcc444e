//! What a card allows, and how fast that lets a configuration be.
//!
//! The limit is the roofline of Williams, Waterman and Patterson (Communications of the ACM 52, 2009) with a roof for the link: work
//! that overlaps completely takes as long as the longest part of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DeviceIdentity, Measure, SpeedBody, SpeedRow};

/// The cold path of decode on which kernels read experts out of mapped host memory.
const FETCHED_BY_KERNELS: &str = "multiprocessors";

/// What a card allows, each figure measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RooflineBody {
    /// The card's name.
    pub device: String,
    /// Driver version.
    pub driver: String,
    /// CUDA version of the driver.
    pub cuda: String,
    /// Reading device memory, bytes a second.
    pub memory_read_bytes_per_s: f64,
    /// Host to device, by the size of a copy, rising.
    pub link: Vec<LinkRate>,
    /// A large BF16 product, operations a second; absent where there is no library for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bf16_product_flop_per_s: Option<f64>,
    /// Launching a kernel, one after another, seconds.
    pub launch_s: f64,
    /// A node of a graph, seconds.
    pub graph_node_s: f64,
    /// A kernel, 64 bytes back, and waiting for them, seconds.
    pub round_trip_s: f64,
}

/// How fast copies of one size cross the link.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkRate {
    /// Bytes of a copy.
    pub copy_bytes: u64,
    /// By the copy engine, bytes a second.
    pub copy_engine_bytes_per_s: f64,
    /// By multiprocessors that read mapped host memory, bytes a second.
    pub multiprocessors_bytes_per_s: f64,
}

/// What one token takes of the device, whichever experts are resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenWork {
    /// Bytes of weights that a decoded token reads from device memory: its experts, attention, dense layers and head. Keys and
    /// values, which grow with the context, are left out.
    pub decode_read_bytes: u64,
    /// Weights that each prompt token is multiplied with; the head, which the last one alone needs, is left out.
    pub prefill_weights: u64,
    /// Bytes of one expert: what decode copies at a time; 0 without experts.
    pub expert_bytes: u64,
}

impl RooflineBody {
    /// True if it was measured on such a card under such a driver.
    pub fn is_of(&self, device: &DeviceIdentity) -> bool {
        self.device == device.name
            && device.driver.as_ref() == Some(&self.driver)
            && device.cuda.as_ref() == Some(&self.cuda)
    }

    /// Bytes a second of copies of `copy_bytes`, by whichever way is faster: as for the next larger size that was measured, so
    /// never less than the card allows. The fastest of all where no size is given or none was as large.
    fn link_bytes_per_s(&self, copy_bytes: Option<u64>) -> Option<f64> {
        let rate = |link: &LinkRate| link.copy_engine_bytes_per_s.max(link.multiprocessors_bytes_per_s);
        let at_least = copy_bytes.and_then(|bytes| self.link.iter().find(|link| link.copy_bytes >= bytes));
        let fastest = || self.link.iter().map(rate).reduce(f64::max);
        at_least.map(rate).or_else(fastest).filter(|&rate| rate > 0.0)
    }
}

impl SpeedBody {
    /// The fastest that `row`, one of this body's, could have been, in tokens a second: by the declared link of the host device, or
    /// by what `roofline` says of the card for the bytes that were moved, the weights that decode reads and the products of
    /// prefill. `None` for measures of other kinds, and where nothing is known to bound it.
    pub fn limit(&self, row: &SpeedRow, roofline: Option<&RooflineBody>) -> Option<f64> {
        let tokens = row.tokens as f64 * row.samples.len() as f64;
        let seconds = match (row.modelled_link_s, roofline) {
            (Some(seconds), _) => seconds,
            (None, Some(roofline)) => self.least_seconds(row, tokens, roofline)?,
            (None, None) => return None,
        };
        (seconds > 0.0 && tokens > 0.0).then(|| tokens / seconds)
    }

    fn least_seconds(&self, row: &SpeedRow, tokens: f64, roofline: &RooflineBody) -> Option<f64> {
        let work = self.work.as_ref();
        // Records that do not know a token's work counted of the bytes that kernels fetched only what stayed.
        if work.is_none() && row.measure == Measure::Decode && self.cold_path.as_deref() == Some(FETCHED_BY_KERNELS) {
            return None;
        }
        let (copy_bytes, compute_s) = match row.measure {
            Measure::Decode => (
                work.map(|work| work.expert_bytes),
                work.map(|work| tokens * work.decode_read_bytes as f64 / roofline.memory_read_bytes_per_s),
            ),
            Measure::Prefill => {
                let operations = work.map(|work| 2.0 * tokens * work.prefill_weights as f64);
                (None, operations.zip(roofline.bf16_product_flop_per_s).map(|(work, rate)| work / rate))
            }
            _ => return None,
        };
        let moved = row.hcs.as_ref().map_or(0, |hcs| hcs.cold_bytes) as f64;
        let link_s = roofline.link_bytes_per_s(copy_bytes).map(|rate| moved / rate);
        [link_s, compute_s].into_iter().flatten().filter(|seconds| seconds.is_finite()).reduce(f64::max)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::schema::Hcs;
    use std::collections::BTreeMap;

    fn roofline() -> RooflineBody {
        let link = |copy_bytes, engine, kernel| LinkRate {
            copy_bytes,
            copy_engine_bytes_per_s: engine,
            multiprocessors_bytes_per_s: kernel,
        };
        RooflineBody {
            device: "a card".to_owned(),
            driver: "1".to_owned(),
            cuda: "13.0".to_owned(),
            memory_read_bytes_per_s: 4e12,
            link: vec![link(1 << 20, 40e9, 44e9), link(4 << 20, 50e9, 48e9), link(1 << 28, 55e9, 51e9)],
            bf16_product_flop_per_s: Some(8e14),
            launch_s: 3e-6,
            graph_node_s: 5e-7,
            round_trip_s: 1e-5,
        }
    }

    fn row(measure: Measure, tokens: u64, cold_bytes: u64) -> SpeedRow {
        let hcs = Some(Hcs { resident: 0, total: 64, hit_rate: None, cold_bytes });
        let samples = vec![1.0; 10];
        SpeedRow {
            measure,
            tokens,
            depth: None,
            unit: "tok/s".to_owned(),
            median: 1.0,
            ci95: None,
            best: 1.0,
            samples,
            hcs,
            modelled_link_s: None,
        }
    }

    #[test]
    fn the_longest_part_bounds_a_row() {
        let work =
            TokenWork { decode_read_bytes: 2_000_000_000, prefill_weights: 4_000_000_000, expert_bytes: 2 << 20 };
        let body = |work| SpeedBody {
            rows: Vec::new(),
            hcs: None,
            low_water_bytes: BTreeMap::new(),
            modelled_link_s: None,
            cold_path: None,
            host_share: None,
            layers: Vec::new(),
            driver: None,
            startup_s: BTreeMap::new(),
            work,
            roofline: None,
        };
        let check = |row: SpeedRow, work, expected: Option<f64>| {
            let found = body(work).limit(&row, Some(&roofline()));
            let near = found.zip(expected).map_or(found == expected, |(a, b)| (a / b - 1.0).abs() < 1e-12);
            assert!(near, "{:?} of {}: {found:?}, expected {expected:?}", row.measure, row.tokens);
        };
        // 1,000 tokens: 0.5 ms each from memory, or 1e9 bytes each at the rate of copies of 4 MiB.
        check(row(Measure::Decode, 100, 0), Some(work), Some(2000.0));
        check(row(Measure::Decode, 100, 1_000_000_000_000), Some(work), Some(50.0));
        // An older record does not say how large an expert is: the fastest copies bound it.
        check(row(Measure::Decode, 100, 1_000_000_000_000), None, Some(55.0));
        check(row(Measure::Decode, 100, 0), None, None);
        let fetched = SpeedBody { cold_path: Some("multiprocessors".to_owned()), ..body(None) };
        assert_eq!(fetched.limit(&row(Measure::Decode, 100, 1_000_000_000_000), Some(&roofline())), None);
        // 10,000 tokens: 8e9 operations each, or 1e8 bytes each.
        check(row(Measure::Prefill, 1000, 0), Some(work), Some(1e5));
        check(row(Measure::Prefill, 1000, 1_000_000_000_000), Some(work), Some(550.0));
        check(row(Measure::HttpFirstToken, 1000, 0), Some(work), None);
        let declared = SpeedRow { modelled_link_s: Some(2.0), ..row(Measure::Decode, 100, 7) };
        check(declared.clone(), None, Some(500.0));
        assert_eq!(body(None).limit(&declared, None), Some(500.0));
        assert_eq!(body(None).limit(&row(Measure::Decode, 100, 7), None), None);
    }
}
