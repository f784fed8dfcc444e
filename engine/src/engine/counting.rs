//! What is counted of a token's routes, and when: heat, hits, recorded traces.
//!
//! Where every expert is resident, the next token depends on none of it. So a captured token's routes are kept as they came back, and
//! counted while the device computes the next token, or before anybody asks for what they feed: whoever reads or forgets a count
//! calls [`Engine::settle_counts`] first.

use super::Engine;
use crate::device::Device;
use crate::model::spec::{FfnSpec, ModelSpec};
use crate::residency::{Miss, Recorded};

/// Routes `[moe layers][top_k]` of the token that was decoded last, if they are not yet counted.
#[derive(Debug, Default)]
pub(super) struct Uncounted {
    routes: Vec<u32>,
    waits: bool,
}

/// Each MoE layer's part of a token's routes `[moe layers][top_k]`, of which it may use fewer than `top_k`.
pub(super) fn routes_of_layers<'a>(
    spec: &'a ModelSpec,
    top_k: usize,
    routes: &'a [u32],
) -> impl Iterator<Item = (usize, &'a [u32])> {
    let chosen = spec.layers.iter().filter_map(|layer| match &layer.ffn {
        FfnSpec::Moe(moe) => Some(moe.num_experts_per_tok),
        FfnSpec::Dense(_) => None,
    });
    // Without experts there is neither layer nor route.
    let all = chosen.zip(routes.chunks_exact(top_k.max(1))).enumerate();
    all.map(|(moe_layer, (chosen, routes))| (moe_layer, &routes[..chosen]))
}

impl<D: Device> Engine<D> {
    /// Keeps the routes of a token that is decoded. No expert of it was cold.
    pub(super) fn count_later(&mut self, routes: &[u32]) {
        self.settle_counts();
        // Its memory is that of every token.
        self.uncounted.routes.clear();
        self.uncounted.routes.extend_from_slice(routes);
        self.uncounted.waits = true;
    }

    /// Counts what was kept.
    pub(super) fn settle_counts(&mut self) {
        if !std::mem::take(&mut self.uncounted.waits) {
            return;
        }
        let routes = std::mem::take(&mut self.uncounted.routes);
        let promoted = self.count_token(&routes, &[]);
        debug_assert!(promoted.is_empty(), "every expert was resident");
        self.recorded.iter_mut().for_each(Recorded::decoded);
        self.uncounted.routes = routes;
    }

    /// Counts a token's routes, and says which of its cold experts the policy promotes; `waiting` are on their way already.
    pub(super) fn count_token(&mut self, routes: &[u32], waiting: &[Miss]) -> Vec<Miss> {
        self.residency.begin_token();
        let (spec, top_k) = (self.spec.clone(), self.plan.sizes.top_k);
        let mut promoted = Vec::new();
        for (moe_layer, routes) in routes_of_layers(&spec, top_k, routes) {
            self.count_routes(moe_layer, routes);
            self.recorded.iter_mut().for_each(|recorded| recorded.routed(routes));
            promoted.extend(self.residency.route_behind(moe_layer, routes, waiting));
        }
        promoted
    }

    pub(super) fn count_routes(&mut self, moe_layer: usize, routes: &[u32]) {
        if let Some(counts) = &mut self.observed {
            for &expert in routes {
                counts[moe_layer][expert as usize] += 1;
            }
        }
    }

    /// Forgets every use of an expert: what was decoded so far was nobody's.
    pub(super) fn forget_usage(&mut self) {
        self.settle_counts();
        self.residency.forget_usage();
    }
}
