use crate::forms::{Routing, Scoring};
use crate::{KernelError, check, contract};

/// Added to the sum that chosen scores are divided by, so that a sum of 0 gives 0 and not NaN.
pub(crate) const SUM_FLOOR: f32 = 1e-20;

/// Chooses each token's experts, and weighs them.
///
/// `logits` are `[tokens, num_experts]`, `bias` is `[num_experts]`; `ids` and `weights` are `[tokens, top_k]`, best first.
///
/// 1. Scores: the softmax over all logits, the sigmoid of each, or the logits themselves.
/// 2. Keys: score + bias. With more than one group only experts of the `topk_group` best groups keep theirs, the others have
///    −inf; a group is as good as the sum of its largest and second largest key.
/// 3. The `top_k` largest keys, ties to the lowest index, for groups too.
/// 4. Weights: the chosen scores (no bias in them), or `exp(logit - max)` over their sum, with the largest chosen logit as max.
///    With `norm_topk_prob` they are divided by their sum + 1e-20. Sums are taken in rank order from the first. Then times
///    the scaling factor.
///
/// # Errors
/// `Shape`, `Geometry`; `NotANumber` for a score that is NaN, after which `ids` and `weights` are unspecified.
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
    let (mut scores, mut keys) = (vec![0.0f32; num_experts], vec![0.0f32; num_experts]);
    for token in 0..tokens {
        let logits = &logits[token * num_experts..(token + 1) * num_experts];
        match routing.scoring {
            Scoring::Softmax => softmax(logits, &mut scores),
            Scoring::SoftmaxOfChosen => scores.copy_from_slice(logits),
            Scoring::Sigmoid => {
                for (score, &logit) in scores.iter_mut().zip(logits) {
                    *score = contract::sigmoid(logit);
                }
            }
        }
        if let Some(expert) = scores.iter().position(|score| score.is_nan()) {
            return Err(KernelError::NotANumber {
                kernel: "router_topk",
                what: "score",
                index: token * num_experts + expert,
            });
        }
        for expert in 0..num_experts {
            keys[expert] = bias.map_or(scores[expert], |bias| scores[expert] + bias[expert]);
        }
        keep_best_groups(&mut keys, routing);
        let slots = token * top_k..(token + 1) * top_k;
        choose(&keys, &mut ids[slots.clone()]);
        weigh(&scores, &ids[slots.clone()], routing, &mut weights[slots]);
    }
    Ok(())
}

fn softmax(logits: &[f32], scores: &mut [f32]) {
    let mut max = f32::NEG_INFINITY;
    for &logit in logits {
        if logit > max {
            max = logit;
        }
    }
    for (score, &logit) in scores.iter_mut().zip(logits) {
        *score = contract::exp(logit - max);
    }
    let sum = contract::group_sum(scores.len(), |acc, e| acc + scores[e]);
    for score in scores.iter_mut() {
        *score /= sum;
    }
}

/// Sets the keys of all but the best groups to −inf.
pub(crate) fn keep_best_groups(keys: &mut [f32], routing: &Routing) {
    if routing.topk_group == routing.n_group {
        return;
    }
    let size = keys.len() / routing.n_group;
    let worth: Vec<f32> = keys.chunks_exact(size).map(two_best).collect();
    let mut best = vec![0u32; routing.topk_group];
    choose(&worth, &mut best);
    for (group, keys) in keys.chunks_exact_mut(size).enumerate() {
        if !best.contains(&(group as u32)) {
            keys.fill(f32::NEG_INFINITY);
        }
    }
}

/// The largest plus the second largest.
fn two_best(keys: &[f32]) -> f32 {
    let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for &key in keys {
        if key > first {
            (first, second) = (key, first);
        } else if key > second {
            second = key;
        }
    }
    first + second
}

/// The largest key for each rank among those not taken, ties to the lowest index.
fn choose(keys: &[f32], ids: &mut [u32]) {
    for rank in 0..ids.len() {
        let mut best: Option<usize> = None;
        for expert in 0..keys.len() {
            let taken = ids[..rank].contains(&(expert as u32));
            if !taken && best.is_none_or(|best| keys[expert] > keys[best]) {
                best = Some(expert);
            }
        }
        // There are at least as many keys as ranks.
        ids[rank] = best.unwrap_or_default() as u32;
    }
}

/// The weights of the chosen.
pub(crate) fn weigh(scores: &[f32], ids: &[u32], routing: &Routing, weights: &mut [f32]) {
    for (weight, &id) in weights.iter_mut().zip(ids) {
        *weight = scores[id as usize];
    }
    if routing.scoring == Scoring::SoftmaxOfChosen {
        let mut max = f32::NEG_INFINITY;
        for &logit in &*weights {
            if logit > max {
                max = logit;
            }
        }
        for weight in weights.iter_mut() {
            *weight = contract::exp(*weight - max);
        }
    }
    if routing.norm_topk_prob || routing.scoring == Scoring::SoftmaxOfChosen {
        let mut sum = weights[0];
        for &weight in &weights[1..] {
            sum += weight;
        }
        for weight in weights.iter_mut() {
            *weight /= sum + SUM_FLOOR;
        }
    }
    for weight in weights.iter_mut() {
        *weight *= routing.scaling_factor;
    }
}

/// Sorts slots by expert, keeping the order of the slots of one expert (a counting sort).
///
/// A slot is `token * top_k + rank`; `ids[slot]` is its expert. `order` lists the slots of expert 0, then of expert 1 and so
/// on; those of expert e are `order[offsets[e]..offsets[e + 1]]`. `offsets` is `[num_experts + 1]`.
///
/// # Errors
/// `Shape`, `TooLarge`; `Index` for an expert that does not exist.
pub fn permute(ids: &[u32], num_experts: usize, order: &mut [u32], offsets: &mut [u32]) -> Result<(), KernelError> {
    check::permute(ids, num_experts, order, offsets)?;
    offsets.fill(0);
    for &id in ids {
        offsets[id as usize + 1] += 1;
    }
    for expert in 0..num_experts {
        offsets[expert + 1] += offsets[expert];
    }
    // While slots are placed, offsets[e] is the next free place of expert e: it ends where e + 1 began.
    for (slot, &id) in ids.iter().enumerate() {
        let place = &mut offsets[id as usize];
        order[*place as usize] = slot as u32;
        *place += 1;
    }
    offsets.copy_within(0..num_experts, 1);
    offsets[0] = 0;
    Ok(())
}
