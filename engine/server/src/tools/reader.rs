//! A call's text while it is read from front to back.

use super::Attempt;

/// What a step gives, or the [`Attempt`] that ends the reading.
pub(super) type Step<T> = Result<T, Attempt>;

/// What is left of a text.
pub(super) struct Reader<'t> {
    pub(super) text: &'t str,
    pub(super) at: usize,
}

impl<'t> Reader<'t> {
    pub(super) fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    pub(super) fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Whether `mark` comes next; takes it.
    pub(super) fn take(&mut self, mark: &str) -> Step<bool> {
        if self.rest().starts_with(mark) {
            self.at += mark.len();
            return Ok(true);
        }
        // Cut off within the mark: nobody knows yet.
        if mark.starts_with(self.rest()) { Err(Attempt::Incomplete) } else { Ok(false) }
    }

    pub(super) fn expect(&mut self, mark: &str) -> Step<()> {
        if self.take(mark)? { Ok(()) } else { Err(Attempt::Malformed) }
    }
}
