//! What one configuration against itself has shown on this machine.

use assay_ledgers::{Body, ComparisonRow, DeviceIdentity, Record, Sha256, invalidations};

/// How far the ratio of equals strays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Noise {
    /// The larger distance of an end of the interval from 1.
    pub half_width: f64,
    /// The record that says so.
    pub record: Sha256,
}

/// The newest comparison of a configuration with itself on `device`, for the measure of `row`.
pub fn noise(records: &[Record], device: &DeviceIdentity, row: &ComparisonRow) -> Option<Noise> {
    let invalid = invalidations(records);
    let counts = |record: &&Record| !invalid.contains_key(&record.original_hash());
    let shown: Vec<&Record> =
        records.iter().filter(counts).filter(|record| of_equals(record, device, row).is_some()).collect();
    of_equals(shown.into_iter().max_by(|a, b| a.time_utc.cmp(&b.time_utc))?, device, row)
}

/// What `record` shows, if it is a comparison of a configuration with itself.
fn of_equals(record: &Record, device: &DeviceIdentity, row: &ComparisonRow) -> Option<Noise> {
    let (Body::Comparison(body), Some(identity)) = (&record.body, &record.identity) else { return None };
    if !body.differences.is_empty() || identity.device != *device {
        return None;
    }
    let same = body.rows.iter().find(|other| other.key().is(&row.key()))?;
    let [low, high] = same.ratio.ci95?;
    let half_width = (1.0 - low).abs().max((high - 1.0).abs());
    Some(Noise { half_width, record: record.original_hash() })
}
