//! Which records a table shows.

use std::collections::HashMap;
use std::path::Path;

use assay_ledgers::{Body, Identity, Record, Result, Sha256, TimeUtc, invalidations, read};

/// Every record of the ledger in `dir`, each checked against its own hash.
///
/// # Errors
/// What [`assay_ledgers::read`] returns.
pub fn load(dir: &Path) -> Result<Vec<Record>> {
    read(dir)?.collect()
}

/// The newest record of each kind and configuration, in the order of the ledger, without those that a later record
/// invalidates. Builds of one configuration replace each other; anything else in the identity makes another configuration, and
/// a record without an identity is one of its own.
///
/// # Errors
/// [`assay_ledgers::Error::NotCanonical`] for an identity that cannot be hashed.
pub fn latest(records: &[Record]) -> Result<Vec<&Record>> {
    let invalid = invalidations(records);
    let mut newest: HashMap<(&str, Sha256), usize> = HashMap::new();
    for (index, record) in records.iter().enumerate() {
        if invalid.contains_key(&record.original_hash()) {
            continue;
        }
        let configuration = match (&record.identity, &record.body) {
            (Some(identity), body) => configuration(identity, body)?,
            // Of one card the newest counts.
            (None, Body::Roofline(body)) => Sha256::of_canonical(&(&body.device, &body.driver, &body.cuda))?,
            (None, _) => record.original_hash(),
        };
        let entry = newest.entry((record.body.kind(), configuration)).or_insert(index);
        if first_written(record) >= first_written(&records[*entry]) {
            *entry = index;
        }
    }
    let mut chosen: Vec<usize> = newest.into_values().collect();
    chosen.sort_unstable();
    Ok(chosen.into_iter().map(|index| &records[index]).collect())
}

/// Hash of the identity without the build, and without the chat template, which older records do not name, where no chat is had.
fn configuration(identity: &Identity, body: &Body) -> Result<Sha256> {
    let mut identity = identity.clone();
    if !matches!(body, Body::Task(_)) {
        identity.template = None;
    }
    identity.source.commit.clear();
    identity.source.dirty = None;
    identity.source.inputs = None;
    identity.binary = Sha256::default();
    identity.hash()
}

/// When a record was first written; within one millisecond its place in its chain decides.
fn first_written(record: &Record) -> (&TimeUtc, u64) {
    record.origin.as_ref().map_or((&record.time_utc, record.sequence), |origin| (&origin.time_utc, origin.sequence))
}
