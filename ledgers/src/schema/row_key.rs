//! What tells the rows of one result apart.

use std::fmt;

use super::{ComparisonRow, Measure, SpeedRow};

/// A measure at a length, behind a prompt.
#[derive(Debug, Clone, Copy)]
pub struct RowKey {
    /// What is measured.
    pub measure: Measure,
    /// Exact tokens of each repetition.
    pub tokens: u64,
    /// Tokens of the prompt before them, where they are known.
    pub depth: Option<u64>,
}

impl RowKey {
    /// Whether two rows measure the same. A record that did not keep the depth had one depth, that of its suite.
    pub fn is(&self, other: &Self) -> bool {
        let depths = self.depth.zip(other.depth);
        (self.measure, self.tokens) == (other.measure, other.tokens) && depths.is_none_or(|(a, b)| a == b)
    }

    /// The lengths alone: `128`, or `128 behind 16384`.
    pub fn lengths(&self) -> String {
        match self.depth {
            None => self.tokens.to_string(),
            Some(depth) => format!("{} behind {depth}", self.tokens),
        }
    }
}

/// `prefill of 8192`, `decode of 128 behind 16384`.
impl fmt::Display for RowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.measure.as_str(), self.lengths())
    }
}

impl SpeedRow {
    /// What tells it from the others of its record.
    pub fn key(&self) -> RowKey {
        RowKey { measure: self.measure, tokens: self.tokens, depth: self.depth }
    }
}

impl ComparisonRow {
    /// What tells it from the others of its record.
    pub fn key(&self) -> RowKey {
        RowKey { measure: self.measure, tokens: self.tokens, depth: self.depth }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_two_depths_are_two_and_an_old_row_is_either() {
        let key = |depth| RowKey { measure: Measure::Decode, tokens: 128, depth };
        assert!(key(Some(512)).is(&key(Some(512))) && !key(Some(512)).is(&key(Some(16_384))));
        assert!(key(None).is(&key(Some(512))) && key(Some(16_384)).is(&key(None)));
        assert!(!key(None).is(&RowKey { tokens: 64, ..key(None) }));
        assert_eq!(key(Some(16_384)).to_string(), "decode of 128 behind 16384");
    }
}
