#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;

use super::{LayerUse, Miss, PolicyKind, Residency};
use crate::device::Span;

const LAYERS: usize = 12;
const EXPERTS: usize = 64;
const TOP_K: usize = 4;
const TOKENS: usize = 4000;
/// What a speed record allows between a layer's hit rate and its resident share.
const ALLOWED: f64 = 0.02;

/// Different experts of a layer, each as likely as any other, from a linear congruential generator.
fn even_routes(state: &mut u64) -> Vec<u32> {
    let mut routes: Vec<u32> = Vec::new();
    while routes.len() < TOP_K {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let expert = (*state >> 33) as u32 % EXPERTS as u32;
        if !routes.contains(&expert) {
            routes.push(expert);
        }
    }
    routes
}

/// Half of the experts resident, the first layers' to begin with, and routes that are even.
fn decode(policy: PolicyKind, behind: bool) -> Vec<LayerUse> {
    let mut residency = Residency::new(LAYERS, EXPERTS, None, policy, 1, TOP_K);
    for slot in 0..LAYERS * EXPERTS / 2 + TOP_K {
        residency.add_hard(Span::new(slot as u64 + 1, 1));
    }
    residency.fill();
    let (mut state, mut arriving) = (7, VecDeque::<Vec<Miss>>::new());
    for _ in 0..TOKENS {
        residency.begin_token();
        if arriving.len() > 1 {
            residency.arrive(&arriving.pop_front().unwrap());
        }
        let waiting: Vec<Miss> = arriving.iter().flatten().copied().collect();
        let mut copies = Vec::new();
        for layer in 0..LAYERS {
            let routes = even_routes(&mut state);
            if behind {
                copies.extend(residency.route_behind(layer, &routes, &waiting));
            } else {
                residency.route(layer, &routes).unwrap();
                residency.settle(layer, &routes);
            }
        }
        arriving.push_back(copies);
    }
    let total = residency.resident();
    let layers = residency.take_layer_use();
    assert_eq!(layers.iter().map(|layer| layer.resident).sum::<usize>(), total);
    // What has been taken is counted from nothing again; who is resident stays so.
    let rest: Vec<LayerUse> =
        layers.iter().map(|layer| LayerUse { resident: layer.resident, ..LayerUse::default() }).collect();
    assert_eq!(residency.take_layer_use(), rest);
    layers
}

#[test]
fn hit_rates_are_resident_shares_at_the_routes_though_promotions_move_residents() {
    for policy in PolicyKind::ALL {
        for behind in [false, true] {
            let layers = decode(policy, behind);
            let apart = |share: fn(&LayerUse) -> f64| {
                let differences = layers.iter().map(|layer| (layer.hits.hit_rate().unwrap() - share(layer)).abs());
                differences.fold(0.0, f64::max)
            };
            let at_the_routes = apart(|layer| layer.resident_share(EXPERTS).unwrap());
            let at_the_end = apart(|layer| layer.resident as f64 / EXPERTS as f64);
            assert!(at_the_routes <= ALLOWED, "{policy:?}, behind {behind}: {at_the_routes}");
            if policy != PolicyKind::Frequency {
                assert!(at_the_end > ALLOWED, "{policy:?}, behind {behind}: nothing moved, {at_the_end}");
            }
        }
    }
}
