//! The budget. Every figure here is the sum of aligned allocations that the engine later makes, in the same order.

use assay_kernels::layout::{ExpertLayout, MatrixFormat};
use assay_kernels::{KvFormat, kv_bytes};

use super::scratch::scratch_bytes;
use super::{Sizes, Workspace};
use crate::device::{Arithmetic, DeviceKind, align_up};
use crate::engine::Exchange;
use crate::error::EngineError;
use crate::model::spec::{FfnSpec, ModelSpec};
use crate::options::EngineOptions;
use crate::residency::ExpertId;
use crate::weights::Weights;

/// Rows of logits that are computed at once when every position's are wanted.
pub const LOGITS_ROWS: usize = 16;

/// Layers of the host bank start at multiples of this, so that they can be registered with a driver one by one.
const LAYER_ALIGN: usize = 4096;

/// Where each expert lies in the host bank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BankMap {
    /// One expert.
    pub expert: ExpertLayout,
    /// Experts in a layer.
    pub num_experts: usize,
    /// Layers with experts.
    pub moe_layers: usize,
}

impl BankMap {
    /// Bytes of a layer's experts.
    pub fn layer_bytes(&self) -> usize {
        self.num_experts * self.expert.bytes
    }
    /// Where a layer's experts start.
    pub fn layer_offset(&self, moe_layer: usize) -> usize {
        moe_layer * self.layer_bytes().next_multiple_of(LAYER_ALIGN)
    }
    /// Bytes of the whole bank.
    pub fn bytes(&self) -> usize {
        self.layer_offset(self.moe_layers)
    }
    /// Bytes of a run of one layer's experts.
    pub fn range(&self, moe_layer: usize, first: usize, count: usize) -> std::ops::Range<usize> {
        let start = self.layer_offset(moe_layer) + first * self.expert.bytes;
        start..start + count * self.expert.bytes
    }
    /// Bytes of one expert.
    pub fn expert_range(&self, expert: ExpertId) -> std::ops::Range<usize> {
        self.range(expert.index() / self.num_experts, expert.index() % self.num_experts, 1)
    }
    /// Experts of all layers.
    pub fn total(&self) -> usize {
        self.num_experts * self.moe_layers
    }
}

/// What the budget is spent on.
#[derive(Debug, Clone)]
pub struct MemoryPlan {
    /// Largest dimensions.
    pub sizes: Sizes,
    /// Where experts lie in host memory; `None` for a model without.
    pub bank: Option<BankMap>,
    /// Attention, dense layers, norms, embedding, head, rope tables.
    pub weights_bytes: u64,
    /// Keys and values of the whole context, all layers.
    pub kv_bytes: u64,
    /// Scratch memory for one layer's keys and values as numbers, where a device's kernels read no codes.
    pub unpacked_kv_bytes: usize,
    /// Workspace of one token.
    pub decode_workspace_bytes: u64,
    /// [`LOGITS_ROWS`] rows of logits.
    pub logits_bytes: u64,
    /// The chosen token.
    pub chosen_bytes: u64,
    /// Slots where cold experts land.
    pub landing_slots: usize,
    /// Tables that the host and captured tokens exchange; 0 on the host device.
    pub exchange_bytes: u64,
    /// Tokens of context.
    pub context_tokens: usize,
    /// Whose kernels' scratch memory is planned for.
    pub device: DeviceKind,
    /// Arithmetic of prefill.
    pub prefill: Arithmetic,
    /// MoE layers streamed at once.
    pub layers_per_group: usize,
    /// The floor that free memory must keep.
    pub margin_bytes: u64,
}

fn aligned(bytes: Option<u64>, what: &'static str) -> Result<u64, EngineError> {
    bytes.and_then(align_up).ok_or(EngineError::TooLarge { what })
}

impl MemoryPlan {
    /// For a model and options.
    pub fn new(spec: &ModelSpec, options: &EngineOptions) -> Result<Self, EngineError> {
        options.check(spec)?;
        let sizes = Sizes::of(spec);
        let bank = bank_map(spec, &sizes, options.precision.experts.format())?;
        let mut kv = 0u64;
        for layer in &spec.layers {
            let bytes = layer_kv_bytes(options.precision.kv, options.context_tokens, layer)?;
            kv = kv.checked_add(bytes).ok_or(EngineError::TooLarge { what: "the KV cache" })?;
        }
        let weights = Weights::measure(spec, options)?;
        let logits = (LOGITS_ROWS as u64).checked_mul(4 * sizes.vocab_size as u64);
        let mut plan = Self {
            sizes,
            bank,
            weights_bytes: aligned(Some(weights), "the weights")?,
            kv_bytes: aligned(Some(kv), "the KV cache")?,
            unpacked_kv_bytes: unpacked_kv_bytes(spec, options)?,
            decode_workspace_bytes: 0,
            logits_bytes: aligned(logits, "the logits")?,
            chosen_bytes: crate::device::ALIGNMENT,
            // Twice top-k: while one layer's cold experts are in use the next layer's may land.
            landing_slots: if bank.is_some() { 2 * sizes.top_k } else { 0 },
            exchange_bytes: match options.device {
                DeviceKind::Host => 0,
                DeviceKind::Cuda => aligned(Some(Exchange::carve(0, &sizes).1), "the tables of captured tokens")?,
            },
            context_tokens: options.context_tokens,
            device: options.device,
            prefill: options.prefill,
            layers_per_group: options.layers_per_group.max(1),
            margin_bytes: options.margin_bytes,
        };
        let scratch = scratch_bytes(plan.device, plan.prefill, &sizes, plan.context_tokens, plan.context_tokens)?;
        scratch
            .checked_add(plan.unpacked_kv_bytes)
            .ok_or(EngineError::TooLarge { what: "the kernels' scratch memory" })?;
        let (_, workspace) = plan.workspace(0, 1, Arithmetic::Exact);
        plan.decode_workspace_bytes = aligned(Some(workspace), "the decode workspace")?;
        Ok(plan)
    }

    /// Activations of `tokens` tokens from `base` on, with the scratch memory that kernels of `arithmetic` need; and the bytes.
    pub fn workspace(&self, base: u64, tokens: usize, arithmetic: Arithmetic) -> (Workspace, u64) {
        let scratch = scratch_bytes(self.device, arithmetic, &self.sizes, self.context_tokens, tokens);
        // What does not fit an address is more than any budget, which then refuses it.
        let scratch = scratch.unwrap_or(isize::MAX as usize).saturating_add(self.unpacked_kv_bytes);
        Workspace::carve(base, &self.sizes, tokens, scratch.min(isize::MAX as usize))
    }

    /// Bytes of one expert's slot.
    pub fn slot_bytes(&self) -> u64 {
        self.bank.map_or(0, |bank| bank.expert.bytes as u64)
    }
    /// Bytes of the landing slots.
    pub fn landing_bytes(&self) -> u64 {
        self.landing_slots as u64 * self.slot_bytes()
    }
    /// What stays allocated from startup to the end, experts apart.
    pub fn persistent_bytes(&self) -> u64 {
        self.weights_bytes
            + self.kv_bytes
            + self.decode_workspace_bytes
            + self.hidden_bytes(1)
            + self.logits_bytes
            + self.chosen_bytes
            + self.exchange_bytes
            + self.landing_bytes()
    }
    /// One staging region when no expert of any layer is resident.
    pub fn full_staging_bytes(&self) -> u64 {
        self.bank.map_or(0, |bank| (bank.layer_bytes() * self.layers_per_group.min(bank.moe_layers)) as u64)
    }
    /// The residual stream of a prompt.
    pub fn hidden_bytes(&self, tokens: usize) -> u64 {
        (tokens as u64 * self.sizes.hidden_size as u64 * 4).next_multiple_of(crate::device::ALIGNMENT)
    }
    /// What a prefill of `tokens` in chunks of `chunk` borrows, with two staging regions of `staging` bytes.
    pub fn prefill_bytes(&self, tokens: usize, chunk: usize, staging: u64) -> u64 {
        let (_, workspace) = self.workspace(0, chunk.min(tokens).max(1), self.prefill);
        let workspace = workspace.next_multiple_of(crate::device::ALIGNMENT);
        self.hidden_bytes(tokens) + workspace + 2 * staging.next_multiple_of(crate::device::ALIGNMENT)
    }
    /// The least budget under which a prompt of the whole context can be prefilled, in chunks of `min_chunk`, with the
    /// margin kept free and no expert resident.
    pub fn least_budget(&self, min_chunk: usize) -> u64 {
        self.persistent_bytes()
            + self.prefill_bytes(self.context_tokens, min_chunk, self.full_staging_bytes())
            + self.margin_bytes
    }
    /// Refuses a budget below the least, with what it would be spent on.
    pub fn check_budget(&self, budget: u64, min_chunk: usize) -> Result<(), EngineError> {
        let needed = self.least_budget(min_chunk);
        if budget >= needed {
            return Ok(());
        }
        let (persistent, margin) = (self.persistent_bytes(), self.margin_bytes);
        Err(EngineError::BudgetTooSmall {
            budget,
            needed,
            persistent,
            prefill: needed - persistent - margin,
            margin,
            min_chunk,
        })
    }
    /// A budget under which every expert is resident through a prefill of the whole context in chunks of `chunk`.
    pub fn resident_budget(&self, chunk: usize) -> u64 {
        let experts = self.bank.map_or(0, |bank| bank.total() as u64 * self.slot_bytes());
        self.persistent_bytes() + experts + self.prefill_bytes(self.context_tokens, chunk, 0) + self.margin_bytes
    }
}

/// Bytes of the largest layer's cache as F32, where the device unpacks codes for its attention.
fn unpacked_kv_bytes(spec: &ModelSpec, options: &EngineOptions) -> Result<usize, EngineError> {
    let numbers = matches!(options.precision.kv, KvFormat::F32 | KvFormat::Bf16);
    if numbers || options.device == DeviceKind::Host {
        return Ok(0);
    }
    let mut layers = spec.layers.iter().map(|layer| layer_kv_bytes(KvFormat::F32, options.context_tokens, layer));
    let largest = layers.try_fold(0, |largest, bytes| Ok::<_, EngineError>(bytes?.max(largest)))?;
    usize::try_from(largest).map_err(|_| EngineError::TooLarge { what: "a layer's KV cache" })
}

/// Bytes of one layer's cache.
pub fn layer_kv_bytes(
    format: KvFormat,
    context_tokens: usize,
    layer: &crate::model::spec::LayerSpec,
) -> Result<u64, EngineError> {
    let attention = &layer.attention;
    let bytes = kv_bytes(format, context_tokens, attention.num_key_value_heads, attention.head_dim);
    aligned(bytes.map(|bytes| bytes as u64), "a layer's KV cache")
}

/// All MoE layers must have one shape, as slots and bank assume.
fn bank_map(spec: &ModelSpec, sizes: &Sizes, format: MatrixFormat) -> Result<Option<BankMap>, EngineError> {
    if sizes.moe_layers == 0 {
        return Ok(None);
    }
    for (index, layer) in spec.layers.iter().enumerate() {
        if let FfnSpec::Moe(moe) = &layer.ffn {
            let found = (moe.num_experts(), moe.moe_intermediate_size(), moe.expert_biases());
            let expected = (sizes.num_experts, sizes.moe_intermediate_size, sizes.expert_biases);
            if found != expected {
                return Err(EngineError::UnevenExperts { layer: index, found, expected });
            }
        }
    }
    let expert = ExpertLayout::new(format, spec.hidden_size, sizes.moe_intermediate_size, sizes.expert_biases)
        .ok_or(EngineError::TooLarge { what: "an expert" })?;
    let map = BankMap { expert, num_experts: sizes.num_experts, moe_layers: sizes.moe_layers };
    let fits = expert.bytes.checked_mul(map.num_experts).and_then(|layer| layer.checked_mul(map.moe_layers + 1));
    if fits.is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(EngineError::TooLarge { what: "the experts" });
    }
    Ok(Some(map))
}
