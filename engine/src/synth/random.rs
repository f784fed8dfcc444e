//! Random numbers by counter: each is a function of a key and an index, so any thread may make any of them.

/// SplitMix64's increment: odd, so that every index gives another state.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Which tensor a stream is for. The numbers are part of what a seed means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the model's
pub(super) enum Name {
    Embedding = 1,
    Head = 2,
    Query = 3,
    Key = 4,
    Value = 5,
    AttentionOutput = 6,
    Router = 7,
    Gate = 8,
    Up = 9,
    Down = 10,
    SharedGateProjection = 11,
    SharedUp = 12,
    SharedDown = 13,
    SharedGate = 14,
    /// Which experts a skew favours.
    Popularity = 15,
    /// Signs of the direction that a skew goes through.
    Direction = 16,
}

/// The numbers of one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stream {
    key: u64,
}

impl Stream {
    /// The stream of a tensor of the whole model.
    pub(super) fn of_model(seed: u64, name: Name) -> Self {
        Self { key: mix(mix(seed.wrapping_add(GAMMA)).wrapping_add(name as u64)) }
    }

    /// The stream of a layer's tensor.
    pub(super) fn of_layer(seed: u64, layer: usize, name: Name) -> Self {
        Self::of_model(seed, name).inner(layer)
    }

    /// The stream of an expert's tensor.
    pub(super) fn of_expert(seed: u64, layer: usize, expert: usize, name: Name) -> Self {
        Self::of_layer(seed, layer, name).inner(expert)
    }

    /// The stream that this one has for a part: a bias beside a weight has one of its own.
    pub(super) fn inner(self, index: usize) -> Self {
        // Indices from 1, so that no part shares its owner's key.
        Self { key: mix(self.key ^ mix((index as u64).wrapping_add(1).wrapping_mul(GAMMA))) }
    }

    /// 64 random bits: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014) at state
    /// `key + index * gamma`.
    pub(super) fn word(self, index: u64) -> u64 {
        mix(self.key.wrapping_add(index.wrapping_mul(GAMMA)))
    }

    /// A number in [0, 1), of 53 random bits.
    pub(super) fn unit(self, index: u64) -> f64 {
        (self.word(index) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// 1 or −1.
    pub(super) fn sign(self, index: u64) -> f32 {
        let bit = self.word(index / 64) >> (index % 64) & 1;
        if bit == 1 { 1.0 } else { -1.0 }
    }
}

/// SplitMix64's output function: a bijection in which every input bit reaches every output bit.
fn mix(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_splitmix64_s() {
        // The reference implementation's first outputs from state 0: it adds gamma before each.
        let stream = Stream { key: 0 };
        assert_eq!(stream.word(1), 0xe220_a839_7b1d_cdaf);
        assert_eq!(stream.word(2), 0x6e78_9e6a_a1b9_65f4);
        assert_eq!(stream.word(3), 0x06c4_5d18_8009_454f);
    }

    #[test]
    fn every_part_has_a_stream_of_its_own() {
        let mut keys = std::collections::HashSet::new();
        let mut add = |stream: Stream| assert!(keys.insert(stream.key));
        for seed in [0, 1, u64::MAX] {
            for name in [Name::Embedding, Name::Router, Name::Gate, Name::Up] {
                add(Stream::of_model(seed, name));
                for layer in 0..8 {
                    add(Stream::of_layer(seed, layer, name));
                    for expert in 0..8 {
                        add(Stream::of_expert(seed, layer, expert, name));
                    }
                }
            }
        }
    }
}
