use crate::{KernelError, check, contract};

/// Chooses each token's experts: softmax over the logits, the `top_k` largest scores, ties to the lowest index.
///
/// `logits` are `[tokens, num_experts]`; `ids` and `weights` are `[tokens, top_k]` by falling score. With `norm_topk_prob`
/// the chosen scores are divided by their sum, added in rank order.
///
/// # Errors
/// `Shape`, `Geometry`; `NotANumber` for a score that is NaN, after which `ids` and `weights` are unspecified.
pub fn router_topk(
    logits: &[f32],
    num_experts: usize,
    top_k: usize,
    norm_topk_prob: bool,
    ids: &mut [u32],
    weights: &mut [f32],
) -> Result<(), KernelError> {
    let tokens = check::router_topk(logits, num_experts, top_k, ids, weights)?;
    let mut scores = vec![0.0f32; num_experts];
    for token in 0..tokens {
        let logits = &logits[token * num_experts..(token + 1) * num_experts];
        softmax(logits, &mut scores);
        if let Some(expert) = scores.iter().position(|score| score.is_nan()) {
            return Err(KernelError::NotANumber {
                kernel: "router_topk",
                what: "score",
                index: token * num_experts + expert,
            });
        }
        let slots = token * top_k..(token + 1) * top_k;
        choose(&mut scores, norm_topk_prob, &mut ids[slots.clone()], &mut weights[slots]);
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

/// Takes the largest score once for each rank; a taken score becomes −1, below every other.
fn choose(scores: &mut [f32], norm_topk_prob: bool, ids: &mut [u32], weights: &mut [f32]) {
    for (id, weight) in ids.iter_mut().zip(weights.iter_mut()) {
        let mut best = 0;
        for expert in 1..scores.len() {
            if scores[expert] > scores[best] {
                best = expert;
            }
        }
        *id = best as u32;
        *weight = std::mem::replace(&mut scores[best], -1.0);
    }
    if norm_topk_prob {
        let mut sum = weights[0];
        for &weight in &weights[1..] {
            sum += weight;
        }
        for weight in weights.iter_mut() {
            *weight /= sum;
        }
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
