//! Everything on the device that is not an expert: embedding, attention, routers, dense layers, norms, head, rope tables.
//!
//! [`Weights::load`] walks the model once to lay spans out; [`Weights::measure`] makes the same walk and only counts, so that
//! the memory plan cannot disagree with what is allocated.

use assay_kernels::Activation;
use assay_kernels::layout::matrix_bytes;

use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::device::kernel::MatrixSpan;
use crate::device::{Buffer, Carver, Device, Span};
use crate::error::EngineError;
use crate::expert_cache::{EncodeError, Encoding, encode_rows};
use crate::model::rope::RopeTable;
use crate::model::spec::{AttentionSpec, FfnSpec, LinearSource, MlpSpec, ModelSpec, MoeSpec, RopeSpec, TensorSource};
use crate::options::EngineOptions;

/// A linear layer on the device.
#[derive(Debug, Clone, Copy)]
pub struct Linear {
    /// The matrix.
    pub weight: MatrixSpan,
    /// `[rows]`
    pub bias: Option<Span<f32>>,
}

/// One layer's attention weights.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // the names are the checkpoint's
pub struct AttentionWeights {
    pub q_proj: Linear,
    pub k_proj: Linear,
    pub v_proj: Linear,
    pub o_proj: Linear,
    pub q_norm: Option<Span<f32>>,
    pub k_norm: Option<Span<f32>>,
    /// `[num_attention_heads]`
    pub sinks: Option<Span<f32>>,
    /// `[positions, rotary_dim / 2]`
    pub cos: Span<f32>,
    /// `[positions, rotary_dim / 2]`
    pub sin: Span<f32>,
}

/// One layer's feed-forward weights, routed experts apart.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub enum FfnWeights {
    Dense(DenseWeights),
    Moe(MoeWeights),
}

/// A dense feed-forward network.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct DenseWeights {
    pub gate_proj: Linear,
    pub up_proj: Linear,
    pub down_proj: Linear,
    pub activation: Activation,
}

/// A MoE layer's router and shared expert.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct MoeWeights {
    pub router: Linear,
    /// `[num_experts]`
    pub correction_bias: Option<Span<f32>>,
    pub shared: Option<SharedWeights>,
}

/// A shared expert, and the gate on its output.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct SharedWeights {
    pub mlp: DenseWeights,
    pub gate: Option<Linear>,
}

/// One layer.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct LayerWeights {
    pub input_layernorm: Span<f32>,
    pub post_attention_layernorm: Span<f32>,
    pub attention: AttentionWeights,
    pub ffn: FfnWeights,
}

/// All weights but the experts.
#[derive(Debug, Clone)]
pub struct Weights {
    /// `[vocab_size, hidden_size]`, BF16.
    pub embed_tokens: MatrixSpan,
    /// `[vocab_size, hidden_size]`
    pub lm_head: MatrixSpan,
    /// `[hidden_size]`
    pub final_norm: Span<f32>,
    /// First to last.
    pub layers: Vec<LayerWeights>,
}

/// What has to be written where.
enum Item<'a> {
    Matrix { source: &'a TensorSource, encoding: Encoding, to: Span<u8> },
    Vector { source: &'a TensorSource, to: Span<f32> },
    Rope { rope: &'a RopeSpec, rotary_dim: usize, cos: Span<f32>, sin: Span<f32> },
}

/// Lays tensors out in one order.
struct Layout<'a> {
    carver: Carver,
    items: Vec<Item<'a>>,
    ropes: Vec<(&'a RopeSpec, usize, Span<f32>, Span<f32>)>,
    context_tokens: usize,
}

impl<'a> Layout<'a> {
    fn matrix(&mut self, source: &'a TensorSource, encoding: Encoding) -> Result<MatrixSpan, EngineError> {
        let &[rows, cols] = source.shape.as_slice() else {
            return Err(EngineError::TooLarge { what: "a matrix that is not two-dimensional" });
        };
        let format = encoding.format();
        let bytes = matrix_bytes(format, rows, cols).ok_or(EngineError::TooLarge { what: "a weight matrix" })?;
        let to = self.carver.take(bytes);
        self.items.push(Item::Matrix { source, encoding, to });
        Ok(MatrixSpan { format, rows, cols, bytes: to })
    }
    fn vector(&mut self, source: &'a TensorSource) -> Span<f32> {
        let to = self.carver.take(source.shape.iter().product());
        self.items.push(Item::Vector { source, to });
        to
    }
    fn linear(&mut self, source: &'a LinearSource, encoding: Encoding) -> Result<Linear, EngineError> {
        let weight = self.matrix(&source.weight, encoding)?;
        let bias = source.bias.as_ref().map(|bias| self.vector(bias));
        Ok(Linear { weight, bias })
    }
    /// Layers that turn alike share a table.
    fn rope(&mut self, rope: &'a RopeSpec, rotary_dim: usize) -> (Span<f32>, Span<f32>) {
        if let Some(&(_, _, cos, sin)) = self.ropes.iter().find(|known| *known.0 == *rope && known.1 == rotary_dim) {
            return (cos, sin);
        }
        let elements = self.context_tokens * rotary_dim / 2;
        let (cos, sin) = (self.carver.take(elements), self.carver.take(elements));
        self.ropes.push((rope, rotary_dim, cos, sin));
        self.items.push(Item::Rope { rope, rotary_dim, cos, sin });
        (cos, sin)
    }
    fn attention(&mut self, spec: &'a AttentionSpec, encoding: Encoding) -> Result<AttentionWeights, EngineError> {
        let (cos, sin) = self.rope(&spec.rope, spec.rotary_dim);
        Ok(AttentionWeights {
            q_proj: self.linear(&spec.q_proj, encoding)?,
            k_proj: self.linear(&spec.k_proj, encoding)?,
            v_proj: self.linear(&spec.v_proj, encoding)?,
            o_proj: self.linear(&spec.o_proj, encoding)?,
            q_norm: spec.qk_norm.as_ref().map(|norm| self.vector(&norm.q_norm)),
            k_norm: spec.qk_norm.as_ref().map(|norm| self.vector(&norm.k_norm)),
            sinks: spec.sinks.as_ref().map(|sinks| self.vector(sinks)),
            cos,
            sin,
        })
    }
    fn mlp(&mut self, spec: &'a MlpSpec, encoding: Encoding) -> Result<DenseWeights, EngineError> {
        Ok(DenseWeights {
            gate_proj: self.linear(&spec.gate_proj, encoding)?,
            up_proj: self.linear(&spec.up_proj, encoding)?,
            down_proj: self.linear(&spec.down_proj, encoding)?,
            activation: spec.activation,
        })
    }
    /// Routers and gates decide, so they are never quantised.
    fn moe(&mut self, spec: &'a MoeSpec, encoding: Encoding) -> Result<MoeWeights, EngineError> {
        let router = self.linear(&spec.router, Encoding::Bf16)?;
        let correction_bias = spec.correction_bias.as_ref().map(|bias| self.vector(bias));
        let shared = spec.shared.as_ref().map(|shared| {
            let gate = shared.gate.as_ref().map(|gate| self.linear(gate, Encoding::Bf16)).transpose()?;
            Ok::<_, EngineError>(SharedWeights { mlp: self.mlp(&shared.mlp, encoding)?, gate })
        });
        Ok(MoeWeights { router, correction_bias, shared: shared.transpose()? })
    }
}

/// The same walk for measuring and for loading.
fn lay_out<'a>(base: u64, spec: &'a ModelSpec, options: &EngineOptions) -> Result<(Weights, Layout<'a>), EngineError> {
    let precision = options.precision;
    let mut layout = Layout {
        carver: Carver::new(base),
        items: Vec::new(),
        ropes: Vec::new(),
        context_tokens: options.context_tokens,
    };
    let embed_tokens = layout.matrix(&spec.embed_tokens, Encoding::Bf16)?;
    let tied = spec.lm_head == spec.embed_tokens && precision.head == Encoding::Bf16;
    let lm_head = if tied { embed_tokens } else { layout.matrix(&spec.lm_head, precision.head)? };
    let final_norm = layout.vector(&spec.final_norm);
    let mut layers = Vec::with_capacity(spec.layers.len());
    for layer in &spec.layers {
        layers.push(LayerWeights {
            input_layernorm: layout.vector(&layer.input_layernorm),
            post_attention_layernorm: layout.vector(&layer.post_attention_layernorm),
            attention: layout.attention(&layer.attention, precision.attention)?,
            ffn: match &layer.ffn {
                FfnSpec::Dense(mlp) => FfnWeights::Dense(layout.mlp(mlp, precision.dense)?),
                FfnSpec::Moe(moe) => FfnWeights::Moe(layout.moe(moe, precision.dense)?),
            },
        });
    }
    Ok((Weights { embed_tokens, lm_head, final_norm, layers }, layout))
}

/// Reading and encoding one tensor.
enum TensorError {
    Checkpoint(CheckpointError),
    Encode(EncodeError),
}
impl From<EncodeError> for TensorError {
    fn from(error: EncodeError) -> Self {
        Self::Encode(error)
    }
}

impl Weights {
    /// Bytes that [`Weights::load`] allocates.
    pub fn measure(spec: &ModelSpec, options: &EngineOptions) -> Result<u64, EngineError> {
        Ok(lay_out(0, spec, options)?.1.carver.bytes())
    }

    /// Allocates one buffer, reads and encodes every tensor, and queues the uploads.
    pub fn load<D: Device>(
        device: &mut D,
        checkpoint: &Checkpoint,
        spec: &ModelSpec,
        options: &EngineOptions,
    ) -> Result<(Self, Buffer), EngineError> {
        let buffer = device.allocate(Self::measure(spec, options)?, "the weights")?;
        let (weights, layout) = lay_out(buffer.address(), spec, options)?;
        for item in layout.items {
            match item {
                Item::Matrix { source, encoding, to } => {
                    let packed = encode(checkpoint, source, encoding, to.len())?;
                    device.upload(&packed, to)?;
                }
                Item::Vector { source, to } => {
                    let values = checkpoint.tensor(source)?.to_f32_vec()?;
                    device.upload(bytemuck::cast_slice(&values), to.as_bytes())?;
                }
                Item::Rope { rope, rotary_dim, cos, sin } => {
                    let table = RopeTable::new(rope, rotary_dim, options.context_tokens)?;
                    device.upload(bytemuck::cast_slice(&table.cos), cos.as_bytes())?;
                    device.upload(bytemuck::cast_slice(&table.sin), sin.as_bytes())?;
                }
            }
        }
        device.synchronize()?;
        checkpoint.release()?;
        Ok((weights, buffer))
    }
}

fn encode(
    checkpoint: &Checkpoint,
    source: &TensorSource,
    encoding: Encoding,
    bytes: usize,
) -> Result<Vec<u8>, EngineError> {
    let view = checkpoint.tensor(source)?;
    let mut packed = vec![0u8; bytes];
    let fill =
        |rows: std::ops::Range<usize>, out: &mut [f32]| view.rows_f32(rows, out).map_err(TensorError::Checkpoint);
    match encode_rows(encoding, view.rows(), view.cols(), fill, &mut packed) {
        Ok(_) => Ok(packed),
        Err(TensorError::Checkpoint(error)) => Err(error.into()),
        Err(TensorError::Encode(error)) => Err(EngineError::Encode { tensor: source.name.clone(), source: error }),
    }
}
