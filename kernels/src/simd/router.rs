use super::argmax::Largest;
use super::lanes::{LANES, Lanes, Level, Task};
use super::parallel::pieces;
use crate::{KernelError, check, contract};
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// [`crate::twin::router_topk`], fast.
///
/// # Errors
/// As the twin.
pub fn router_topk(
    logits: &[f32],
    num_experts: usize,
    top_k: usize,
    norm_topk_prob: bool,
    ids: &mut [u32],
    weights: &mut [f32],
) -> Result<(), KernelError> {
    let tokens = check::router_topk(logits, num_experts, top_k, ids, weights)?;
    let level = Level::current();
    let first_nan = AtomicUsize::new(usize::MAX);
    let run = |first: usize, ids: &mut [u32], weights: &mut [f32]| {
        let mut scores = vec![0.0f32; num_experts];
        for (index, (ids, weights)) in ids.chunks_exact_mut(top_k).zip(weights.chunks_exact_mut(top_k)).enumerate() {
            let at = (first + index) * num_experts;
            level.run(Softmax { logits: &logits[at..at + num_experts], scores: &mut scores });
            if let Some(expert) = scores.iter().position(|score| score.is_nan()) {
                first_nan.fetch_min(at + expert, Ordering::Relaxed);
                return;
            }
            choose(level, &mut scores, norm_topk_prob, ids, weights);
        }
    };
    let piece = pieces(tokens, num_experts * (60 + 8 * top_k));
    if piece >= tokens {
        run(0, ids, weights);
    } else {
        let (ids, weights) = (ids.par_chunks_mut(piece * top_k), weights.par_chunks_mut(piece * top_k));
        ids.zip(weights).enumerate().for_each(|(index, (ids, weights))| run(index * piece, ids, weights));
    }
    match first_nan.into_inner() {
        usize::MAX => Ok(()),
        index => Err(KernelError::NotANumber { kernel: "router_topk", what: "score", index }),
    }
}

struct Softmax<'a> {
    logits: &'a [f32],
    scores: &'a mut [f32],
}

impl Task for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let scores = self.scores;
        // Where a logit is NaN so is the score, whatever the maximum.
        let max = lanes.splat(Largest(self.logits).run(lanes));
        for start in (0..scores.len()).step_by(LANES) {
            let x = lanes.load_part(&self.logits[start..]);
            lanes.store_part(lanes.exp(lanes.sub(x, max)), &mut scores[start..]);
        }
        let sum = lanes.splat(contract::group_sum(scores.len(), |acc, e| acc + scores[e]));
        for start in (0..scores.len()).step_by(LANES) {
            let score = lanes.div(lanes.load_part(&scores[start..]), sum);
            lanes.store_part(score, &mut scores[start..]);
        }
    }
}

/// Takes the largest score once for each rank, the first of equals; a taken score becomes −1, below every other.
fn choose(level: Level, scores: &mut [f32], norm_topk_prob: bool, ids: &mut [u32], weights: &mut [f32]) {
    for (id, weight) in ids.iter_mut().zip(weights.iter_mut()) {
        let max = level.run(Largest(scores));
        let best = scores.iter().position(|&score| score == max).unwrap_or_default();
        *id = best as u32;
        *weight = std::mem::replace(&mut scores[best], -1.0);
    }
    if norm_topk_prob {
        let sum = weights[1..].iter().fold(weights[0], |sum, weight| sum + weight);
        for weight in weights.iter_mut() {
            *weight /= sum;
        }
    }
}
