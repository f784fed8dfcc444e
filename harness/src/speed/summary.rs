//! From repetitions to rows, residency, memory and verdicts.

use super::run::{Measured, Sample};
use super::work::token_work;
use crate::statistics::median;
use assay_engine::Engine;
use assay_engine::device::{Device, DeviceKind};
use assay_engine::engine::{LowWater, Sharing};
use assay_engine::residency::LayerUse;
use assay_ledgers::{
    DriverMemory, Hcs, HostGivenUp, HostShare, LayerResidency, Measure, SpeedBody, SpeedRow, Verdict, VerdictRow,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Every figure is a rate.
const UNIT: &str = "tok/s";

/// A speed body and its judgements.
#[derive(Debug, Clone)]
pub struct Summary {
    /// For the record.
    pub body: SpeedBody,
    /// A row each.
    pub verdicts: Vec<VerdictRow>,
}

/// Summarises what was measured; `startup_s` is what each step of starting took.
///
/// # Errors
/// When a row has no sample or a sample is not a number.
pub fn summarise<D: Device>(
    measured: &[Measured],
    engine: &mut Engine<D>,
    timed: usize,
    startup_s: BTreeMap<String, f64>,
) -> anyhow::Result<Summary> {
    let total = engine.residents().total as u64;
    let rows = measured
        .iter()
        .map(|row| speed_row(row, total, engine.options().device))
        .collect::<anyhow::Result<Vec<SpeedRow>>>()?;
    let decode: Vec<&Sample> =
        measured.iter().filter(|row| row.measure == Measure::Decode).flat_map(|row| &row.samples).collect();
    let all: Vec<&Sample> = measured.iter().flat_map(|row| &row.samples).collect();
    let low_water = low_water(&engine.low_water());
    let margin = engine.options().margin_bytes;
    let mut verdicts = vec![exact_counts(measured, timed), margin_kept(&low_water, margin)];
    let driver = engine.overhead()?.map(|overhead| DriverMemory {
        context_bytes: overhead.context_bytes,
        graphs_reserved_bytes: overhead.graphs_reserved_bytes,
        graphs_bytes: overhead.graphs_bytes,
    });
    verdicts.extend(driver.as_ref().map(graphs_kept));
    let layers = engine.take_layer_use().iter().map(layer_residency).collect();
    let hcs = (total > 0).then(|| residency(&decode, total));
    let modelled_link_s = modelled(&all, engine.options().device);
    let cold_path = (engine.options().device == DeviceKind::Cuda).then(|| engine.cold_path().name().to_owned());
    let work = Some(token_work(engine.spec(), engine.options(), engine.plan()));
    let low_water_bytes = low_water;
    let roofline = None;
    let host_share = engine.sharing().map(|sharing| host_share(sharing, &decode));
    let body = SpeedBody {
        rows,
        hcs,
        low_water_bytes,
        modelled_link_s,
        cold_path,
        host_share,
        layers,
        driver,
        startup_s,
        work,
        roofline,
    };
    Ok(Summary { body, verdicts })
}

fn speed_row(row: &Measured, total: u64, device: DeviceKind) -> anyhow::Result<SpeedRow> {
    let rates: Vec<f64> = row.samples.iter().map(|sample| row.tokens as f64 / sample.seconds).collect();
    let estimate = median(&rates)?;
    let samples: Vec<&Sample> = row.samples.iter().collect();
    Ok(SpeedRow {
        measure: row.measure,
        tokens: row.tokens as u64,
        depth: row.depth.map(|tokens| tokens as u64),
        unit: UNIT.to_owned(),
        median: estimate.value,
        ci95: estimate.ci95.map(|interval| [interval.low, interval.high]),
        best: rates.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        samples: rates,
        hcs: (total > 0).then(|| residency(&samples, total)),
        modelled_link_s: modelled(&samples, device),
    })
}

/// A row of times, without residency: the best is the shortest.
///
/// # Errors
/// Without samples, or with one that is not a number.
pub(crate) fn time_row(measure: Measure, tokens: u64, samples_ms: Vec<f64>) -> anyhow::Result<SpeedRow> {
    let estimate = median(&samples_ms)?;
    Ok(SpeedRow {
        measure,
        tokens,
        depth: None,
        unit: "ms".to_owned(),
        median: estimate.value,
        ci95: estimate.ci95.map(|interval| [interval.low, interval.high]),
        best: samples_ms.iter().copied().fold(f64::INFINITY, f64::min),
        samples: samples_ms,
        hcs: None,
        modelled_link_s: None,
    })
}

/// Seconds on the modelled link; the host device alone has one.
fn modelled(samples: &[&Sample], device: DeviceKind) -> Option<f64> {
    (device == DeviceKind::Host).then(|| samples.iter().map(|sample| sample.modelled_link_s).sum())
}

fn residency(samples: &[&Sample], total: u64) -> Hcs {
    let hits: u64 = samples.iter().map(|sample| sample.hits).sum();
    let misses: u64 = samples.iter().map(|sample| sample.misses).sum();
    Hcs {
        resident: samples.last().map_or(0, |sample| sample.resident as u64),
        total,
        hit_rate: (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64),
        cold_bytes: samples.iter().map(|sample| sample.link_bytes).sum(),
    }
}

fn host_share(sharing: &Sharing, samples: &[&Sample]) -> HostShare {
    HostShare {
        threads: sharing.threads as u64,
        by_host: sharing.by_host.iter().map(|&experts| u64::from(experts)).collect(),
        copy_s: sharing.copy.as_secs_f64(),
        host_s: sharing.host.iter().map(Duration::as_secs_f64).collect(),
        token_s: sharing.token.as_secs_f64(),
        token_without_s: sharing.without.as_secs_f64(),
        experts: samples.iter().map(|sample| sample.by_host).sum(),
        given_up: sharing.given_up.map(|given_up| HostGivenUp {
            tokens: given_up.tokens,
            host_s: given_up.host.as_secs_f64(),
            link_s: given_up.link.as_secs_f64(),
        }),
    }
}

fn layer_residency(layer: &LayerUse) -> LayerResidency {
    LayerResidency {
        resident: layer.resident as u64,
        resident_sum: Some(layer.resident_sum),
        hits: layer.hits.hits,
        misses: layer.hits.misses,
    }
}

fn graphs_kept(driver: &DriverMemory) -> VerdictRow {
    let DriverMemory { graphs_bytes, graphs_reserved_bytes, .. } = driver;
    let verdict = if graphs_bytes <= graphs_reserved_bytes { Verdict::Pass } else { Verdict::Fail };
    let reason =
        format!("the card's free memory shrank by {graphs_bytes} bytes, {graphs_reserved_bytes} are kept for it");
    VerdictRow { row: "captured graphs".to_owned(), verdict, reason }
}

/// Low-water marks by the name of their phase; phases that did not run are absent.
pub(crate) fn low_water(marks: &LowWater) -> BTreeMap<String, u64> {
    [
        ("startup", marks.startup),
        ("calibration", marks.calibration),
        ("prefill", marks.prefill),
        ("decode", marks.decode),
        ("restore", marks.restore),
    ]
    .into_iter()
    .filter_map(|(phase, bytes)| Some((phase.to_owned(), bytes?)))
    .collect()
}

fn exact_counts(measured: &[Measured], timed: usize) -> VerdictRow {
    let short = measured.iter().find(|row| row.samples.len() != timed);
    let (verdict, reason) = match short {
        None => (Verdict::Pass, format!("{timed} repetitions of each row, each of exactly its tokens")),
        Some(row) => (
            Verdict::Incomplete,
            format!(
                "{} of {} tokens has {} repetitions, expected {timed}",
                row.measure.as_str(),
                row.tokens,
                row.samples.len()
            ),
        ),
    };
    VerdictRow { row: "exact counts".to_owned(), verdict, reason }
}

/// Whether every phase left the margin free.
pub(crate) fn margin_kept(low_water: &BTreeMap<String, u64>, margin: u64) -> VerdictRow {
    let below = low_water.iter().find(|&(_, &bytes)| bytes < margin);
    let (verdict, reason) = match (below, low_water.iter().min_by_key(|&(_, bytes)| bytes)) {
        (Some((phase, bytes)), _) => {
            (Verdict::Fail, format!("{phase} left {bytes} bytes free, the margin is {margin}"))
        }
        (None, Some((phase, bytes))) => {
            (Verdict::Pass, format!("least free memory: {bytes} bytes in {phase}, the margin is {margin}"))
        }
        (None, None) => (Verdict::Incomplete, "no phase was measured".to_owned()),
    };
    VerdictRow { row: "memory margin".to_owned(), verdict, reason }
}
