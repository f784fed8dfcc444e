//! Which values each tensor of a model gets.
//!
//! What keeps routing even (and a peer's `llama.cpp` figures comparable):
//!
//! - rows of the embedding differ and have a mean square of 1; nothing is common to all of them;
//! - matrices have no mean, and outputs of unit size for inputs of unit size;
//! - every residual branch is small: all of them together add about as much as the embedding has, so that hidden states stay
//!   different from token to token;
//! - router rows are equally long (every element is ±c), so that every expert's logit has one distribution;
//! - biases of routers are 0.

use std::ops::Range;

use assay_kernels::Activation;
use half::bf16;

use super::error::SynthError;
use super::grid::Grid;
use super::random::{Name, Stream};
use super::recipe::{Recipe, Skew};
use super::skew;
use crate::model::spec::{AttentionSpec, FfnSpec, LinearSource, MlpSpec, ModelSpec, MoeSpec, TensorSource};

/// Standard deviation of attention scores: large enough that a token attends to some others more than to the rest, which makes
/// what follows depend on the whole context.
const SCORE_STD: f64 = 2.0;
/// Standard deviation of router logits, as of trained models: weights of the chosen experts differ.
const ROUTER_STD: f64 = 2.0;
/// Biases have this share of their outputs' size.
const BIAS_SHARE: f64 = 0.02;
/// Columns of the embedding that hold a skew's direction: one block of the coarsest format.
const DIRECTION_COLS: usize = 32;
/// Root mean square of `silu(g) * u` for independent standard normal g and u.
const SWIGLU_RMS: f64 = 0.596;
/// The same of `(u + 1) * g * sigmoid(1.702 g)`.
const CLAMPED_SWIGLU_RMS: f64 = 0.919;
/// Share of a branch's size that its inputs leave on average: attention averages over tokens, the weights of the chosen experts
/// over experts. It only corrects a skew's bias for the noise that grows from layer to layer.
const BRANCH_ENERGY: f64 = 0.25;

/// A tensor of the checkpoint, and its values.
#[derive(Debug, Clone)]
pub(super) struct Made {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    values: Values,
}

#[derive(Debug, Clone)]
enum Values {
    Constant(f32),
    Matrix { grid: Grid, stream: Stream },
    Vector { std: f64, stream: Stream },
    Embedding { grid: Grid, stream: Stream, direction: Option<Stream> },
    Router(RouterRows),
}

/// Rows of ±`element`; with a skew, the first columns are a bias of each expert along the direction.
#[derive(Debug, Clone)]
struct RouterRows {
    stream: Stream,
    element: f32,
    biases: Vec<f32>,
    direction: Stream,
}

impl Made {
    /// Rows of the tensor, row-major; a vector is one row.
    pub(super) fn fill(&self, rows: Range<usize>, out: &mut [f32]) {
        let cols = self.shape.last().copied().unwrap_or(1);
        match &self.values {
            Values::Constant(value) => out.fill(*value),
            Values::Matrix { grid, stream } => grid.fill(*stream, rows, cols, out),
            Values::Vector { std, stream } => fill_vector(*stream, *std, out),
            Values::Embedding { grid, stream, direction } => {
                grid.fill(*stream, rows.clone(), cols, out);
                if let Some(direction) = direction {
                    for (row, out) in rows.zip(out.chunks_exact_mut(cols)) {
                        grid.fill_larger(*stream, row, cols, out);
                        for (col, out) in out.iter_mut().take(DIRECTION_COLS).enumerate() {
                            *out = grid.largest() * direction.sign(col as u64);
                        }
                    }
                }
            }
            Values::Router(router) => {
                for (row, out) in rows.zip(out.chunks_exact_mut(cols)) {
                    router.fill(row, out);
                }
            }
        }
    }
}

impl RouterRows {
    fn fill(&self, expert: usize, out: &mut [f32]) {
        let first = expert as u64 * out.len() as u64;
        for (col, out) in out.iter_mut().enumerate() {
            *out = self.element * self.stream.sign(first + col as u64);
        }
        if let Some(bias) = self.biases.get(expert) {
            for (col, out) in out.iter_mut().take(DIRECTION_COLS).enumerate() {
                *out = bias * self.direction.sign(col as u64);
            }
        }
    }
}

/// Values of a bias: uniform, rounded to BF16, as the checkpoint holds them.
pub(super) fn fill_vector(stream: Stream, std: f64, out: &mut [f32]) {
    for (index, out) in out.iter_mut().enumerate() {
        let value = (stream.unit(index as u64) * 2.0 - 1.0) * std * 3f64.sqrt();
        *out = bf16::from_f64(value).to_f32();
    }
}

/// Sizes that follow from a recipe and a model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gains {
    recipe_offset: i8,
    layers: usize,
    branch_gain: f64,
    /// Columns of the residual stream that only routers read.
    direction_cols: usize,
}

impl Gains {
    pub(super) fn new(recipe: &Recipe, spec: &ModelSpec) -> Self {
        let direction_cols = if recipe.skew == Skew::Even { 0 } else { DIRECTION_COLS };
        let Recipe { nibble_offset: recipe_offset, branch_gain, .. } = *recipe;
        Self { recipe_offset, layers: spec.layers.len(), branch_gain, direction_cols }
    }

    /// A matrix whose outputs have this standard deviation for inputs of mean square 1.
    pub(super) fn grid(&self, output_std: f64, cols: usize) -> Grid {
        Grid::with_std(output_std / (cols as f64).sqrt(), self.recipe_offset)
    }

    /// The same for a matrix that reads the residual stream.
    pub(super) fn reader(&self, output_std: f64, cols: usize) -> Grid {
        self.grid(output_std, cols).blank(self.direction_cols)
    }

    /// What a branch may add to the residual stream, before the layer's multiplier.
    fn branch(&self, residual_multiplier: f32) -> f64 {
        self.branch_gain / (2.0 * self.layers as f64).sqrt() / f64::from(residual_multiplier)
    }

    /// Output of an expert's down projection, for inputs of mean square 1.
    pub(super) fn down(&self, activation: Activation, residual_multiplier: f32) -> f64 {
        let rms = match activation {
            Activation::SwiGlu => SWIGLU_RMS,
            Activation::ClampedSwiGlu { .. } => CLAMPED_SWIGLU_RMS,
        };
        self.branch(residual_multiplier) / rms
    }

    /// Standard deviation of a bias on outputs of this size.
    pub(super) fn bias(output_std: f64) -> f64 {
        output_std * BIAS_SHARE
    }
}

/// Collects the tensors of a model, routed experts apart.
struct Collector<'a> {
    recipe: &'a Recipe,
    gains: Gains,
    hidden_size: usize,
    /// Sum of the magnitudes that the skew's direction has in every token's hidden state.
    direction: f64,
    made: Vec<Made>,
}

/// Every tensor that is not a routed expert's.
///
/// # Errors
/// A tensor that is a part of another, which only experts are; a hidden size too small for a skew.
pub(super) fn tensors(spec: &ModelSpec, recipe: &Recipe) -> Result<Vec<Made>, SynthError> {
    if recipe.skew != Skew::Even && spec.hidden_size < 2 * DIRECTION_COLS {
        let found = format!("hidden_size {}", spec.hidden_size);
        return Err(SynthError::Shape { found, expected: "at least 64 for a skew" });
    }
    let gains = Gains::new(recipe, spec);
    let mut collector = Collector { recipe, gains, hidden_size: spec.hidden_size, direction: 0.0, made: Vec::new() };
    collector.model(spec)?;
    Ok(collector.made)
}

impl Collector<'_> {
    fn model(&mut self, spec: &ModelSpec) -> Result<(), SynthError> {
        let seed = self.recipe.seed;
        let grid = Grid::with_std(1.0 / f64::from(spec.embedding_multiplier), self.recipe.nibble_offset);
        self.direction = DIRECTION_COLS as f64 * f64::from(grid.largest() * spec.embedding_multiplier);
        let direction = (self.recipe.skew != Skew::Even).then(|| Stream::of_model(seed, Name::Direction));
        let values = Values::Embedding { grid, stream: Stream::of_model(seed, Name::Embedding), direction };
        self.add(&spec.embed_tokens, values)?;
        self.add(&spec.final_norm, Values::Constant(1.0))?;
        if spec.lm_head != spec.embed_tokens {
            let grid = self.gains.reader(1.0 / f64::from(spec.logits_multiplier), self.hidden_size);
            self.add(&spec.lm_head, Values::Matrix { grid, stream: Stream::of_model(seed, Name::Head) })?;
        }
        for (index, layer) in spec.layers.iter().enumerate() {
            self.add(&layer.input_layernorm, Values::Constant(1.0))?;
            self.add(&layer.post_attention_layernorm, Values::Constant(1.0))?;
            self.attention(index, &layer.attention, self.gains.branch(layer.residual_multiplier))?;
            match &layer.ffn {
                FfnSpec::Dense(mlp) => {
                    self.mlp(index, [Name::Gate, Name::Up, Name::Down], mlp, layer.residual_multiplier)?;
                }
                FfnSpec::Moe(moe) => self.moe(index, moe, layer.residual_multiplier)?,
            }
        }
        Ok(())
    }

    fn attention(&mut self, layer: usize, spec: &AttentionSpec, branch: f64) -> Result<(), SynthError> {
        // A score is a sum of head_dim products of unit queries and keys, times the scale.
        let query = SCORE_STD / ((spec.head_dim as f64).sqrt() * f64::from(spec.scale));
        let normed = spec.qk_norm.is_some();
        if let Some(norms) = &spec.qk_norm {
            self.add(&norms.q_norm, Values::Constant(bf16::from_f64(query).to_f32()))?;
            self.add(&norms.k_norm, Values::Constant(1.0))?;
        }
        self.linear(layer, Name::Query, &spec.q_proj, if normed { 1.0 } else { query })?;
        self.linear(layer, Name::Key, &spec.k_proj, 1.0)?;
        self.linear(layer, Name::Value, &spec.v_proj, 1.0)?;
        self.linear(layer, Name::AttentionOutput, &spec.o_proj, branch)?;
        match &spec.sinks {
            Some(sinks) => self.add(sinks, Values::Constant(0.0)),
            None => Ok(()),
        }
    }

    fn moe(&mut self, layer: usize, moe: &MoeSpec, residual_multiplier: f32) -> Result<(), SynthError> {
        self.add(&moe.router.weight, Values::Router(self.router(layer, moe)))?;
        for zeros in moe.router.bias.iter().chain(&moe.correction_bias) {
            self.add(zeros, Values::Constant(0.0))?;
        }
        let Some(shared) = &moe.shared else { return Ok(()) };
        let names = [Name::SharedGateProjection, Name::SharedUp, Name::SharedDown];
        self.mlp(layer, names, &shared.mlp, residual_multiplier)?;
        match &shared.gate {
            Some(gate) => self.linear(layer, Name::SharedGate, gate, 1.0),
            None => Ok(()),
        }
    }

    fn router(&self, layer: usize, moe: &MoeSpec) -> RouterRows {
        let (seed, hidden) = (self.recipe.seed, self.hidden_size as f64);
        let element = ROUTER_STD / hidden.sqrt();
        let mut biases = Vec::new();
        if let Skew::Zipf(exponent) = self.recipe.skew {
            let experts = moe.num_experts();
            let shares = skew::inclusion(exponent, experts, moe.num_experts_per_tok);
            let ranks = skew::ranks(Stream::of_layer(seed, layer, Name::Popularity), experts);
            // Branches add noise, layer by layer.
            let grown = 1.0 + BRANCH_ENERGY * self.recipe.branch_gain.powi(2) * layer as f64 / self.gains.layers as f64;
            let noise = element * (hidden - DIRECTION_COLS as f64).sqrt() * grown.sqrt();
            biases = ranks.iter().map(|&rank| (skew::bias(shares[rank]) * noise / self.direction) as f32).collect();
        }
        RouterRows {
            stream: Stream::of_layer(seed, layer, Name::Router),
            element: element as f32,
            biases,
            direction: Stream::of_model(seed, Name::Direction),
        }
    }

    fn mlp(
        &mut self,
        layer: usize,
        [gate, up, down]: [Name; 3],
        mlp: &MlpSpec,
        residual_multiplier: f32,
    ) -> Result<(), SynthError> {
        self.linear(layer, gate, &mlp.gate_proj, 1.0)?;
        self.linear(layer, up, &mlp.up_proj, 1.0)?;
        self.linear(layer, down, &mlp.down_proj, self.gains.down(mlp.activation, residual_multiplier))
    }

    fn linear(&mut self, layer: usize, name: Name, linear: &LinearSource, output_std: f64) -> Result<(), SynthError> {
        let stream = Stream::of_layer(self.recipe.seed, layer, name);
        let cols = linear.weight.shape.last().copied().unwrap_or(1);
        let grid = match name {
            Name::AttentionOutput | Name::Down | Name::SharedDown => self.gains.grid(output_std, cols),
            _ => self.gains.reader(output_std, cols),
        };
        self.add(&linear.weight, Values::Matrix { grid, stream })?;
        match &linear.bias {
            Some(bias) => self.add(bias, Values::Vector { std: Gains::bias(output_std), stream: stream.inner(0) }),
            None => Ok(()),
        }
    }

    fn add(&mut self, source: &TensorSource, values: Values) -> Result<(), SynthError> {
        if source.part.is_some() {
            let found = format!("tensor {}, a part of another", source.name);
            return Err(SynthError::Shape { found, expected: "a tensor of its own, unless it is an expert's" });
        }
        self.made.push(Made { name: source.name.clone(), shape: source.shape.clone(), values });
        Ok(())
    }
}
