//! The forms that a family's arithmetic takes in different models: parameters of the contract, as data.

use crate::contract::WEIGHT_BITS;
use crate::{KernelError, Matrix};

/// What stands between the two halves of a gated network.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Activation {
    /// `silu(gate) * up`.
    #[default]
    SwiGlu,
    /// `g = min(gate, limit)`, `u = clamp(up, -limit, limit)`, `(u + 1) * (g / (1 + exp(-(alpha * g))))`. A NaN stays one.
    ClampedSwiGlu {
        /// Factor inside the sigmoid.
        alpha: f32,
        /// The largest gate, and the largest magnitude of up.
        limit: f32,
    },
}

/// How attention weighs what a query may see.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionForm<'a> {
    /// Factor on every score.
    pub scale: f32,
    /// A query at position p sees positions above `p - window`; `None` for all up to p. At least 1.
    pub window: Option<usize>,
    /// `[heads]`: scores that take part in each head's softmax and have no value.
    pub sinks: Option<&'a [f32]>,
}

impl AttentionForm<'_> {
    /// Plain causal attention.
    pub fn causal(scale: f32) -> Self {
        Self { scale, window: None, sinks: None }
    }

    /// The first position that a query at `position` sees.
    pub(crate) fn first_visible(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// What a router's logits become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scoring {
    /// Softmax over all experts.
    Softmax,
    /// The choice is by logit; the weights are the softmax over the chosen.
    SoftmaxOfChosen,
    /// The sigmoid of each.
    Sigmoid,
}

/// How a token's experts are chosen and weighted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Routing {
    /// What the logits become.
    pub scoring: Scoring,
    /// Divide the chosen scores by their sum. Without effect on the softmax over the chosen.
    pub norm_topk_prob: bool,
    /// Equal groups of neighbouring experts, of at least two where there is more than one.
    pub n_group: usize,
    /// Groups that the choice is made from: those whose two best scores have the largest sums.
    pub topk_group: usize,
    /// Factor on every weight.
    pub scaling_factor: f32,
}

impl Routing {
    /// Softmax over all experts, in one group.
    pub fn softmax(norm_topk_prob: bool) -> Self {
        Self { scoring: Scoring::Softmax, norm_topk_prob, n_group: 1, topk_group: 1, scaling_factor: 1.0 }
    }
}

/// What decides a sampled choice, as [`crate::twin::sample`] reads it: a factor, and limits in fixed point, so that every comparison is one of
/// integers.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Choice {
    /// `log2(e) / temperature`, at most `f64::MAX`.
    pub(crate) scale: f64,
    /// Top-p in units of `2^-64`; 0 for all.
    pub(crate) share: u64,
    /// The least weight that stays, in those of [`crate::contract::sample_weight`].
    pub(crate) least: u64,
    /// A random number in units of `2^-64`.
    pub(crate) word: u64,
    /// How many of the likeliest stay; 0 for all.
    pub(crate) top_k: u32,
    /// So that no byte is undefined where a kernel gets it.
    padding: u32,
}

impl Choice {
    /// Limits apply in this order, each to what the one before it left: `top_k` tokens (0 for all), the likeliest whose probabilities add
    /// up to `top_p` (1 or more for all, at least one token), those with at least `min_p` of the largest probability. `word` is
    /// uniformly random.
    ///
    /// # Errors
    /// `Parameter` for a temperature that is not positive, and for a NaN.
    pub fn new(temperature: f64, top_k: usize, top_p: f64, min_p: f64, word: u64) -> Result<Self, KernelError> {
        let refused = |what, expected, found: f64| {
            Err(KernelError::Parameter { kernel: "sample", what, expected, found: found.to_string() })
        };
        if temperature.is_nan() || temperature <= 0.0 {
            return refused("temperature", "a positive number", temperature);
        }
        if top_p.is_nan() {
            return refused("top_p", "a number", top_p);
        }
        if min_p.is_nan() {
            return refused("min_p", "a number", min_p);
        }
        // Powers of two: exact. Casts saturate, and a negative number becomes 0.
        let share = if top_p >= 1.0 { 0 } else { ((top_p * 2f64.powi(64)) as u64).max(1) };
        let largest = (1u64 << WEIGHT_BITS) as f64;
        Ok(Self {
            scale: (std::f64::consts::LOG2_E / temperature).min(f64::MAX),
            share,
            least: (min_p * largest).ceil().min(largest) as u64,
            word,
            top_k: u32::try_from(top_k).unwrap_or(u32::MAX),
            padding: 0,
        })
    }

    /// The weight at which a head of candidates that weigh `total` together is long enough: top-p of it, rounded up.
    pub(crate) fn wanted(&self, total: u64) -> u64 {
        let product = u128::from(self.share) * u128::from(total);
        (product >> 64) as u64 + u64::from(product as u64 != 0)
    }

    /// Where the draw falls among candidates that weigh `total` together: `word / 2^64` of it, rounded down.
    pub(crate) fn target(&self, total: u64) -> u64 {
        ((u128::from(self.word) * u128::from(total)) >> 64) as u64
    }
}

/// A matrix, and what is added to its products.
#[derive(Debug, Clone, Copy)]
pub struct Projection<'a> {
    /// `[rows, cols]`
    pub weight: Matrix<'a>,
    /// `[rows]`
    pub bias: Option<&'a [f32]>,
}

impl<'a> From<Matrix<'a>> for Projection<'a> {
    fn from(weight: Matrix<'a>) -> Self {
        Self { weight, bias: None }
    }
}

/// An expert's two input projections, both `[moe_intermediate_size, hidden_size]`.
#[derive(Debug, Clone, Copy)]
pub struct GateUp<'a> {
    /// The one that passes through the nonlinearity.
    pub gate: Projection<'a>,
    /// The one that is multiplied with it.
    pub up: Projection<'a>,
}
