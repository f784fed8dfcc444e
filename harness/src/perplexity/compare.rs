//! The same documents under two configs.

use super::score::{DocumentScore, Total};
use crate::statistics::{Cluster, MIN_CLUSTERS, StatisticsError, clustered_mean};
use serde::Serialize;
use std::collections::BTreeMap;

/// With fewer documents an interval that is clustered by document means nothing.
pub const MIN_DOCUMENTS: usize = MIN_CLUSTERS;

/// One config's loss less another's, over the same documents.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Documents paired.
    pub documents: usize,
    /// The other's perplexity.
    pub against_perplexity: f64,
    /// This perplexity over the other's.
    pub ratio: f64,
    /// Its 95 % interval; absent with too few documents.
    pub ratio_ci95: Option<[f64; 2]>,
    /// Mean difference of a target's loss, nats.
    pub nll_difference: f64,
    /// Its 95 % interval, clustered by document; absent with too few documents.
    pub nll_difference_ci95: Option<[f64; 2]>,
    /// Mean difference of each document, nats.
    pub document_differences: BTreeMap<String, f64>,
}

/// Pairs `scores` with `against`, which are of the same documents in the same order.
///
/// # Errors
/// Without documents, or with a loss that is not finite.
pub fn compare(scores: &[DocumentScore], against: &[DocumentScore]) -> Result<Comparison, StatisticsError> {
    let clusters: Vec<Cluster> = scores
        .iter()
        .zip(against)
        .map(|(a, b)| Cluster {
            sum: a.nll_total - b.nll_total,
            count: usize::try_from(a.tokens).unwrap_or(usize::MAX),
        })
        .collect();
    let estimate = clustered_mean(&clusters)?;
    let interval = estimate.ci95.map(|interval| [interval.low, interval.high]);
    let differences = scores.iter().zip(against).map(|(a, b)| (a.document.clone(), a.nll_mean - b.nll_mean));
    Ok(Comparison {
        documents: clusters.len(),
        against_perplexity: Total::of(against).perplexity,
        ratio: estimate.value.exp(),
        ratio_ci95: interval.map(|interval| interval.map(f64::exp)),
        nll_difference: estimate.value,
        nll_difference_ci95: interval,
        document_differences: differences.collect(),
    })
}
