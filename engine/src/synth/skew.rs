//! A stated skew of routing: how often each expert is chosen, and the router that does it.
//!
//! Hidden states of a synthetic model have no direction in common, so a router whose rows are equally long chooses every expert
//! equally often. For a skew the embeddings get one: their first columns hold the same values for every token. Each
//! router row reads a bias of its own off these columns, and the rest of the row adds noise. No other matrix reads them: what
//! all tokens have in common would otherwise grow from layer to layer, and the skew with it.

use super::random::Stream;

/// The most that an expert is chosen for: in this share of the tokens.
const MOST: f64 = 0.95;

/// For each rank the share of tokens that choose the expert: `top_k` in all, in proportion to `rank^-exponent`, none above
/// [`MOST`]; what that leaves over goes to the others in the same proportion.
pub(super) fn inclusion(exponent: f64, num_experts: usize, top_k: usize) -> Vec<f64> {
    let weights: Vec<f64> = (1..=num_experts).map(|rank| (rank as f64).powf(-exponent)).collect();
    // With as many chosen as there are, or nearly, nothing can be skewed.
    let most = MOST.max(top_k as f64 / num_experts as f64);
    let mut capped = 0;
    loop {
        let rest: f64 = weights[capped..].iter().sum();
        let left = (top_k as f64 - capped as f64 * most).max(0.0);
        let share = |weight: f64| weight * left / rest;
        if capped < num_experts && share(weights[capped]) > most {
            capped += 1;
            continue;
        }
        return weights
            .iter()
            .enumerate()
            .map(|(rank, &weight)| if rank < capped { most } else { share(weight) })
            .collect();
    }
}

/// Which rank each expert has: a permutation.
pub(super) fn ranks(stream: Stream, num_experts: usize) -> Vec<usize> {
    let mut experts: Vec<usize> = (0..num_experts).collect();
    experts.sort_by_key(|&expert| stream.word(expert as u64));
    let mut ranks = vec![0; num_experts];
    for (rank, expert) in experts.into_iter().enumerate() {
        ranks[expert] = rank;
    }
    ranks
}

/// The bias, in standard deviations of the noise, with which a logit is above 0 in this share of the tokens: the standard normal
/// quantile, by bisection.
pub(super) fn bias(share: f64) -> f64 {
    let (mut low, mut high) = (-10.0, 10.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if libm::erfc(-middle / std::f64::consts::SQRT_2) / 2.0 < share { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

#[cfg(test)]
mod tests {
    use super::super::random::Name;
    use super::*;

    #[test]
    fn shares_add_up_fall_and_stay_below_the_most() {
        for (exponent, experts, top_k) in [(1.0, 128, 8), (0.3, 128, 8), (4.0, 128, 8), (1.0, 8, 2), (1.0, 4, 4)] {
            let shares = inclusion(exponent, experts, top_k);
            assert!((shares.iter().sum::<f64>() - top_k as f64).abs() < 1e-6, "{exponent} {experts} {top_k}");
            assert!(shares.windows(2).all(|pair| pair[0] >= pair[1]), "{shares:?}");
            assert!(shares[0] <= 1.0);
        }
        // Nothing is capped: the law itself.
        let shares = inclusion(0.5, 64, 4);
        assert!((shares[0] / shares[3] - 2.0).abs() < 1e-12);
    }

    #[test]
    fn quantiles_are_the_normal_distribution_s() {
        for (share, expected) in [(0.5, 0.0), (0.975, 1.959_963_985), (0.01, -2.326_347_874)] {
            assert!((bias(share) - expected).abs() < 1e-8, "{share}: {}", bias(share));
        }
    }

    #[test]
    fn ranks_are_a_permutation() {
        let stream = |layer| Stream::of_layer(5, layer, Name::Popularity);
        let mut sorted = ranks(stream(0), 40);
        assert_ne!(sorted, ranks(stream(1), 40));
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..40));
    }
}
