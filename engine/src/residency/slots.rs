//! Slots, the flat table, landing and promotion.

use std::collections::VecDeque;
use std::ops::Range;

use super::policy::{Policy, PolicyKind, Usage};
use super::{ExpertId, Heatmap};
use crate::device::{Buffer, Span};

/// Where a slot's memory belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// Kept from startup to the end.
    Hard,
    /// Lent to prefill.
    Soft,
}

#[derive(Debug)]
struct Slot {
    bytes: Span<u8>,
    tier: Tier,
    holds: Option<ExpertId>,
}

/// A cold expert that was routed to, and where it will land.
#[derive(Debug, Clone, Copy)]
pub struct Miss {
    /// The expert.
    pub expert: ExpertId,
    /// The landing slot's memory.
    pub to: Span<u8>,
}

/// What decode has seen since the counters were taken last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct ResidencyCounters {
    /// Routes to an expert that was on the device.
    pub hits: u64,
    /// Routes to a cold expert.
    pub misses: u64,
    /// Bytes copied for cold experts.
    pub cold_bytes: u64,
    /// Cold experts that stayed.
    pub promotions: u64,
}

/// One MoE layer's routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct LayerHits {
    /// To an expert that was resident.
    pub hits: u64,
    /// To a cold one.
    pub misses: u64,
}

impl LayerHits {
    /// Share of the routes that hit; `None` without routes.
    pub fn hit_rate(&self) -> Option<f64> {
        let routes = self.hits + self.misses;
        (routes > 0).then(|| self.hits as f64 / routes as f64)
    }
}

/// One MoE layer's routes, and how many of its experts they could have found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct LayerUse {
    /// Its routes.
    pub hits: LayerHits,
    /// Its experts on the device now.
    pub resident: usize,
    /// Its experts on the device at each route, summed over the routes: promotions move residents between layers, so that what is
    /// there at the end says little of what the routes met.
    pub resident_sum: u64,
}

impl LayerUse {
    /// Share of `num_experts` experts that were resident, averaged over the routes; `None` without routes.
    pub fn resident_share(&self, num_experts: usize) -> Option<f64> {
        let looked_at = (self.hits.hits + self.hits.misses) as f64 * num_experts as f64;
        (looked_at > 0.0).then(|| self.resident_sum as f64 / looked_at)
    }
}

/// The state of HCS.
pub struct Residency {
    num_experts: usize,
    table: Vec<Option<u32>>,
    slots: Vec<Slot>,
    /// Slots that hold no resident expert; the front lands next.
    landing: VecDeque<u32>,
    landing_wanted: usize,
    soft_buffers: Vec<(u32, Buffer)>,
    usage: Usage,
    policy: Box<dyn Policy>,
    step: u64,
    promotions_per_token: usize,
    promotions_left: usize,
    /// Misses of the layer being computed: expert and the landing slot it is in.
    in_flight: Vec<(ExpertId, u32)>,
    counters: ResidencyCounters,
    layers: Vec<LayerUse>,
    version: u64,
}

impl Residency {
    /// No slot yet. `landing_wanted` is how many slots cold experts need at once.
    pub fn new(
        moe_layers: usize,
        num_experts: usize,
        heatmap: Option<&Heatmap>,
        kind: PolicyKind,
        promotions_per_token: usize,
        landing_wanted: usize,
    ) -> Self {
        let experts = moe_layers * num_experts;
        let prior = heatmap.map_or_else(|| vec![0; experts], |heatmap| heatmap.counts.concat());
        Self {
            num_experts,
            table: vec![None; experts],
            slots: Vec::new(),
            landing: VecDeque::new(),
            landing_wanted,
            soft_buffers: Vec::new(),
            usage: Usage::new(prior),
            policy: kind.build(),
            step: 0,
            promotions_per_token,
            promotions_left: 0,
            in_flight: Vec::new(),
            counters: ResidencyCounters::default(),
            layers: vec![LayerUse::default(); moe_layers],
            version: 0,
        }
    }

    /// Experts of the whole model.
    pub fn total(&self) -> usize {
        self.table.len()
    }
    /// Experts on the device now.
    pub fn resident(&self) -> usize {
        self.layers.iter().map(|layer| layer.resident).sum()
    }
    /// Soft slots now on the device.
    pub fn soft_slots(&self) -> usize {
        self.soft_buffers.len()
    }
    /// Counters since the last call.
    pub fn take_counters(&mut self) -> ResidencyCounters {
        std::mem::take(&mut self.counters)
    }
    /// Each MoE layer's routes since the last call, and its residents.
    pub fn take_layer_use(&mut self) -> Vec<LayerUse> {
        let taken = self.layers.clone();
        self.forget_layer_use();
        taken
    }
    fn forget_layer_use(&mut self) {
        for layer in &mut self.layers {
            *layer = LayerUse { resident: layer.resident, ..LayerUse::default() };
        }
    }
    /// Forgets every use, as before the first token. The prior stays, and so does what is resident.
    pub fn forget_usage(&mut self) {
        let prior = std::mem::take(&mut self.usage.prior);
        self.usage = Usage::new(prior);
        self.step = 0;
        self.counters = ResidencyCounters::default();
        self.forget_layer_use();
    }

    /// Adds a slot that outlives prefill.
    pub fn add_hard(&mut self, bytes: Span<u8>) {
        self.add(bytes, Tier::Hard);
    }
    /// Adds a slot whose memory can be taken back, last in, first out.
    pub fn add_soft(&mut self, buffer: Buffer) {
        let slot = self.add(buffer.span(), Tier::Soft);
        self.soft_buffers.push((slot, buffer));
    }
    fn add(&mut self, bytes: Span<u8>, tier: Tier) -> u32 {
        // A slot that lending has taken out of use is used again, so that the vector stays as long as the most slots ever.
        let slot = Slot { bytes, tier, holds: None };
        let index = match self.slots.iter().position(|slot| slot.bytes.is_empty()) {
            Some(index) => {
                self.slots[index] = slot;
                index
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        } as u32;
        self.landing.push_back(index);
        index
    }

    /// Puts the most wanted cold experts into slots beyond the landing ones; the caller copies them before the next use.
    pub fn fill(&mut self) -> Vec<Miss> {
        let room = self.landing.len().saturating_sub(self.landing_wanted);
        let wanted: Vec<ExpertId> = self
            .policy
            .ranking(&self.usage)
            .into_iter()
            .filter(|expert| self.table[expert.index()].is_none())
            .take(room)
            .collect();
        let mut copies = Vec::with_capacity(wanted.len());
        for expert in wanted {
            if let Some(slot) = self.landing.pop_back() {
                self.settle_in(expert, slot);
                copies.push(Miss { expert, to: self.slots[slot as usize].bytes });
            }
        }
        let residents: Vec<ExpertId> = self.residents().collect();
        self.policy.filled(&residents, &self.usage);
        copies
    }

    fn settle_in(&mut self, expert: ExpertId, slot: u32) {
        self.version += 1;
        self.slots[slot as usize].holds = Some(expert);
        if self.table[expert.index()].replace(slot).is_none() {
            self.layers[expert.index() / self.num_experts].resident += 1;
        }
    }
    fn residents(&self) -> impl Iterator<Item = ExpertId> + '_ {
        self.slots.iter().filter_map(|slot| slot.holds)
    }
    fn evict(&mut self, expert: ExpertId) -> Option<u32> {
        let slot = self.table[expert.index()].take()?;
        self.layers[expert.index() / self.num_experts].resident -= 1;
        self.version += 1;
        self.slots[slot as usize].holds = None;
        Some(slot)
    }

    /// Takes the newest soft slot out of use and returns its memory. Landing slots are always kept in number: if this one was
    /// landing, the least wanted resident makes room for another.
    pub fn lend(&mut self) -> Option<Buffer> {
        let (slot, buffer) = self.soft_buffers.pop()?;
        if let Some(expert) = self.slots[slot as usize].holds {
            self.evict(expert);
        } else {
            self.landing.retain(|&landing| landing != slot);
            if self.landing.len() < self.landing_wanted
                && let Some(&least) =
                    self.policy.ranking(&self.usage).iter().rev().find(|expert| self.table[expert.index()].is_some())
                && let Some(freed) = self.evict(least)
            {
                self.landing.push_back(freed);
            }
        }
        self.version += 1;
        self.slots[slot as usize].bytes = Span::new(0, 0);
        Some(buffer)
    }

    /// Starts a decode step.
    pub fn begin_token(&mut self) {
        self.step += 1;
        self.promotions_left = self.promotions_per_token;
    }

    /// Counts one use of an expert; its id where it is cold, a hit where it is not.
    fn look_up(&mut self, moe_layer: usize, expert: u32) -> Option<ExpertId> {
        let id = ExpertId::new(moe_layer, self.num_experts, expert as usize);
        self.usage.uses[id.index()] += 1;
        self.usage.last_used[id.index()] = self.step;
        let layer = &mut self.layers[moe_layer];
        layer.resident_sum += layer.resident as u64;
        if self.table[id.index()].is_none() {
            return Some(id);
        }
        self.counters.hits += 1;
        layer.hits.hits += 1;
        None
    }

    fn count_miss(&mut self, moe_layer: usize, bytes: u64) {
        self.counters.misses += 1;
        self.layers[moe_layer].hits.misses += 1;
        self.counters.cold_bytes += bytes;
    }

    /// Looks the routed experts of one layer up. What is cold is given a landing slot and must be copied there first.
    /// `None` where there are more cold experts than landing slots, which sizing rules out.
    pub fn route(&mut self, moe_layer: usize, experts: &[u32]) -> Option<Vec<Miss>> {
        self.drop_in_flight();
        let mut misses = Vec::new();
        for &expert in experts {
            let Some(id) = self.look_up(moe_layer, expert) else { continue };
            let slot = self.landing.pop_front()?;
            let to = self.slots[slot as usize].bytes;
            self.count_miss(moe_layer, to.size());
            self.in_flight.push((id, slot));
            misses.push(Miss { expert: id, to });
        }
        Some(misses)
    }

    /// After the layer has been queued: cold experts are promoted as far as the policy and the bound allow, the rest of
    /// their landing slots go back to the end of the ring.
    pub fn settle(&mut self, moe_layer: usize, experts: &[u32]) {
        for (expert, slot) in std::mem::take(&mut self.in_flight) {
            if self.promotions_left > 0
                && let Some(freed) = self.make_room(expert, moe_layer, experts)
            {
                self.settle_in(expert, slot);
                self.landing.push_back(freed);
                self.promotions_left -= 1;
                self.counters.promotions += 1;
            } else {
                self.landing.push_back(slot);
            }
        }
    }

    /// Counts one layer's routes of a token that the device has decoded by itself, and chooses which of its cold experts become
    /// resident: each victim leaves now, and the promoted expert must be copied to its place; [`Residency::arrive`] ends that.
    /// `waiting` are experts on their way already.
    pub fn route_behind(&mut self, moe_layer: usize, experts: &[u32], waiting: &[Miss]) -> Vec<Miss> {
        let mut copies = Vec::new();
        for &expert in experts {
            let Some(id) = self.look_up(moe_layer, expert) else { continue };
            self.count_miss(moe_layer, self.landing_bytes());
            let on_its_way = waiting.iter().any(|copy| copy.expert == id);
            if self.promotions_left > 0
                && !on_its_way
                && let Some(slot) = self.make_room(id, moe_layer, experts)
            {
                self.promotions_left -= 1;
                self.counters.promotions += 1;
                copies.push(Miss { expert: id, to: self.slots[slot as usize].bytes });
            }
        }
        copies
    }

    /// Promoted experts whose copies are done are resident from here on.
    pub fn arrive(&mut self, copies: &[Miss]) {
        for copy in copies {
            if let Some(slot) = self.slot_at(copy.to) {
                self.settle_in(copy.expert, slot);
            }
        }
    }

    /// Promotions that will not happen: their slots land cold experts from here on.
    pub fn give_up(&mut self, copies: &[Miss]) {
        for copy in copies {
            if let Some(slot) = self.slot_at(copy.to) {
                self.landing.push_back(slot);
            }
        }
    }

    /// The slot whose memory this is.
    fn slot_at(&self, bytes: Span<u8>) -> Option<u32> {
        let place = self.slots.iter().position(|slot| slot.bytes.address() == bytes.address());
        place.and_then(|slot| u32::try_from(slot).ok())
    }

    /// Addresses of the first `count` landing slots.
    pub fn landing(&self, count: usize) -> impl Iterator<Item = u64> + '_ {
        self.landing.iter().take(count).map(|&slot| self.slots[slot as usize].bytes.address())
    }

    /// Addresses of all experts, layer by layer; `absent` for those that are not on the device.
    pub fn addresses(&self, absent: u64) -> Vec<u64> {
        self.addresses_in(0..self.table.len(), absent)
    }

    /// [`Residency::addresses`] of one layer.
    pub fn layer_addresses(&self, moe_layer: usize, absent: u64) -> Vec<u64> {
        let first = moe_layer * self.num_experts;
        self.addresses_in(first..first + self.num_experts, absent)
    }

    fn addresses_in(&self, experts: Range<usize>, absent: u64) -> Vec<u64> {
        let address = |slot: u32| self.slots[slot as usize].bytes.address();
        self.table[experts].iter().map(|slot| slot.map_or(absent, address)).collect()
    }

    /// Changes whenever an expert comes or goes.
    pub fn version(&self) -> u64 {
        self.version
    }

    fn landing_bytes(&self) -> u64 {
        self.landing.front().map_or(0, |&slot| self.slots[slot as usize].bytes.size())
    }

    /// After an error: whatever was landing is forgotten.
    pub fn drop_in_flight(&mut self) {
        for (_, slot) in std::mem::take(&mut self.in_flight) {
            self.landing.push_back(slot);
        }
    }

    /// A slot for a promoted expert's successor as landing slot: spare, or a victim's. Experts of the layer in work stay.
    fn make_room(&mut self, incoming: ExpertId, moe_layer: usize, busy: &[u32]) -> Option<u32> {
        // `incoming` and those after it in flight occupy landing slots that are not in the queue now.
        let busy: Vec<ExpertId> =
            busy.iter().map(|&expert| ExpertId::new(moe_layer, self.num_experts, expert as usize)).collect();
        let mut candidates = self.slots.iter().filter_map(|slot| slot.holds).filter(|expert| !busy.contains(expert));
        let victim = self.policy.victim(&self.usage, incoming, &mut candidates)?;
        self.evict(victim)
    }

    /// Tier of the slot an expert is in.
    pub fn tier(&self, moe_layer: usize, expert: usize) -> Option<Tier> {
        let slot = self.table[moe_layer * self.num_experts + expert]?;
        Some(self.slots[slot as usize].tier)
    }
}
