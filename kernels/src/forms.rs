//! The forms that a family's arithmetic takes in different models: parameters of the contract, as data.

use crate::Matrix;

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
