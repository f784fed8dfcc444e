use std::cmp::Ordering;

use crate::contract::sample_weight;
use crate::{Choice, KernelError, check};

/// A token drawn at random, by [`sample_weight`]s: integers, so that the answer depends on no order of addition.
///
/// Candidates stand in the order of their logits, largest first, ties to the lowest id. Top-k keeps the first `top_k` of them, top-p the
/// shortest head that weighs at least its share of what top-k left, min-p those that weigh at least its share of the largest
/// weight. Of what is left, in ascending id, the token is drawn up to which the weights first exceed `word / 2^64` of their sum. The
/// largest logit is the answer where it is infinite.
///
/// # Errors
/// `Geometry` without logits or with more than 2^23; `NotANumber` for the first NaN: a NaN never becomes a token.
pub fn sample(logits: &[f32], choice: &Choice) -> Result<u32, KernelError> {
    check::sample(logits)?;
    if let Some(index) = logits.iter().position(|logit| logit.is_nan()) {
        return Err(KernelError::NotANumber { kernel: "sample", what: "logit", index });
    }
    let logit = |id: u32| logits[id as usize];
    let mut kept: Vec<u32> = (0..logits.len() as u32).collect();
    kept.sort_by(|&a, &b| logit(b).partial_cmp(&logit(a)).unwrap_or(Ordering::Equal).then(a.cmp(&b)));
    let best = kept[0];
    if logit(best).is_infinite() {
        return Ok(best);
    }
    let weight = |id: u32| sample_weight(logit(id), logit(best), choice.scale);
    let sum = |ids: &[u32]| ids.iter().map(|&id| weight(id)).sum::<u64>();
    if choice.top_k > 0 {
        kept.truncate(choice.top_k as usize);
    }
    if choice.share > 0 {
        kept.truncate(reach(&kept, weight, choice.wanted(sum(&kept))) + 1);
    }
    kept.retain(|&id| weight(id) >= choice.least);
    kept.sort_unstable();
    // A sum above the target is one that reaches the next integer.
    let drawn = reach(&kept, weight, choice.target(sum(&kept)) + 1);
    Ok(kept[drawn])
}

/// The first candidate up to which the weights reach `wanted`, which is at most their sum.
fn reach(candidates: &[u32], weight: impl Fn(u32) -> u64, wanted: u64) -> usize {
    let mut sum = 0;
    let reached = candidates.iter().position(|&id| {
        sum += weight(id);
        sum >= wanted
    });
    reached.unwrap_or(candidates.len() - 1)
}
