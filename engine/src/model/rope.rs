//! Tables of cosines and sines for rotary position embedding.
//!
//! Frequencies and angles are computed in f64 and the results rounded once to f32 (the arithmetic contract, rule 8).
//! transformers computes both in f32, whose error grows with the position; its definitions are followed, its rounding is not.

use std::f64::consts::PI;

use super::error::ModelError;
use super::spec::{RopeScaling, RopeSpec};

/// Cosines and sines, each `[positions, head_dim / 2]`, times the attention factor of YaRN where that is used.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// `[positions, head_dim / 2]`
    pub cos: Vec<f32>,
    /// `[positions, head_dim / 2]`
    pub sin: Vec<f32>,
    /// `head_dim / 2`
    half: usize,
}

impl RopeTable {
    /// Computes the table for positions `0..positions`.
    ///
    /// # Errors
    /// A `head_dim` that is 0 or odd, or a table larger than memory can address.
    pub fn new(rope: &RopeSpec, head_dim: usize, positions: usize) -> Result<Self, ModelError> {
        let impossible = || ModelError::RopeTable { positions, head_dim };
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(impossible());
        }
        let half = head_dim / 2;
        let elements = positions.checked_mul(half).ok_or_else(impossible)?;
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        cos.try_reserve_exact(elements).map_err(|_| impossible())?;
        sin.try_reserve_exact(elements).map_err(|_| impossible())?;
        let frequencies = inverse_frequencies(rope, head_dim);
        let amplitude = match rope.scaling {
            RopeScaling::Default => 1.0,
            RopeScaling::Yarn { attention_factor, .. } => attention_factor,
        };
        for position in 0..positions {
            for frequency in &frequencies {
                let angle = position as f64 * frequency;
                cos.push((angle.cos() * amplitude) as f32);
                sin.push((angle.sin() * amplitude) as f32);
            }
        }
        Ok(Self { cos, sin, half })
    }

    /// Positions in the table.
    pub fn positions(&self) -> usize {
        self.cos.len() / self.half
    }
}

/// Radians that each pair of a head turns by from one position to the next: `head_dim / 2` of them.
///
/// Default: `theta^(-2i / head_dim)`. YaRN (arXiv 2309.00071, section 3.2, "NTK-by-parts"): pairs that turn often within the trained
/// context keep their frequency, pairs that turn seldom have it divided by `factor`, with a linear ramp between.
pub fn inverse_frequencies(rope: &RopeSpec, head_dim: usize) -> Vec<f64> {
    let half = head_dim / 2;
    let plain = (0..half).map(|pair| rope.theta.powf(-((2 * pair) as f64) / head_dim as f64));
    match rope.scaling {
        RopeScaling::Default => plain.collect(),
        RopeScaling::Yarn { factor, original_max_position_embeddings, beta_fast, beta_slow, truncate, .. } => {
            let context = original_max_position_embeddings as f64;
            let low = pair_that_turns(beta_fast, rope.theta, head_dim, context);
            let high = pair_that_turns(beta_slow, rope.theta, head_dim, context);
            let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
            // The upper bound is transformers': `head_dim - 1`, although there are only half as many pairs.
            let (low, high) = (low.max(0.0), high.min(head_dim as f64 - 1.0));
            // A ramp of no width would divide by zero; transformers widens it by this much.
            let high = if low == high { high + 0.001 } else { high };
            let interpolated = |pair: usize| ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
            plain
                .enumerate()
                .map(|(pair, plain)| plain / factor * interpolated(pair) + plain * (1.0 - interpolated(pair)))
                .collect()
        }
    }
}

/// Which pair (not a whole number) turns `rotations` times within `context` positions.
fn pair_that_turns(rotations: f64, theta: f64, head_dim: usize, context: f64) -> f64 {
    head_dim as f64 * (context / (rotations * 2.0 * PI)).ln() / (2.0 * theta.ln())
}

/// YaRN's factor on cosines and sines where the config states none: `0.1 ln(factor) + 1`, or a quotient of two of them
/// where both `mscale` and `mscale_all_dim` are there.
pub fn yarn_attention_factor(factor: f64, mscale: Option<f64>, mscale_all_dim: Option<f64>) -> f64 {
    let scale = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
    match (mscale, mscale_all_dim) {
        (Some(mscale), Some(mscale_all_dim)) => scale(mscale) / scale(mscale_all_dim),
        _ => scale(1.0),
    }
}
