//! An engine over the documents.

use super::baseline::{Baseline, BaselineWriter};
use super::distribution::Distances;
use super::tally::{Fidelity, Tally};
use crate::interrupt;
use crate::perplexity::Document;
use crate::progress::Progress;
use anyhow::{Context, ensure};
use assay_engine::Engine;
use assay_engine::device::Device;
use assay_ledgers::Sha256;

/// Called with a position of a document, its logits, and the text's next token.
type EachPosition<'a> = &'a mut dyn FnMut(&[f32], Option<u32>) -> anyhow::Result<()>;

/// Runs every document and writes its rows; the baseline's hash.
///
/// # Errors
/// A document longer than the context; whatever stops the engine; a file that cannot be written.
pub fn write_baseline<D: Device>(
    engine: &mut Engine<D>,
    documents: &[Document],
    mut writer: BaselineWriter,
) -> anyhow::Result<Sha256> {
    positions(
        engine,
        documents,
        "writing a baseline",
        &mut |logits, target| Ok(writer.row(logits, target)?),
        &mut |_| {},
    )?;
    Ok(writer.finish()?)
}

/// Runs every document against the baseline's rows; figures, and the baseline's hash.
///
/// # Errors
/// A document longer than the context; whatever stops the engine; a baseline that is damaged. Whether it is of these
/// documents at all is asked before, of its header.
pub fn compare<D: Device>(
    engine: &mut Engine<D>,
    documents: &[Document],
    mut baseline: Baseline,
) -> anyhow::Result<(Fidelity, Sha256)> {
    let tally = std::cell::RefCell::new(Tally::default());
    positions(
        engine,
        documents,
        "comparing with the baseline",
        &mut |logits, target| {
            let row = baseline.next_row()?.context("the baseline has fewer rows than the documents have tokens")?;
            tally.borrow_mut().position(&Distances::between(&row, logits, target), target);
            Ok(())
        },
        &mut |document| tally.borrow_mut().document(&document.name),
    )?;
    let hash = baseline.finish()?;
    Ok((tally.into_inner().finish()?, hash))
}

fn positions<D: Device>(
    engine: &mut Engine<D>,
    documents: &[Document],
    label: &str,
    each: EachPosition<'_>,
    after: &mut dyn FnMut(&Document),
) -> anyhow::Result<()> {
    let context = engine.options().context_tokens;
    let total: usize = documents.iter().map(|document| document.tokens.len()).sum();
    let progress = Progress::start(label, total as u64, "tokens");
    for document in documents {
        interrupt::check()?;
        let tokens = &document.tokens;
        ensure!(
            tokens.len() <= context,
            "document {} of {} tokens exceeds the context of {context}",
            document.name,
            tokens.len()
        );
        engine.reset();
        let mut failed = None;
        engine
            .prefill_logits(tokens, 0, &mut |position, logits| {
                // The engine has errors of its own: ours is kept, and the rest of the document passed over.
                if failed.is_none() {
                    failed = each(logits, tokens.get(position + 1).copied()).err();
                }
                Ok(())
            })
            .with_context(|| document.name.clone())?;
        if let Some(error) = failed {
            return Err(error);
        }
        after(document);
        progress.advance(tokens.len() as u64);
    }
    Ok(())
}
