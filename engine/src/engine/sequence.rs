//! The tokens whose rows the KV cache holds, and how many of them prefill wrote.

/// One sequence. Rows that decode wrote need not have the bits that prefill gives them, so they are counted apart: what is
/// kept for later requests is the prefix that prefill wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sequence {
    tokens: Vec<u32>,
    prefilled: usize,
}

impl Sequence {
    /// Every token, in order.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
    /// The longest prefix whose rows prefill wrote, from position 0 on.
    pub fn prefilled(&self) -> &[u32] {
        &self.tokens[..self.prefilled]
    }

    /// Prefill has appended `tokens`.
    pub(super) fn append_prefilled(&mut self, tokens: &[u32]) {
        if self.prefilled == self.tokens.len() {
            self.prefilled += tokens.len();
        }
        self.tokens.extend_from_slice(tokens);
    }
    /// Decode has appended `token`.
    pub(super) fn append_decoded(&mut self, token: u32) {
        self.tokens.push(token);
    }
    /// Forgets what comes after the first `len` tokens.
    pub(super) fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.prefilled = self.prefilled.min(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_a_decoded_token_is_not_a_prefilled_prefix() {
        let mut sequence = Sequence::default();
        sequence.append_prefilled(&[1, 2]);
        sequence.append_decoded(3);
        sequence.append_prefilled(&[4]);
        assert_eq!((sequence.tokens(), sequence.prefilled()), (&[1, 2, 3, 4][..], &[1, 2][..]));
        sequence.truncate(2);
        sequence.append_prefilled(&[5]);
        assert_eq!(sequence.prefilled(), [1, 2, 5]);
        sequence.truncate(1);
        assert_eq!(sequence.prefilled(), [1]);
    }
}
