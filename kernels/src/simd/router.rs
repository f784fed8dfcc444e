use super::argmax::Largest;
use super::lanes::{LANES, Lanes, Level, Task};
use super::parallel::pieces;
use crate::twin::{keep_best_groups, weigh};
use crate::{KernelError, Routing, Scoring, check, contract};
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// [`crate::twin::router_topk`], fast.
///
/// # Errors
/// As the twin.
pub fn router_topk(
    logits: &[f32],
    bias: Option<&[f32]>,
    num_experts: usize,
    top_k: usize,
    routing: &Routing,
    ids: &mut [u32],
    weights: &mut [f32],
) -> Result<(), KernelError> {
    let tokens = check::router_topk(logits, bias, num_experts, top_k, routing, ids, weights)?;
    let level = Level::current();
    let first_nan = AtomicUsize::new(usize::MAX);
    let run = |first: usize, ids: &mut [u32], weights: &mut [f32]| {
        let (mut scores, mut keys) = (vec![0.0f32; num_experts], vec![0.0f32; num_experts]);
        for (index, (ids, weights)) in ids.chunks_exact_mut(top_k).zip(weights.chunks_exact_mut(top_k)).enumerate() {
            let at = (first + index) * num_experts;
            let logits = &logits[at..at + num_experts];
            match routing.scoring {
                Scoring::Softmax => level.run(Softmax { logits, scores: &mut scores }),
                Scoring::SoftmaxOfChosen => scores.copy_from_slice(logits),
                Scoring::Sigmoid => level.run(Sigmoid { logits, scores: &mut scores }),
            }
            if let Some(expert) = scores.iter().position(|score| score.is_nan()) {
                first_nan.fetch_min(at + expert, Ordering::Relaxed);
                return;
            }
            match bias {
                Some(bias) => keys.iter_mut().zip(scores.iter().zip(bias)).for_each(|(key, (s, b))| *key = s + b),
                None => keys.copy_from_slice(&scores),
            }
            keep_best_groups(&mut keys, routing);
            choose(level, &mut keys, ids);
            weigh(&scores, ids, routing, weights);
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

struct Sigmoid<'a> {
    logits: &'a [f32],
    scores: &'a mut [f32],
}

impl Task for Sigmoid<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        for start in (0..self.scores.len()).step_by(LANES) {
            let score = lanes.sigmoid(lanes.load_part(&self.logits[start..]));
            lanes.store_part(score, &mut self.scores[start..]);
        }
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

/// The largest key for each rank, the first of equals; a taken key becomes −inf.
fn choose(level: Level, keys: &mut [f32], ids: &mut [u32]) {
    for rank in 0..ids.len() {
        let max = level.run(Largest(keys));
        // Where nothing but −inf is left, what has been taken must be told from what had that key.
        let open = |&expert: &usize| max > f32::NEG_INFINITY || !ids[..rank].contains(&(expert as u32));
        let best = (0..keys.len()).filter(|&expert| keys[expert] == max).find(open).unwrap_or_default();
        ids[rank] = best as u32;
        keys[best] = f32::NEG_INFINITY;
    }
}
