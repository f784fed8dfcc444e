//! From processes to ratios.

use super::side::Process;
use crate::statistics::{Bootstrap, Estimate, median};
use anyhow::{Context, ensure};
use assay_ledgers::{ComparisonRow, Interval95, SpeedRow};

/// The ratio of `b` to `a` for every measure and length: of the medians of paired processes.
///
/// # Errors
/// When the sides did not measure the same, or a sample is not positive.
pub fn rows(a: &[Process], b: &[Process], bootstrap: Bootstrap) -> anyhow::Result<Vec<ComparisonRow>> {
    let rows = measured(a)?;
    ensure!(rows.len() == measured(b)?.len(), "the sides measured {} and {} rows", rows.len(), measured(b)?.len());
    let row = |row: &SpeedRow| -> anyhow::Result<ComparisonRow> {
        let (a, b) = (medians(a, row)?, medians(b, row)?);
        let ratio = interval(bootstrap.paired_ratio(&b, &a)?);
        Ok(comparison(row, a, b, ratio))
    };
    rows.iter().map(row).collect()
}

/// The ratio of new processes to the rows of an earlier record, whose samples are those of one process: nothing pairs up, so
/// both sides are drawn on their own.
///
/// # Errors
/// As [`rows`].
pub fn baseline_rows(
    baseline: &[SpeedRow],
    now: &[Process],
    bootstrap: Bootstrap,
) -> anyhow::Result<Vec<ComparisonRow>> {
    let row = |row: &SpeedRow| -> anyhow::Result<ComparisonRow> {
        let (a, b) = (row.samples.clone(), medians(now, row)?);
        let ratio = interval(bootstrap.ratio_of_medians(&b, &a)?);
        Ok(comparison(row, a, b, ratio))
    };
    baseline.iter().map(row).collect()
}

fn comparison(row: &SpeedRow, a: Vec<f64>, b: Vec<f64>, ratio: Interval95) -> ComparisonRow {
    let SpeedRow { measure, tokens, depth, unit, .. } = row;
    ComparisonRow { measure: *measure, tokens: *tokens, depth: *depth, unit: unit.clone(), a, b, ratio }
}

fn measured(processes: &[Process]) -> anyhow::Result<&[SpeedRow]> {
    Ok(&processes.first().context("no process ran")?.rows)
}

/// The median of each process in one row.
fn medians(processes: &[Process], row: &SpeedRow) -> anyhow::Result<Vec<f64>> {
    let same = |other: &&SpeedRow| other.key().is(&row.key()) && other.unit == row.unit;
    let of_process = |process: &Process| {
        let found = process
            .rows
            .iter()
            .find(same)
            .with_context(|| format!("a process did not measure {}, another did", row.key()))?;
        Ok(median(&found.samples)?.value)
    };
    processes.iter().map(of_process).collect()
}

fn interval(estimate: Estimate) -> Interval95 {
    Interval95 { value: estimate.value, ci95: estimate.ci95.map(|ends| [ends.low, ends.high]) }
}
