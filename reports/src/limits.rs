//! What the machine would have allowed a row: by the roofline of the same run, or the newest one of the same card.

use assay_ledgers::{Body, Identity, Record, RooflineBody, SpeedBody, SpeedRow};

/// The rooflines of a ledger.
pub(crate) struct Limits<'a>(Vec<&'a RooflineBody>);

impl<'a> Limits<'a> {
    /// Those among `records`, which still count and stand in the order of the ledger.
    pub(crate) fn new(records: &[&'a Record]) -> Self {
        let mut rooflines: Vec<(&str, &RooflineBody)> = records
            .iter()
            .filter_map(|record| match &record.body {
                Body::Roofline(body) => Some((first_written(record), body)),
                _ => None,
            })
            .collect();
        rooflines.sort_by_key(|(time, _)| *time);
        Self(rooflines.into_iter().map(|(_, body)| body).collect())
    }

    /// The limit of `row`, one of `body`'s, in tokens a second.
    pub(crate) fn of(&self, identity: &Identity, body: &SpeedBody, row: &SpeedRow) -> Option<f64> {
        let newest = || self.0.iter().rev().find(|roofline| roofline.is_of(&identity.device)).copied();
        body.limit(row, body.roofline.as_ref().or_else(newest))
    }
}

fn first_written(record: &Record) -> &str {
    record.origin.as_ref().map_or(&record.time_utc, |origin| &origin.time_utc).as_str()
}
