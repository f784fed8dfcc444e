//! Which tokens a perplexity window sees and which of them it scores.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// How a document is cut: `stride` tokens from one window's start to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowShape {
    /// Tokens of a window, at most.
    pub window: usize,
    /// Tokens between the starts of two windows.
    pub stride: usize,
}

/// One window of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Tokens that are prefilled together, by their place in the document. No token is added.
    pub tokens: Range<usize>,
    /// Targets scored here, by their place in the document: target t is predicted from the tokens before it that lie
    /// in the window.
    pub targets: Range<usize>,
}

/// A document or a shape that cannot be cut.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// One token predicts nothing.
    #[error("a document of {0} tokens has no target: it takes at least 2")]
    TooShort(usize),
    /// A stride that skips targets, or never advances.
    #[error("stride {stride} does not suit a window of {window} tokens: expected 1 to {}", window.saturating_sub(1))]
    Shape {
        /// Tokens of a window.
        window: usize,
        /// Tokens between starts.
        stride: usize,
    },
}

impl WindowShape {
    /// Cuts a document of `tokens` tokens: the first window scores all its targets, each later one only those that no
    /// window has scored, the last ends at the document's end. Every target but the document's first token (which has
    /// no context) is scored exactly once.
    ///
    /// # Errors
    /// When the document is shorter than two tokens, or the stride is 0 or not smaller than the window (a window's
    /// first token cannot be scored in it).
    pub fn cut(self, tokens: usize) -> Result<Vec<Window>, WindowError> {
        let WindowShape { window, stride } = self;
        if stride == 0 || stride >= window {
            return Err(WindowError::Shape { window, stride });
        }
        if tokens < 2 {
            return Err(WindowError::TooShort(tokens));
        }
        let mut windows = Vec::new();
        let mut scored = 1;
        for start in (0..tokens).step_by(stride) {
            let end = tokens.min(start.saturating_add(window));
            windows.push(Window { tokens: start..end, targets: scored..end });
            scored = end;
            if end == tokens {
                break;
            }
        }
        Ok(windows)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const REFERENCE: WindowShape = WindowShape { window: 2048, stride: 1024 };

    #[test]
    fn the_reference_document_has_nineteen_windows() {
        let windows = REFERENCE.cut(20_480).unwrap();
        assert_eq!(windows.len(), 19);
        assert_eq!(windows[0], Window { tokens: 0..2048, targets: 1..2048 });
        assert_eq!(windows[1], Window { tokens: 1024..3072, targets: 2048..3072 });
        assert_eq!(windows[18], Window { tokens: 18_432..20_480, targets: 19_456..20_480 });
        assert_eq!(windows.iter().map(|window| window.targets.len()).sum::<usize>(), 20_479);
    }

    #[test]
    fn the_last_window_ends_with_the_document() {
        let check = |tokens, expected: &[(Range<usize>, Range<usize>)]| {
            let expected: Vec<Window> = expected
                .iter()
                .map(|(tokens, targets)| Window { tokens: tokens.clone(), targets: targets.clone() })
                .collect();
            assert_eq!(REFERENCE.cut(tokens).unwrap(), expected, "{tokens} tokens");
        };
        check(2, &[(0..2, 1..2)]);
        check(2048, &[(0..2048, 1..2048)]);
        check(2049, &[(0..2048, 1..2048), (1024..2049, 2048..2049)]);
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        assert_eq!(REFERENCE.cut(1), Err(WindowError::TooShort(1)));
        assert_eq!(REFERENCE.cut(0), Err(WindowError::TooShort(0)));
        for stride in [0, 4, 5] {
            assert_eq!(WindowShape { window: 4, stride }.cut(9), Err(WindowError::Shape { window: 4, stride }));
        }
    }

    proptest! {
        #[test]
        fn every_target_is_scored_once_with_the_context_stated(
            (window, stride) in (2usize..60).prop_flat_map(|window| (Just(window), 1..window)),
            tokens in 2usize..400,
        ) {
            let windows = WindowShape { window, stride }.cut(tokens).unwrap();
            let scored: Vec<usize> = windows.iter().flat_map(|window| window.targets.clone()).collect();
            prop_assert_eq!(scored, (1..tokens).collect::<Vec<_>>());
            for (index, part) in windows.iter().enumerate() {
                prop_assert_eq!(part.tokens.start, index * stride);
                prop_assert!(part.tokens.len() <= window && part.targets.end == part.tokens.end);
                let least_context = part.targets.start - part.tokens.start;
                let stated = if index == 0 { 1 } else { window - stride };
                prop_assert!(least_context >= stated);
            }
        }
    }
}
