//! Whether a ratio is a regression.

use assay_ledgers::{ComparisonRow, Interval95, Measure, Verdict, VerdictRow};

/// What counts as one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gate {
    /// A slowdown of no more than this share is none.
    pub margin: f64,
}

/// What one series says of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// The whole interval lies within the margin or above it.
    Kept,
    /// The whole interval lies beyond the margin, and so excludes 1 as well.
    Slower,
    /// The interval holds both.
    TooWide,
}

impl Gate {
    /// Looks at one ratio of `measure`.
    pub fn find(self, measure: Measure, ratio: Interval95) -> Finding {
        let Some([low, high]) = ratio.ci95.map(|ends| as_speed(measure, ends)) else { return Finding::TooWide };
        let least = 1.0 - self.margin;
        match () {
            () if high < least => Finding::Slower,
            () if low >= least => Finding::Kept,
            () => Finding::TooWide,
        }
    }

    /// Whether a series has to be run again before anything is said of it.
    pub fn needs_rerun(self, rows: &[ComparisonRow]) -> bool {
        rows.iter().any(|row| self.find(row.measure, row.ratio) == Finding::Slower)
    }

    /// A verdict a row. What is slower fails only where `rerun`, a second series, says so too.
    pub fn verdicts(self, rows: &[ComparisonRow], rerun: Option<&[ComparisonRow]>) -> Vec<VerdictRow> {
        let verdict = |row: &ComparisonRow| {
            let again = rerun.and_then(|rows| rows.iter().find(|other| same(row, other)));
            let (verdict, reason) = self.judge(row, again);
            VerdictRow { row: name(row), verdict, reason }
        };
        rows.iter().map(verdict).collect()
    }

    fn judge(self, row: &ComparisonRow, again: Option<&ComparisonRow>) -> (Verdict, String) {
        let (ratio, margin) = (text(row), format!("{:.1} %", self.margin * 100.0));
        match (self.find(row.measure, row.ratio), again) {
            (Finding::Kept, _) => (Verdict::Pass, format!("{ratio}: not slower by more than {margin}")),
            (Finding::TooWide, _) => {
                (Verdict::Incomplete, format!("{ratio}: the interval holds both more and less than {margin}"))
            }
            (Finding::Slower, None) => {
                (Verdict::Incomplete, format!("{ratio}: slower by more than {margin}, and not run again"))
            }
            (Finding::Slower, Some(again)) => match self.find(again.measure, again.ratio) {
                Finding::Slower => {
                    (Verdict::Fail, format!("{ratio}: slower by more than {margin}, and again: {}", text(again)))
                }
                _ => (
                    Verdict::Incomplete,
                    format!("{ratio}: slower by more than {margin}, but not again: {}", text(again)),
                ),
            },
        }
    }
}

/// A rate grows with speed, a latency falls.
fn as_speed(measure: Measure, [low, high]: [f64; 2]) -> [f64; 2] {
    match measure {
        Measure::Prefill | Measure::Decode => [low, high],
        _ => [1.0 / high, 1.0 / low],
    }
}

fn same(row: &ComparisonRow, other: &ComparisonRow) -> bool {
    row.key().is(&other.key())
}

/// `decode of 64`.
fn name(row: &ComparisonRow) -> String {
    row.key().to_string()
}

fn text(row: &ComparisonRow) -> String {
    match row.ratio.ci95 {
        None => format!("ratio {:.4} without an interval", row.ratio.value),
        Some([low, high]) => format!("ratio {:.4} [{low:.4}, {high:.4}]", row.ratio.value),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::statistics::Bootstrap;
    use crate::statistics::tests::Draws;

    fn row(measure: Measure, ratio: f64, ci95: Option<[f64; 2]>) -> ComparisonRow {
        let ratio = Interval95 { value: ratio, ci95 };
        ComparisonRow { measure, tokens: 64, depth: None, unit: "tok/s".to_owned(), a: vec![], b: vec![], ratio }
    }

    #[test]
    fn a_regression_is_beyond_the_margin_and_confirmed() {
        let gate = Gate { margin: 0.02 };
        let check = |ratio: [f64; 2], again: Option<[f64; 2]>, verdict| {
            let rows = [row(Measure::Decode, ratio[0], Some(ratio))];
            let again = again.map(|again| [row(Measure::Decode, again[0], Some(again))]);
            let found = gate.verdicts(&rows, again.as_ref().map(|rows| &rows[..]));
            assert_eq!(found[0].verdict, verdict, "{found:?}");
            assert_eq!(gate.needs_rerun(&rows), ratio[1] < 0.98);
        };
        check([0.99, 1.01], None, Verdict::Pass);
        check([1.05, 1.10], None, Verdict::Pass);
        check([0.985, 0.995], None, Verdict::Pass); // slower, and less than the margin
        check([0.97, 1.01], None, Verdict::Incomplete);
        check([0.95, 0.97], None, Verdict::Incomplete);
        check([0.95, 0.97], Some([0.95, 0.975]), Verdict::Fail);
        check([0.95, 0.97], Some([0.96, 0.99]), Verdict::Incomplete);
        assert_eq!(gate.find(Measure::Decode, Interval95 { value: 0.5, ci95: None }), Finding::TooWide);
        // 4 % more time is 4 % slower.
        let latency = Interval95 { value: 1.04, ci95: Some([1.03, 1.05]) };
        assert_eq!(gate.find(Measure::HttpFirstToken, latency), Finding::Slower);
    }

    /// One build against itself, and against one that is `slowdown` slower: processes that differ by `noise`, with now and then one
    /// that was disturbed, on a machine that slows down by 5 % over the series.
    fn series(draws: &mut Draws, noise: f64, slowdown: f64) -> Interval95 {
        let pairs = 10;
        let mut sides = [Vec::new(), Vec::new()];
        for (step, is_b) in crate::compare::order(pairs).enumerate() {
            let drift = 1.0 - 0.05 * step as f64 / (2 * pairs) as f64;
            let disturbed = if draws.share() < 0.05 { 0.85 } else { 1.0 };
            let speed = 100.0 * drift * disturbed * (noise * draws.normal()).exp();
            sides[usize::from(is_b)].push(if is_b { speed / (1.0 + slowdown) } else { speed });
        }
        let ratio = Bootstrap::default().paired_ratio(&sides[1], &sides[0]).unwrap();
        Interval95 { value: ratio.value, ci95: ratio.ci95.map(|ends| [ends.low, ends.high]) }
    }

    #[test]
    fn a_build_against_itself_is_found_equal() {
        let mut draws = Draws::new(7);
        let holds_1 = |ratio: Interval95| ratio.ci95.is_some_and(|[low, high]| low <= 1.0 && 1.0 <= high);
        let found = (0..100).filter(|_| holds_1(series(&mut draws, 0.02, 0.0))).count();
        assert!(found >= 93, "{found} of 100");
    }

    #[test]
    fn a_build_that_is_slower_is_found_slower() {
        let mut draws = Draws::new(8);
        let gate = Gate { margin: 0.02 };
        let slower = |ratio| gate.find(Measure::Decode, ratio) == Finding::Slower;
        let found = (0..100).filter(|_| slower(series(&mut draws, 0.02, 0.1))).count();
        assert!(found >= 90, "10 % among 2 % of noise, beyond a margin of 2 %: {found} of 100");
        let below_1 = |ratio: Interval95| ratio.ci95.is_some_and(|[_, high]| high < 1.0);
        let found = (0..100).filter(|_| below_1(series(&mut draws, 0.01, 0.03))).count();
        assert!(found >= 90, "3 % among 1 % of noise: {found} of 100");
    }
}
