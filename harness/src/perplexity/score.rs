//! Windows through the engine.

use super::documents::Document;
use crate::interrupt;
use crate::progress::Progress;
use crate::windows::WindowShape;
use anyhow::{Context, ensure};
use assay_engine::Engine;
use assay_engine::device::Device;
use serde::Serialize;

/// Windows of 2,048 tokens, 1,024 apart.
pub const SHAPE: WindowShape = WindowShape { window: 2048, stride: 1024 };

/// What a document came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DocumentScore {
    /// Its name.
    pub document: String,
    /// `exp(nll_mean)`
    pub perplexity: f64,
    /// Mean negative log-likelihood of a target, nats.
    pub nll_mean: f64,
    /// Sum over the targets, nats.
    pub nll_total: f64,
    /// Targets scored.
    pub tokens: u64,
}

/// All documents together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Total {
    /// `exp(nll_total / tokens)`
    pub perplexity: f64,
    /// Sum over all targets, nats.
    pub nll_total: f64,
    /// Targets scored.
    pub tokens: u64,
}

impl Total {
    /// Over documents: every target counts the same.
    pub fn of(scores: &[DocumentScore]) -> Self {
        let nll_total: f64 = scores.iter().map(|score| score.nll_total).sum();
        let tokens: u64 = scores.iter().map(|score| score.tokens).sum();
        Total { perplexity: (nll_total / tokens as f64).exp(), nll_total, tokens }
    }
}

/// Scores every document.
///
/// # Errors
/// When a window exceeds the context, a token is not the model's, a loss is not finite, or the user interrupts.
pub fn score<D: Device>(
    engine: &mut Engine<D>,
    documents: &[Document],
    label: &str,
) -> anyhow::Result<Vec<DocumentScore>> {
    let context = engine.options().context_tokens;
    let longest = documents.iter().map(|document| document.tokens.len().min(SHAPE.window)).max().unwrap_or(0);
    ensure!(
        longest <= context,
        "a window of {longest} tokens exceeds the context of {context}: give the config a context of {longest} or more"
    );
    let total: usize = documents.iter().map(|document| document.tokens.len()).sum();
    let mut progress = Progress::start(format!("perplexity of {label}"), total as u64, "tokens");
    let mut scores = Vec::with_capacity(documents.len());
    for document in documents {
        scores.push(score_document(engine, document, &mut progress)?);
    }
    Ok(scores)
}

fn score_document<D: Device>(
    engine: &mut Engine<D>,
    document: &Document,
    progress: &mut Progress,
) -> anyhow::Result<DocumentScore> {
    let (mut nll_total, mut tokens) = (0.0, 0u64);
    for window in SHAPE.cut(document.tokens.len()).with_context(|| document.name.clone())? {
        interrupt::check()?;
        let ids = &document.tokens[window.tokens.clone()];
        engine.reset();
        // Target t is predicted by the position before it.
        let first = window.targets.start - 1 - window.tokens.start;
        engine
            .prefill_logits(ids, first, &mut |position, logits| {
                if let Some(&target) = ids.get(position + 1) {
                    nll_total += negative_log_likelihood(logits, target as usize);
                    tokens += 1;
                }
                Ok(())
            })
            .with_context(|| document.name.clone())?;
        progress.advance(window.targets.len() as u64);
    }
    ensure!(nll_total.is_finite(), "{}: the loss is {nll_total}, expected a finite number", document.name);
    let nll_mean = nll_total / tokens as f64;
    Ok(DocumentScore { document: document.name.clone(), perplexity: nll_mean.exp(), nll_mean, nll_total, tokens })
}

/// `log Σ exp(logits) − logits[target]`, in f64.
fn negative_log_likelihood(logits: &[f32], target: usize) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    sum.ln() + f64::from(max) - f64::from(logits[target])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_of_known_logits() {
        let check = |logits: &[f32], target, expected: f64| {
            let found = negative_log_likelihood(logits, target);
            assert!((found - expected).abs() < 1e-12, "{found} for {logits:?}");
        };
        check(&[0.0; 4], 2, 4f64.ln());
        check(&[1.0, 0.0], 0, (1.0 + (-1f64).exp()).ln());
        check(&[1000.0, 0.0], 1, 1000.0);
    }

    #[test]
    fn every_target_counts_the_same() {
        let score = |nll_total: f64, tokens: u64| {
            let nll_mean = nll_total / tokens as f64;
            DocumentScore { document: String::new(), perplexity: nll_mean.exp(), nll_mean, nll_total, tokens }
        };
        let total = Total::of(&[score(10.0, 10), score(90.0, 30)]);
        assert_eq!((total.nll_total, total.tokens), (100.0, 40));
        assert!((total.perplexity - 2.5f64.exp()).abs() < 1e-12);
    }
}
