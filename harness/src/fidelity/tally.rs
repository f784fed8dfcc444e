//! From positions to figures.

use super::distribution::Distances;
use crate::statistics::{Cluster, MIN_CLUSTERS, StatisticsError, clustered_mean};
use assay_ledgers::{FidelityRow, Interval95, Spread, Top1Flips};
use serde::Serialize;

/// Positions of documents, as they come.
#[derive(Debug, Default)]
pub struct Tally {
    kl: Vec<f64>,
    flips: Top1FlipsCount,
    contained: u64,
    overlap: f64,
    first_token_js: Vec<f64>,
    clusters: Vec<Cluster>,
    documents: Vec<FidelityRow>,
    current: Current,
}

#[derive(Debug, Default, Clone, Copy)]
struct Top1FlipsCount {
    all: u64,
    to_wrong: u64,
    to_right: u64,
}

/// The document under way.
#[derive(Debug, Default)]
struct Current {
    positions: u64,
    kl: f64,
    flips: u64,
    nll: f64,
    targets: usize,
    last_js: f64,
}

/// The distance of a config from a baseline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fidelity {
    /// Positions compared.
    pub positions: u64,
    /// Kullback–Leibler divergence from the baseline, nats a position.
    pub kl: Spread,
    /// Positions at which the likeliest token differs.
    pub top1_flips: Top1Flips,
    /// Share of positions at which the baseline's likeliest token is among the ten here.
    pub top10_containment: f64,
    /// Mean share of the baseline's ten that are among the ten here.
    pub top10_overlap: f64,
    /// Jensen–Shannon divergence at the first token that would follow each document, nats.
    pub first_token_js: Spread,
    /// Loss here less the baseline's, nats a target, clustered by document.
    pub nll_difference: Interval95,
    /// A row a document.
    pub documents: Vec<FidelityRow>,
    /// Whether there are documents enough for an interval.
    pub has_interval: bool,
}

impl Tally {
    /// A position; `target` is the text's next token.
    pub fn position(&mut self, distances: &Distances, target: Option<u32>) {
        let flipped = distances.baseline_top != distances.top;
        self.kl.push(distances.kl);
        self.contained += u64::from(distances.contained);
        self.overlap += distances.overlap;
        self.flips.all += u64::from(flipped);
        self.flips.to_wrong += u64::from(flipped && target == Some(distances.baseline_top));
        self.flips.to_right += u64::from(flipped && target == Some(distances.top));
        let current = &mut self.current;
        current.positions += 1;
        current.kl += distances.kl;
        current.flips += u64::from(flipped);
        current.last_js = distances.js;
        if let Some(difference) = distances.nll_difference {
            current.nll += difference;
            current.targets += 1;
        }
    }

    /// The document of the positions since the last call is over: what comes after its last one is the first new token.
    pub fn document(&mut self, name: &str) {
        let current = std::mem::take(&mut self.current);
        self.first_token_js.push(current.last_js);
        self.clusters.push(Cluster { sum: current.nll, count: current.targets });
        self.documents.push(FidelityRow {
            document: name.to_owned(),
            positions: current.positions,
            kl_mean: current.kl / current.positions.max(1) as f64,
            top1_flips: current.flips,
            first_token_js: current.last_js,
            nll_difference: (current.targets > 0).then(|| current.nll / current.targets as f64),
        });
    }

    /// The figures.
    ///
    /// # Errors
    /// Without a document, or with a loss that is not finite.
    pub fn finish(self) -> Result<Fidelity, StatisticsError> {
        let estimate = clustered_mean(&self.clusters)?;
        let positions = self.kl.len() as u64;
        let share = |part: f64| part / positions.max(1) as f64;
        let Top1FlipsCount { all, to_wrong, to_right } = self.flips;
        Ok(Fidelity {
            positions,
            top1_flips: Top1Flips { all, to_wrong, to_right },
            top10_containment: share(self.contained as f64),
            top10_overlap: share(self.overlap),
            kl: spread(self.kl),
            first_token_js: spread(self.first_token_js),
            nll_difference: Interval95 {
                value: estimate.value,
                ci95: estimate.ci95.map(|interval| [interval.low, interval.high]),
            },
            has_interval: self.documents.len() >= MIN_CLUSTERS,
            documents: self.documents,
        })
    }
}

/// Quantiles by linear interpolation between order statistics (Hyndman and Fan's type 7, numpy's default).
fn spread(mut values: Vec<f64>) -> Spread {
    values.sort_unstable_by(f64::total_cmp);
    let quantile = |share: f64| {
        let place = share * values.len().saturating_sub(1) as f64;
        let (below, part) = (place.floor() as usize, place.fract());
        let value = |index: usize| values.get(index).copied().unwrap_or(0.0);
        if part == 0.0 { value(below) } else { value(below) + part * (value(below + 1) - value(below)) }
    };
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    Spread { mean, median: quantile(0.5), p99: quantile(0.99), max: quantile(1.0) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_numpys() {
        // numpy.percentile(range(1, 11), [50, 99]): 5.5, 9.91
        let found = spread((1..=10).rev().map(f64::from).collect());
        assert_eq!((found.mean, found.median, found.max), (5.5, 5.5, 10.0));
        assert!((found.p99 - 9.91).abs() < 1e-12);
    }

    #[test]
    fn flips_are_counted_both_ways() {
        let at = |baseline_top, top| Distances {
            kl: 0.5,
            js: 0.25,
            baseline_top,
            top,
            contained: true,
            overlap: 0.9,
            nll_difference: Some(0.125),
        };
        let mut tally = Tally::default();
        tally.position(&at(1, 1), Some(1));
        tally.position(&at(1, 2), Some(1));
        tally.position(&at(1, 2), Some(2));
        tally.position(&Distances { js: 0.75, nll_difference: None, ..at(1, 2) }, None);
        tally.document("a");
        let found = tally.finish().unwrap();
        assert_eq!(found.top1_flips, Top1Flips { all: 3, to_wrong: 1, to_right: 1 });
        assert_eq!((found.positions, found.kl.mean, found.top10_containment), (4, 0.5, 1.0));
        assert_eq!((found.first_token_js.max, found.documents[0].first_token_js), (0.75, 0.75));
        assert_eq!((found.nll_difference.value, found.nll_difference.ci95, found.has_interval), (0.125, None, false));
    }
}
