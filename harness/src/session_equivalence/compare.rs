//! Two answers, step by step.

use super::{Answered, Row};
use serde::Serialize;

/// Where two answers first differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Divergence {
    /// Step of the answer, from 0.
    pub step: usize,
    /// The token that was chosen there.
    pub found_token: String,
    /// The reference's.
    pub expected_token: String,
    /// The logit, or log-probability, that differs most at that step; absent where only the tokens differ.
    pub value: Option<ValueDifference>,
}

/// One value that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ValueDifference {
    /// Whose it is: a token's id, or its name.
    pub of: String,
    /// The value.
    pub found: f64,
    /// The reference's.
    pub expected: f64,
    /// Values that differ at that step.
    pub differing: u64,
}

/// An answer against the reference.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Steps compared: up to the first token that differs, after which the two are about different texts.
    pub steps: usize,
    /// The first token that differs.
    pub first_token_difference: Option<usize>,
    /// Values compared.
    pub values: u64,
    /// Values whose bits differ, or that only one of the two has.
    pub bit_differences: u64,
    /// Largest difference of a value.
    pub difference_max: f64,
    /// The first step at which anything differs.
    pub first: Option<Divergence>,
}

impl Comparison {
    /// Compares `found` with `expected`.
    pub fn new(found: &Answered, expected: &Answered) -> Self {
        let lengths = found.tokens.len().max(expected.tokens.len());
        let name = |answered: &Answered, step: usize| answered.tokens.get(step).cloned().unwrap_or_default();
        let differs = |step: &usize| found.tokens.get(*step) != expected.tokens.get(*step);
        let first_token_difference = (0..lengths).find(differs);
        let steps = first_token_difference.map_or(lengths, |step| step + 1);
        let mut comparison =
            Self { steps, first_token_difference, values: 0, bit_differences: 0, difference_max: 0.0, first: None };
        let empty = Row::default();
        for step in 0..steps {
            let row = |answered: &'_ Answered| answered.rows.get(step).cloned().unwrap_or_default();
            let value = match (found.rows.get(step), expected.rows.get(step)) {
                (Some(found), Some(expected)) => comparison.row(found, expected),
                (None, None) => None,
                _ => comparison.row(&row(found), &empty).or_else(|| comparison.row(&empty, &row(expected))),
            };
            if comparison.first.is_none() && (value.is_some() || first_token_difference == Some(step)) {
                let (found_token, expected_token) = (name(found, step), name(expected, step));
                comparison.first = Some(Divergence { step, found_token, expected_token, value });
            }
        }
        comparison
    }

    /// Whether all tokens are equal.
    pub fn tokens_equal(&self) -> bool {
        self.first_token_difference.is_none()
    }

    /// Whether all values have the same bits.
    pub fn values_equal(&self) -> bool {
        self.bit_differences == 0
    }

    fn row(&mut self, found: &Row, expected: &Row) -> Option<ValueDifference> {
        let mut worst: Option<ValueDifference> = None;
        let mut differing = 0;
        for index in 0..found.values.len().max(expected.values.len()) {
            self.values += 1;
            let value = |row: &Row| row.values.get(index).copied().unwrap_or(f64::NAN);
            let (a, b) = (value(found), value(expected));
            if a.to_bits() == b.to_bits() && found.names.get(index) == expected.names.get(index) {
                continue;
            }
            differing += 1;
            let difference = (a - b).abs();
            self.difference_max = self.difference_max.max(difference);
            // A difference that is no number is the worst.
            let is_worse = worst
                .as_ref()
                .is_none_or(|worst| difference.is_nan() || difference > (worst.found - worst.expected).abs());
            if is_worse {
                let of = found.names.get(index).cloned().unwrap_or_else(|| index.to_string());
                worst = Some(ValueDifference { of, found: a, expected: b, differing: 0 });
            }
        }
        self.bit_differences += differing;
        worst.map(|worst| ValueDifference { differing, ..worst })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(tokens: &[u32], rows: &[&[f64]]) -> Answered {
        Answered {
            tokens: tokens.iter().map(u32::to_string).collect(),
            rows: rows.iter().map(|row| Row { names: Vec::new(), values: row.to_vec() }).collect(),
            ..Answered::default()
        }
    }

    #[test]
    fn the_first_step_that_differs_is_named_with_its_worst_value() {
        let expected = answered(&[1, 2, 3], &[&[0.0, 1.0], &[0.5, 0.5], &[2.0, 3.0]]);
        let same = Comparison::new(&expected, &expected);
        assert!(same.tokens_equal() && same.values_equal() && same.first.is_none());
        assert_eq!((same.steps, same.values), (3, 6));
        let found = answered(&[1, 2, 3], &[&[0.0, 1.0], &[0.5, 0.75], &[2.0, 3.5]]);
        let differs = Comparison::new(&found, &expected);
        assert!(differs.tokens_equal() && !differs.values_equal());
        assert_eq!((differs.bit_differences, differs.difference_max), (2, 0.5));
        let value = ValueDifference { of: "1".into(), found: 0.75, expected: 0.5, differing: 1 };
        let token = || "2".to_owned();
        let first = Divergence { step: 1, found_token: token(), expected_token: token(), value: Some(value) };
        assert_eq!(differs.first, Some(first));
    }

    #[test]
    fn after_a_token_that_differs_nothing_is_compared() {
        let expected = answered(&[1, 2, 3], &[&[0.0], &[1.0], &[2.0]]);
        let found = answered(&[1, 9, 3], &[&[0.0], &[1.0], &[7.0]]);
        let comparison = Comparison::new(&found, &expected);
        assert_eq!((comparison.first_token_difference, comparison.steps, comparison.bit_differences), (Some(1), 2, 0));
        assert!(comparison.first.is_some_and(|first| first.step == 1 && first.value.is_none()));
    }

    #[test]
    fn zeros_of_both_signs_a_nan_and_a_missing_row_differ() {
        let expected = answered(&[1], &[&[0.0, 1.0]]);
        for rows in [&[&[-0.0, 1.0][..]][..], &[&[0.0, f64::NAN]], &[&[0.0]], &[]] {
            assert!(!Comparison::new(&answered(&[1], rows), &expected).values_equal(), "{rows:?}");
        }
        assert!(!Comparison::new(&answered(&[], &[]), &expected).tokens_equal());
    }
}
