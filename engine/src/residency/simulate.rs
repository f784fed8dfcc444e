//! Residency replayed from a route trace: the same slots, table and policies as the engine's, without a model.
//!
//! What is replayed is an engine whose slots are all kept through prefill, by either cold path. Beside the policies stand two bounds that need to
//! know the future: the best fixed set of experts, and the best that any cache could do.

use std::collections::{BTreeSet, VecDeque};

use serde::Serialize;

use super::policy::PolicyKind;
use super::slots::{LayerHits, Residency, ResidencyCounters};
use super::trace::{RouteTrace, TokenRoutes};
use super::{ExpertId, Heatmap, Miss};
use crate::device::Span;
use crate::engine::BATCHES_UNDER_WAY;

/// What is replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SimulateOptions {
    /// The policy.
    pub policy: PolicyKind,
    /// Experts that can be resident, landing slots apart.
    pub slots: usize,
    /// Cold experts that may become resident for each token.
    pub promotions_per_token: usize,
    /// Whether the policy runs behind the token and promoted experts arrive later, as where a token is one graph. Otherwise
    /// it runs at each layer, and what was copied there stays.
    pub behind: bool,
}

/// Hits and misses of each MoE layer, and what they cost.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Simulated {
    /// Each MoE layer's.
    pub layers: Vec<LayerHits>,
    /// Bytes copied for cold experts.
    pub cold_bytes: u64,
    /// Cold experts that stayed.
    pub promotions: u64,
    /// Experts copied into slots before the first token and between requests.
    pub filled: u64,
}

impl Simulated {
    /// All layers together.
    pub fn total(&self) -> LayerHits {
        let sum = |field: fn(&LayerHits) -> u64| self.layers.iter().map(field).sum();
        LayerHits { hits: sum(|layer| layer.hits), misses: sum(|layer| layer.misses) }
    }

    /// Hits and misses where nothing but misses moves bytes.
    fn of_hits(trace: &RouteTrace, layers: Vec<LayerHits>, filled: usize) -> Self {
        let misses: u64 = layers.iter().map(|layer| layer.misses).sum();
        Self { layers, cold_bytes: misses * trace.header.expert_bytes, promotions: 0, filled: filled as u64 }
    }
}

/// Replays a trace. A heatmap is the prior of the first fill, and must have the trace's layers and experts.
///
/// `None` where a layer has more cold experts than landing slots, which a trace's own check rules out.
pub fn simulate(trace: &RouteTrace, heatmap: Option<&Heatmap>, options: SimulateOptions) -> Option<Simulated> {
    let header = &trace.header;
    let SimulateOptions { policy, slots, promotions_per_token, behind } = options;
    let (moe_layers, landing) = (trace.moe_layers(), header.landing_slots);
    let mut residency = Residency::new(moe_layers, header.num_experts, heatmap, policy, promotions_per_token, landing);
    let bytes = usize::try_from(header.expert_bytes).ok()?;
    // Addresses are only names here: nothing is copied.
    for slot in 0..landing + slots.min(trace.total_experts()) {
        residency.add_hard(Span::new(slot as u64, bytes));
    }
    let mut simulated = Simulated::default();
    // As after calibration, where hard slots are filled and then the (here empty) soft tier.
    for _ in 0..2 {
        simulated.filled += residency.fill().len() as u64;
    }
    let mut arriving = VecDeque::new();
    let mut tokens = trace.token_routes();
    for request in &header.requests {
        if request.prompt_tokens > 0 {
            arriving.drain(..).for_each(|batch: Vec<Miss>| residency.arrive(&batch));
            simulated.filled += residency.fill().len() as u64;
        }
        for token in tokens.by_ref().take(usize::try_from(request.decode_tokens).ok()?) {
            residency.begin_token();
            if behind {
                decode_behind(&mut residency, token, &mut arriving);
            } else {
                decode(&mut residency, token)?;
            }
        }
    }
    let ResidencyCounters { cold_bytes, promotions, .. } = residency.take_counters();
    let layers = residency.take_layer_use().into_iter().map(|layer| layer.hits).collect();
    Some(Simulated { layers, cold_bytes, promotions, filled: simulated.filled })
}

fn widened(routes: &[u16]) -> Vec<u32> {
    routes.iter().map(|&expert| u32::from(expert)).collect()
}

/// One token as the host decodes it layer by layer.
fn decode(residency: &mut Residency, token: TokenRoutes<'_>) -> Option<()> {
    for (layer, routes) in token.layers().map(widened).enumerate() {
        residency.route(layer, &routes)?;
        residency.settle(layer, &routes);
    }
    Some(())
}

/// One token that the device decodes by itself: promotions are chosen behind it, and are there before the token after the next.
fn decode_behind(residency: &mut Residency, token: TokenRoutes<'_>, arriving: &mut VecDeque<Vec<Miss>>) {
    while arriving.len() > BATCHES_UNDER_WAY {
        arriving.pop_front().into_iter().for_each(|batch| residency.arrive(&batch));
    }
    let waiting: Vec<Miss> = arriving.iter().flatten().copied().collect();
    let layers = token.layers().map(widened).enumerate();
    let copies: Vec<Miss> =
        layers.flat_map(|(layer, routes)| residency.route_behind(layer, &routes, &waiting)).collect();
    if !copies.is_empty() {
        arriving.push_back(copies);
    }
}

/// Every route of a trace in order: the layer and the expert.
fn accesses(trace: &RouteTrace) -> Vec<(usize, ExpertId)> {
    let num_experts = trace.header.num_experts;
    let in_layer = |(layer, routes): (usize, &[u16])| {
        let experts: Vec<_> = routes.iter().map(|&expert| usize::from(expert)).collect();
        experts.into_iter().map(move |expert| (layer, ExpertId::new(layer, num_experts, expert)))
    };
    trace.token_routes().flat_map(|token| token.layers().enumerate().flat_map(in_layer).collect::<Vec<_>>()).collect()
}

fn count(layers: &mut [LayerHits], layer: usize, hit: bool) {
    if hit {
        layers[layer].hits += 1;
    } else {
        layers[layer].misses += 1;
    }
}

/// A fixed set of `slots` experts, the most often used by these counts (ties to the lowest), never changed: by the trace's own
/// counts the best fixed set there is, by a heatmap's what the prior alone is worth.
pub fn fixed_set(trace: &RouteTrace, slots: usize, counts: &[u64]) -> Simulated {
    let mut order: Vec<usize> = (0..trace.total_experts()).collect();
    order.sort_by_key(|&expert| std::cmp::Reverse(counts.get(expert).copied().unwrap_or(0)));
    let mut resident = vec![false; order.len()];
    order.iter().take(slots).for_each(|&expert| resident[expert] = true);
    let mut layers = vec![LayerHits::default(); trace.moe_layers()];
    for (layer, expert) in accesses(trace) {
        count(&mut layers, layer, resident[expert.index()]);
    }
    Simulated::of_hits(trace, layers, slots.min(order.len()))
}

/// How often each expert is used in the trace, by [`ExpertId`].
pub fn usage_counts(trace: &RouteTrace) -> Vec<u64> {
    let mut counts = vec![0; trace.total_experts()];
    for (_, expert) in accesses(trace) {
        counts[expert.index()] += 1;
    }
    counts
}

/// The most hits that any residency with `slots` slots can have, promotions unbounded: the expert whose next use is farthest away
/// leaves, and one whose own is farther is not kept at all (Belady, "A study of replacement algorithms for a virtual-storage
/// computer", 1966; with bypass). The first set is the one that is used soonest, since filling it is no miss.
pub fn oracle(trace: &RouteTrace, slots: usize) -> Simulated {
    let accesses = accesses(trace);
    const NEVER: usize = usize::MAX;
    let mut next_use = vec![NEVER; accesses.len()];
    let mut soonest = vec![NEVER; trace.total_experts()];
    for (index, (_, expert)) in accesses.iter().enumerate().rev() {
        next_use[index] = std::mem::replace(&mut soonest[expert.index()], index);
    }
    let mut by_use: Vec<(usize, ExpertId)> =
        soonest.iter().enumerate().map(|(expert, &next)| (next, ExpertId(expert as u32))).collect();
    by_use.sort_unstable();
    let mut resident: BTreeSet<(usize, ExpertId)> = by_use.into_iter().take(slots).collect();
    let mut layers = vec![LayerHits::default(); trace.moe_layers()];
    for (index, &(layer, expert)) in accesses.iter().enumerate() {
        let hit = resident.remove(&(index, expert));
        count(&mut layers, layer, hit);
        let kept = (next_use[index], expert);
        if hit {
            resident.insert(kept);
        } else if resident.last().is_some_and(|farthest| *farthest > kept) {
            resident.pop_last();
            resident.insert(kept);
        }
    }
    Simulated::of_hits(trace, layers, slots.min(trace.total_experts()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::HeatmapIdentity;
    use super::super::trace::{Recorded, TraceShape};
    use super::*;
    use proptest::prelude::*;

    /// One MoE layer of `num_experts` experts, of which each token takes one.
    fn trace(num_experts: usize, experts: &[u32]) -> RouteTrace {
        let text = || String::new();
        let identity = HeatmapIdentity {
            checkpoint_sha256: text(),
            experts: text(),
            attention: text(),
            dense: text(),
            kv: text(),
        };
        let mut recorded = Recorded::default();
        recorded.prefilled(1);
        for &expert in experts {
            recorded.routed(&[expert]);
            recorded.decoded();
        }
        let shape = TraceShape { num_experts, top_k: vec![1], expert_bytes: 10, landing_slots: 2 };
        RouteTrace::new(identity, shape, recorded)
    }

    fn run(trace: &RouteTrace, policy: PolicyKind, slots: usize, promotions_per_token: usize) -> Simulated {
        simulate(trace, None, SimulateOptions { policy, slots, promotions_per_token, behind: false }).unwrap()
    }

    #[test]
    fn known_answers() {
        let trace = trace(4, &[2, 3, 2, 3, 0, 2, 3]);
        // Without a prior 0 and 1 are resident at first.
        let lru = run(&trace, PolicyKind::Lru, 2, 1);
        // 2 and 3 miss, hit, hit; 0 misses and drives 2 out; 2 misses and drives 3 out; 3 misses.
        assert_eq!(lru.layers, [LayerHits { hits: 2, misses: 5 }]);
        assert_eq!((lru.promotions, lru.cold_bytes, lru.filled), (5, 50, 2));
        let fixed = run(&trace, PolicyKind::Lru, 2, 0);
        assert_eq!((fixed.total().hits, fixed.promotions), (1, 0));
        assert_eq!(fixed_set(&trace, 2, &usage_counts(&trace)).total().hits, 6);
        assert_eq!(oracle(&trace, 2).total().hits, 6);
        assert_eq!(oracle(&trace, 1).total().hits, 3);
        for slots in [4, 9] {
            for kind in PolicyKind::ALL {
                assert_eq!(run(&trace, kind, slots, 1).total(), LayerHits { hits: 7, misses: 0 });
            }
            assert_eq!(oracle(&trace, slots).total().hits, 7);
        }
        assert_eq!(run(&trace, PolicyKind::Lru, 0, 4).total().hits, 0);
    }

    #[test]
    fn promotions_behind_the_token_arrive_a_token_later() {
        let run = |experts: &[u32], promotions_per_token, behind| {
            let options = SimulateOptions { policy: PolicyKind::Lru, slots: 1, promotions_per_token, behind };
            simulate(&trace(4, experts), None, options).unwrap()
        };
        // 0 is resident. 2 misses and drives it out, is on its way during the next token, and is there for the one after that,
        // once another batch follows or a request begins.
        let trace = [2, 3, 2, 2];
        assert_eq!(run(&trace, 1, false).total().hits, 1);
        let behind = run(&trace, 1, true);
        // Nothing is resident while the only slot waits for 2, so nobody can leave for 3.
        assert_eq!((behind.total().hits, behind.promotions, behind.cold_bytes), (0, 1, 40));
        for promotions in [0, 1] {
            assert_eq!(run(&[0, 0, 0], promotions, true), run(&[0, 0, 0], promotions, false));
        }
        assert_eq!(run(&trace, 0, true), run(&trace, 0, false));
    }

    /// The most hits by trying everything: the set before each access, and for each miss who leaves, if anyone.
    fn best(accesses: &[u32], resident: u32) -> u64 {
        let Some((&expert, rest)) = accesses.split_first() else { return 0 };
        let bit = 1 << expert;
        if resident & bit != 0 {
            return 1 + best(rest, resident);
        }
        let leaves = (0..8).filter(|other| resident & (1 << other) != 0);
        leaves.map(|other| best(rest, resident & !(1 << other) | bit)).chain([best(rest, resident)]).max().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_oracle_is_the_best_there_is_and_no_policy_beats_it(
            experts in prop::collection::vec(0u32..5, 1..9),
            slots in 1usize..4,
            promotions in 0usize..3,
        ) {
            let trace = trace(5, &experts);
            let found = oracle(&trace, slots).total().hits;
            let sets = (0u32..32).filter(|set| set.count_ones() as usize == slots);
            prop_assert_eq!(found, sets.map(|set| best(&experts, set)).max().unwrap());
            prop_assert!(fixed_set(&trace, slots, &usage_counts(&trace)).total().hits <= found);
            for kind in PolicyKind::ALL {
                for behind in [false, true] {
                    let options = SimulateOptions { policy: kind, slots, promotions_per_token: promotions, behind };
                    let total = simulate(&trace, None, options).unwrap().total();
                    prop_assert!(total.hits <= found);
                    prop_assert_eq!(total.hits + total.misses, experts.len() as u64);
                }
            }
        }
    }
}
