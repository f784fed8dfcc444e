//! Saying that a record no longer counts. The record stays where it is: a later one names it and says why.

use std::collections::HashMap;

use super::append::{Appended, Ledger};
use super::read::read;
use crate::schema::{Body, EvidenceClass, InvalidationBody, Record};
use crate::{Draft, Error, Result, Sha256};

impl Ledger {
    /// Appends a record that says why the one whose hash starts with `prefix` no longer counts, and which one takes its
    /// place.
    ///
    /// # Errors
    /// [`Error::BadPrefix`], [`Error::NoSuchRecord`] and [`Error::Ambiguous`] for either; [`Error::AlreadyInvalid`];
    /// [`Error::Invalidated`] and [`Error::ReplacesItself`] for a replacement; what [`Ledger::append`] returns.
    pub fn invalidate(
        &self,
        prefix: &str,
        reason: &str,
        replacement: Option<&str>,
        command: impl IntoIterator<Item = String>,
    ) -> Result<Appended> {
        let record = Self::find(self.dir(), prefix)?.original_hash();
        let replacement = replacement.map(|prefix| Self::find(self.dir(), prefix)).transpose()?;
        let records: Vec<Record> = read(self.dir())?.collect::<Result<_>>()?;
        if let Some(by) = invalidations(&records).get(&record) {
            return Err(Error::AlreadyInvalid { record, by: *by });
        }
        let replacement = replacement.map(|record| record.original_hash());
        if let Some(replacement) = replacement {
            if replacement == record {
                return Err(Error::ReplacesItself { record });
            }
            check_counts(replacement, &records)?;
        }
        let body = InvalidationBody { record, reason: reason.to_owned(), replacement };
        self.append(Draft::without_identity(EvidenceClass::Functional, body).command(command))
    }
}

/// Refuses a record, named by its original hash, that one of `records` invalidates.
///
/// # Errors
/// [`Error::Invalidated`].
pub fn check_counts(record: Sha256, records: &[Record]) -> Result<()> {
    let Some(&by) = invalidations(records).get(&record) else { return Ok(()) };
    let reason = records.iter().find_map(|judge| match &judge.body {
        Body::Invalidation(body) if judge.original_hash() == by => Some(body.reason.clone()),
        _ => None,
    });
    Err(Error::Invalidated { record, by, reason: reason.unwrap_or_default() })
}

/// The records that no longer count, each with the record that says so; all by their original hashes. An invalidation that
/// is invalidated itself says nothing any more.
pub fn invalidations(records: &[Record]) -> HashMap<Sha256, Sha256> {
    let mut targets: HashMap<Sha256, Sha256> = HashMap::new();
    let mut judges: HashMap<Sha256, usize> = HashMap::new();
    for record in records {
        if let Body::Invalidation(body) = &record.body {
            targets.insert(record.original_hash(), body.record);
        }
    }
    for target in targets.values() {
        *judges.entry(*target).or_default() += 1;
    }
    // From those that nobody judges towards what they judge: a hash cannot name a later one, so there is no circle.
    let mut ready: Vec<Sha256> = targets.keys().filter(|hash| !judges.contains_key(*hash)).copied().collect();
    let mut invalid: HashMap<Sha256, Sha256> = HashMap::new();
    while let Some(judge) = ready.pop() {
        let Some(target) = targets.get(&judge) else { continue };
        if !invalid.contains_key(&judge) {
            let by = invalid.entry(*target).or_insert(judge);
            *by = judge.min(*by);
        }
        if let Some(left) = judges.get_mut(target) {
            *left -= 1;
            if *left == 0 {
                ready.push(*target);
            }
        }
    }
    invalid
}
