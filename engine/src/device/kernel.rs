//! Every kernel that the engine launches, as data: operands are spans of device memory, shapes follow from their lengths.

use assay_kernels::layout::{ExpertLayout, MatrixFormat};
use assay_kernels::{Activation, Choice, KvLayout, Routing};

use super::Span;

/// A weight matrix `[rows, cols]` on the device, in the layout of `assay_kernels::layout`.
#[derive(Debug, Clone, Copy)]
pub struct MatrixSpan {
    /// How elements are stored.
    pub format: MatrixFormat,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// The bytes.
    pub bytes: Span<u8>,
}

/// One layer's key and value rows.
#[derive(Debug, Clone, Copy)]
pub struct KvSpan {
    /// Heads, width, format and capacity.
    pub layout: KvLayout,
    /// The bytes.
    pub bytes: Span<u8>,
}

/// Value of a device table entry for an expert that is not on the device.
pub const EXPERT_ABSENT: u64 = u64::MAX;

/// The order and precision in which a kernel with a choice computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Arithmetic {
    /// The contract's: the host device's bits on every device.
    #[default]
    Exact,
    /// Tensor cores: activations rounded to BF16, products added up in f32. The bits of a token do not depend on its chunk.
    Tensor,
}

impl Arithmetic {
    /// The name in configs and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Tensor => "tensor",
        }
    }
}

/// How a kernel is launched.
#[derive(Debug, Clone, Copy)]
pub struct Launch {
    /// Arithmetic, for the kernels that have a choice: linear, attention, experts.
    pub arithmetic: Arithmetic,
    /// Memory that a kernel may use while it runs.
    pub scratch: Span<u8>,
}

/// What a fetch leaves to processors of the host: see [`super::Device::hire`].
#[derive(Debug, Clone, Copy)]
pub struct TeamShare {
    /// Among the layers that have experts.
    pub layer: usize,
    /// The experts' input, `[hidden]`.
    pub x: Span<f32>,
    /// `[top_k + 1]`: of so many cold experts, how many the host computes.
    pub by_host: Span<u32>,
    /// Number of the last request.
    pub sequence: Span<u32>,
    /// What the host's experts give, `[top_k, hidden]`.
    pub out: Span<f32>,
}

/// A layer's experts in the host bank.
#[derive(Debug, Clone, Copy)]
pub struct TeamLayer {
    /// Where they begin.
    pub bank_start: usize,
    /// Between gate, up and down.
    pub activation: Activation,
}

/// What processors of the host are hired for.
#[derive(Debug, Clone)]
pub struct TeamWork {
    /// Those that have experts.
    pub layers: Vec<TeamLayer>,
    /// Of every expert.
    pub expert: ExpertLayout,
    /// Of a layer.
    pub num_experts: usize,
    /// Experts of a token.
    pub top_k: usize,
    /// How many threads; at least 1.
    pub threads: usize,
    /// As [`TeamShare::sequence`].
    pub sequence: Span<u32>,
}

/// A kernel with its operands. Where there is a `position_at`, the position of the first token is read there when the kernel
/// runs, and `first_position` is the largest that it may be: so a captured launch serves later positions. `T` is a number of tokens, `S = T * top_k` a number of slots (slot = token * top_k + rank).
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // operand names are those of the kernel crate, which documents them
pub enum Kernel {
    /// `out[T, hidden] = table[ids[T]]`
    Embed { ids: Span<u32>, table: MatrixSpan, out: Span<f32> },
    /// `out[T, width] = rms_norm(x[T, width]) * weight[width]`
    RmsNorm { x: Span<f32>, weight: Span<f32>, eps: f32, out: Span<f32> },
    /// `out[T, rows] = weight[rows, cols] · x[T, cols] + bias[rows]`
    Linear { x: Span<f32>, weight: MatrixSpan, bias: Option<Span<f32>>, out: Span<f32> },
    /// Norm (`[head_dim]` for each head, `[heads * head_dim]` for all together), then rope of each head's first `rotary_dim`
    /// elements, in place on `x[T, heads * head_dim]`; tables are `[positions, rotary_dim / 2]`.
    HeadNormRope {
        x: Span<f32>,
        heads: usize,
        head_dim: usize,
        rotary_dim: usize,
        norm: Option<Span<f32>>,
        eps: f32,
        cos: Span<f32>,
        sin: Span<f32>,
        first_position: usize,
        position_at: Option<Span<u32>>,
    },
    /// Stores `k[T, kv_heads * head_dim]` and `v` at `first_position ..`.
    KvAppend { k: Span<f32>, v: Span<f32>, cache: KvSpan, first_position: usize, position_at: Option<Span<u32>> },
    /// Causal attention of `q[T, heads * head_dim]` over the cache, within a window, with `sinks[heads]`.
    Attention {
        q: Span<f32>,
        heads: usize,
        cache: KvSpan,
        first_position: usize,
        position_at: Option<Span<u32>>,
        scale: f32,
        window: Option<usize>,
        sinks: Option<Span<f32>>,
        out: Span<f32>,
    },
    /// Top-k of `logits[T, experts]`, `bias[experts]` added for the choice, into `ids[T, top_k]` and `weights[T, top_k]`.
    RouterTopK {
        logits: Span<f32>,
        bias: Option<Span<f32>>,
        num_experts: usize,
        top_k: usize,
        routing: Routing,
        ids: Span<u32>,
        weights: Span<f32>,
    },
    /// `table[ids]` = addresses of one token's experts: those that are resident, and those that are copied out of the adopted
    /// bank, from byte `bank_start` on, to `landing`, in the order of the slots. Only on a device with [`super::Device::fetches`]. With a
    /// `team` some of the cold ones are computed by the host, and `table` says where what they give lies, plus 1.
    FetchExperts {
        ids: Span<u32>,
        resident: Span<u64>,
        bank_start: usize,
        expert_bytes: usize,
        landing: Span<u64>,
        table: Span<u64>,
        team: Option<TeamShare>,
    },
    /// Slots sorted by expert: `order[S]`, `offsets[experts + 1]`.
    Permute { ids: Span<u32>, order: Span<u32>, offsets: Span<u32> },
    /// `out[S, intermediate] = activation(gate · x, up · x)` by the slot's expert `ids[S]`; `table[experts]` holds addresses.
    GroupedGateUp {
        x: Span<f32>,
        top_k: usize,
        ids: Span<u32>,
        order: Span<u32>,
        offsets: Span<u32>,
        table: Span<u64>,
        expert: ExpertLayout,
        activation: Activation,
        out: Span<f32>,
    },
    /// `out[S, hidden] = down · act[S, intermediate]` by the slot's expert.
    GroupedDown {
        act: Span<f32>,
        ids: Span<u32>,
        order: Span<u32>,
        offsets: Span<u32>,
        table: Span<u64>,
        expert: ExpertLayout,
        out: Span<f32>,
    },
    /// `out[T, hidden] = Σ weights · slots` in rank order.
    Combine { slots: Span<f32>, weights: Span<f32>, top_k: usize, out: Span<f32> },
    /// `x = x + y * factor`
    AddAssign { x: Span<f32>, y: Span<f32>, factor: f32 },
    /// `x[T, width] = x + y * sigmoid(gates[T])`
    AddGated { x: Span<f32>, y: Span<f32>, gates: Span<f32> },
    /// `x = x * factor`
    Scale { x: Span<f32>, factor: f32 },
    /// `out = activation(gate, up)`
    SwiGlu { gate: Span<f32>, up: Span<f32>, activation: Activation, out: Span<f32> },
    /// `out[0] = argmax(logits)`; where there is a `next`, a token and its position, `next[0]` is the choice too and `next[1]` grows by 1.
    Argmax { logits: Span<f32>, out: Span<u32>, next: Option<Span<u32>> },
    /// `out[0] = sample(logits)`
    Sample { logits: Span<f32>, choice: Choice, out: Span<u32> },
}

impl Kernel {
    /// The kernel's name, for errors and traces.
    pub fn name(&self) -> &'static str {
        match self {
            Kernel::Embed { .. } => "embed",
            Kernel::RmsNorm { .. } => "rms_norm",
            Kernel::Linear { .. } => "linear",
            Kernel::HeadNormRope { .. } => "head_norm_rope",
            Kernel::KvAppend { .. } => "kv_append",
            Kernel::Attention { .. } => "attention",
            Kernel::RouterTopK { .. } => "router_topk",
            Kernel::FetchExperts { .. } => "fetch_experts",
            Kernel::Permute { .. } => "permute",
            Kernel::GroupedGateUp { .. } => "grouped_gate_up",
            Kernel::GroupedDown { .. } => "grouped_down",
            Kernel::Combine { .. } => "combine",
            Kernel::AddAssign { .. } => "add_assign",
            Kernel::AddGated { .. } => "add_gated",
            Kernel::Scale { .. } => "scale",
            Kernel::SwiGlu { .. } => "swiglu",
            Kernel::Argmax { .. } => "argmax",
            Kernel::Sample { .. } => "sample",
        }
    }
}
