//! The engine: one model on one device, one sequence at a time.
//!
//! - [`layer`]: one decoder layer as launches
//! - [`prefill`]: layer groups outside, chunks inside, two staging regions
//! - [`decode`]: one token through HCS
//! - [`captured`]: one token as a graph, on a device that fetches experts by itself
//! - [`ahead`]: the token after that, before it is asked for
//! - [`counting`]: what is counted of a token's routes, and when
//! - [`calibrate`]: measured memory needs, and the residency they allow
//! - [`sharing`]: whether the host computes cold experts while the link carries others
//! - [`low_water`]: free memory by phase
//! - [`sequence`]: the tokens whose rows the KV cache holds
//! - [`state`]: those rows in and out of host memory
//! - `traced`: starting and finishing a trace
//!
//! Tokens and logits are functions of the weights and the token ids alone: budget, policy, chunk size, heatmap and the way
//! the prompt is fed change where bytes are and when they move, never a bit of an answer.

mod ahead;
mod calibrate;
mod captured;
mod counting;
mod decode;
mod layer;
mod low_water;
mod prefill;
mod sequence;
mod sharing;
mod state;
mod traced;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use calibrate::{Calibration, ColdPath, Requirement};
pub(crate) use captured::BATCHES_UNDER_WAY;
pub(crate) use captured::Exchange;
pub use low_water::{LowWater, Phase};
pub use prefill::EachLogits;
pub use sequence::Sequence;
use sharing::Watch;
pub use sharing::{GivenUp, Sharing};

use crate::bank::HostBank;
use crate::checkpoint::Checkpoint;
use crate::device::kernel::{KvSpan, MatrixSpan};
use crate::device::{Arithmetic, Buffer, Device, Kernel, Launch, LinkCounters, Overhead, Span, Stream};
use crate::error::EngineError;
use crate::memory::plan::{LOGITS_ROWS, layer_kv_bytes};
use crate::memory::{MemoryPlan, Workspace};
use crate::model::spec::{FfnSpec, ModelSpec};
use crate::options::EngineOptions;
use crate::residency::{Heatmap, LayerUse, Miss, Recorded, Residency, ResidencyCounters, TraceShape};
use crate::trace::{self, Component, Place, Tracer};
use crate::weights::Weights;
use assay_kernels::{Choice, KvLayout};
use captured::Captured;
use counting::Uncounted;
use layer::LayerPass;

/// A loaded model.
pub struct Engine<D: Device> {
    device: D,
    spec: Arc<ModelSpec>,
    options: EngineOptions,
    plan: MemoryPlan,
    weights: Weights,
    kv: Vec<KvSpan>,
    bank: Arc<HostBank>,
    residency: Residency,
    /// Everything that lives as long as the engine.
    buffers: Vec<Buffer>,
    decode_workspace: Workspace,
    /// `[LOGITS_ROWS, vocab_size]`
    logits: Span<f32>,
    chosen: Span<u32>,
    /// Residual stream of the token being decoded, `[hidden_size]`.
    decode_hidden: Span<f32>,
    /// Tokens in a prefill chunk.
    chunk: usize,
    calibration: Option<Calibration>,
    calibration_time: Duration,
    /// How decode brings cold experts in.
    cold_path: ColdPath,
    sharing: Option<Sharing>,
    watch: Watch,
    captured: Option<Captured>,
    low_water: LowWater,
    /// Fewest free bytes of the calibration run in progress.
    run_low_water: u64,
    position: usize,
    /// The tokens at `0 .. position`.
    sequence: Sequence,
    /// While kept rows may still be on their way: how many tokens the device held without them.
    restoring: Option<usize>,
    /// Routes of decode that are still to be counted.
    uncounted: Uncounted,
    /// Routes counted while observing, `[moe layer][expert]`.
    observed: Option<Vec<Vec<u64>>>,
    /// Routes of decode while recording.
    recorded: Option<Recorded>,
    /// Asked between the chunks of a prompt.
    interrupt: Option<Interrupt>,
    /// Writes down what is launched, while there is a trace.
    tracer: Option<Arc<Tracer>>,
}

/// Tokens of the sequence that a launch outside the layers is for.
#[derive(Debug, Clone, Copy)]
struct Tokens {
    first_position: usize,
    count: usize,
}

/// Whether the prompt that is being processed is still wanted.
pub type Interrupt = Box<dyn Fn() -> bool + Send>;

/// How full the device is with experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Residents {
    /// Experts on the device now.
    pub resident: usize,
    /// Experts of the model.
    pub total: usize,
    /// Slots that are lent to prefill.
    pub soft_slots: usize,
}

impl<D: Device> Engine<D> {
    /// Checks the budget, loads the weights, calibrates and fills the expert cache.
    ///
    /// `bank` holds the experts in `options.precision.experts`, at the places that [`MemoryPlan::bank`] gives.
    pub fn load(
        device: D,
        checkpoint: &Checkpoint,
        spec: Arc<ModelSpec>,
        bank: Arc<HostBank>,
        heatmap: Option<&Heatmap>,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let plan = check(&device, &spec, &bank, &options)?;
        let mut device = device;
        device.take_low_water();
        device.adopt_bank(&bank)?;
        let (weights, weights_buffer) = Weights::load(&mut device, checkpoint, &spec, &options)?;
        let mut buffers = vec![weights_buffer];
        let kv = allocate_kv(&mut device, &spec, &options, &plan, &mut buffers)?;
        let mut persist = |device: &mut D, bytes: u64, label| -> Result<u64, EngineError> {
            let buffer = device.allocate(bytes, label)?;
            let address = buffer.address();
            buffers.push(buffer);
            Ok(address)
        };
        let decode_base = persist(&mut device, plan.decode_workspace_bytes, "the decode workspace")?;
        let (decode_workspace, _) = plan.workspace(decode_base, 1, Arithmetic::Exact);
        let hidden_base = persist(&mut device, plan.hidden_bytes(1), "the decode residual stream")?;
        let logits_base = persist(&mut device, plan.logits_bytes, "the logits")?;
        let chosen_base = persist(&mut device, plan.chosen_bytes, "the chosen token")?;
        let exchange = match device.fetches() {
            true => {
                let bytes = Exchange::carve(0, &plan.sizes).1;
                let base = persist(&mut device, bytes, "the tables of captured tokens")?;
                Some(Exchange::carve(base, &plan.sizes).0)
            }
            false => None,
        };
        let mut residency = Residency::new(
            plan.sizes.moe_layers,
            plan.sizes.num_experts,
            heatmap,
            options.policy,
            options.promotions_per_token,
            plan.landing_slots,
        );
        for _ in 0..plan.landing_slots {
            let address = persist(&mut device, plan.slot_bytes(), "a landing slot")?;
            residency.add_hard(Span::new(address, plan.slot_bytes() as usize));
        }
        let mut engine = Self {
            decode_workspace,
            logits: Span::new(logits_base, LOGITS_ROWS * plan.sizes.vocab_size),
            chosen: Span::new(chosen_base, 1),
            decode_hidden: Span::new(hidden_base, plan.sizes.hidden_size),
            chunk: options.max_chunk.min(options.context_tokens),
            device,
            spec,
            options,
            plan,
            weights,
            kv,
            bank,
            residency,
            buffers,
            calibration: None,
            calibration_time: Duration::ZERO,
            cold_path: ColdPath::CopyEngine,
            sharing: None,
            watch: Watch::default(),
            captured: exchange.map(Captured::new),
            low_water: LowWater::default(),
            run_low_water: u64::MAX,
            position: 0,
            sequence: Sequence::default(),
            restoring: None,
            uncounted: Uncounted::default(),
            observed: None,
            recorded: None,
            interrupt: None,
            tracer: None,
        };
        engine.note(Phase::Startup);
        let start = Instant::now();
        engine.calibrate()?;
        engine.calibration_time = start.elapsed();
        Ok(engine)
    }

    /// The budget's parts.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }
    /// The model.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }
    /// The options it was loaded with.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }
    /// What calibration measured.
    pub fn calibration(&self) -> Option<&Calibration> {
        self.calibration.as_ref()
    }
    /// How long calibration took: its runs, filling the tiers, and timing the cold paths.
    pub fn calibration_time(&self) -> Duration {
        self.calibration_time
    }
    /// How decode brings cold experts in: measured at startup, or as the options say.
    pub fn cold_path(&self) -> ColdPath {
        self.cold_path
    }
    /// Tokens in a prefill chunk now.
    pub fn chunk(&self) -> usize {
        self.chunk
    }
    /// Tokens in the sequence.
    pub fn position(&self) -> usize {
        self.position
    }
    /// Low-water marks so far.
    pub fn low_water(&self) -> LowWater {
        self.low_water
    }
    /// What the link has carried since the device was made.
    pub fn link(&self) -> LinkCounters {
        self.device.link()
    }
    /// What the driver takes beside the arena.
    ///
    /// # Errors
    /// When the driver does not say.
    pub fn overhead(&self) -> Result<Option<Overhead>, EngineError> {
        Ok(self.device.overhead()?)
    }
    /// Hits, misses and bytes of decode since the last call.
    pub fn take_counters(&mut self) -> ResidencyCounters {
        self.settle_counts();
        self.residency.take_counters()
    }
    /// Each MoE layer's routes of decode since the last call, and its residents.
    pub fn take_layer_use(&mut self) -> Vec<LayerUse> {
        self.settle_counts();
        self.residency.take_layer_use()
    }
    /// How many experts are on the device.
    pub fn residents(&self) -> Residents {
        let (resident, total) = (self.residency.resident(), self.residency.total());
        Residents { resident, total, soft_slots: self.residency.soft_slots() }
    }
    /// The device, e.g. to inject faults.
    pub fn device_mut(&mut self) -> &mut D {
        // A device that is out of order says so again.
        let _ = self.discard_ahead();
        &mut self.device
    }

    /// Has `stop` asked between the chunks of a prompt from now on, or nobody: where it says yes, prefill ends with
    /// [`EngineError::Interrupted`].
    pub fn set_interrupt(&mut self, stop: Option<Interrupt>) {
        self.interrupt = stop;
    }

    /// Forgets the sequence; the next prefill starts at position 0.
    pub fn reset(&mut self) {
        self.truncate(0);
    }

    /// Forgets the tokens from `position` on. Rows that were written for them are overwritten before they are read.
    pub fn truncate(&mut self, position: usize) {
        self.position = self.position.min(position);
        self.sequence.truncate(position);
    }

    /// Starts counting routes in prefill and decode; see [`Engine::take_observed`].
    pub fn observe_routes(&mut self) {
        self.settle_counts();
        self.observed = Some(vec![vec![0; self.plan.sizes.num_experts]; self.plan.sizes.moe_layers]);
    }
    /// Routes counted since [`Engine::observe_routes`], `[moe layer][expert]`; stops counting.
    pub fn take_observed(&mut self) -> Option<Vec<Vec<u64>>> {
        self.settle_counts();
        self.observed.take()
    }

    /// Starts recording the routes of decode; see [`Engine::take_recorded`]. A replay knows nothing of tokens before this call.
    pub fn record_routes(&mut self) {
        self.settle_counts();
        self.recorded = Some(Recorded::default());
    }
    /// What was recorded since [`Engine::record_routes`], and what a trace says about the model; stops recording.
    pub fn take_recorded(&mut self) -> Option<(TraceShape, Recorded)> {
        self.settle_counts();
        let recorded = self.recorded.take()?;
        let top_k = self.spec.layers.iter().filter_map(|layer| match &layer.ffn {
            FfnSpec::Moe(moe) => Some(moe.num_experts_per_tok),
            FfnSpec::Dense(_) => None,
        });
        let shape = TraceShape {
            num_experts: self.plan.sizes.num_experts,
            top_k: top_k.collect(),
            expert_bytes: self.plan.slot_bytes(),
            landing_slots: self.plan.landing_slots,
        };
        Some((shape, recorded))
    }

    /// Complete logits after the last token, `[vocab_size]`.
    pub fn last_logits(&mut self) -> Result<Vec<f32>, EngineError> {
        self.restore_logits()?;
        let mut logits = vec![0f32; self.plan.sizes.vocab_size];
        let row = self.logits.first(logits.len())?;
        self.device.download(row.as_bytes(), bytemuck::cast_slice_mut(&mut logits))?;
        Ok(logits)
    }

    /// Ends a phase. Until calibration is done every run belongs to it.
    fn note(&mut self, phase: Phase) {
        let free = self.device.take_low_water();
        self.run_low_water = self.run_low_water.min(free);
        let calibrating = self.calibration.is_none() && phase != Phase::Startup;
        self.low_water.note(if calibrating { Phase::Calibration } else { phase }, free);
    }

    /// After an error: nothing queued, nothing borrowed, nothing ahead.
    fn recover(&mut self, borrowed: Vec<Buffer>) {
        self.device.abandon();
        self.forget_captured();
        for buffer in borrowed {
            self.device.free(buffer);
        }
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<(), EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        let context = self.options.context_tokens;
        if tokens.len() > context - self.position {
            return Err(EngineError::ContextFull { tokens: tokens.len(), position: self.position, context });
        }
        let vocab_size = self.spec.vocab_size;
        match tokens.iter().position(|&id| id as usize >= vocab_size) {
            None => Ok(()),
            Some(index) => Err(EngineError::TokenId { id: tokens[index], index, vocab_size }),
        }
    }

    /// Queues a kernel that has no choice of arithmetic: what surrounds the layers is exact.
    fn launch(&mut self, component: Component, at: Tokens, kernel: Kernel) -> Result<(), EngineError> {
        let how = Launch { arithmetic: Arithmetic::Exact, scratch: self.decode_workspace.scratch };
        let place = Place { layer: None, component, position: at.first_position, tokens: at.count };
        trace::launch(self.tracer.as_deref(), &mut self.device, place, kernel, how)
    }

    /// Rows of the tokens that start at `first_position`, out of the table of embeddings.
    fn embed(
        &mut self,
        tokens: &[u32],
        first_position: usize,
        ids: Span<u32>,
        out: Span<f32>,
    ) -> Result<(), EngineError> {
        let ids = ids.first(tokens.len())?;
        self.device.upload(bytemuck::cast_slice(tokens), ids.as_bytes())?;
        self.embed_ids(ids, first_position, out)
    }

    /// [`Engine::embed`] of ids that are on the device.
    fn embed_ids(&mut self, ids: Span<u32>, first_position: usize, out: Span<f32>) -> Result<(), EngineError> {
        let at = Tokens { first_position, count: ids.len() };
        self.launch(Component::EmbedTokens, at, Kernel::Embed { ids, table: self.weights.embed_tokens, out })?;
        self.scale(Component::EmbeddingMultiplier, at, out, self.spec.embedding_multiplier)
    }

    /// Final norm and head over the rows of the residual stream; logits go to the first rows of the logits buffer.
    fn head(&mut self, x: Span<f32>, at: Tokens, workspace: &Workspace) -> Result<Span<f32>, EngineError> {
        let out = workspace.normed.first(at.count * self.spec.hidden_size)?;
        let eps = self.spec.rms_norm_eps;
        let weight: MatrixSpan = self.weights.lm_head;
        let logits = self.logits.first(at.count * weight.rows)?;
        let steps = [
            (Component::Norm, Kernel::RmsNorm { x, weight: self.weights.final_norm, eps, out }),
            (Component::LmHead, Kernel::Linear { x: out, weight, bias: None, out: logits }),
        ];
        let how = Launch { arithmetic: Arithmetic::Exact, scratch: self.decode_workspace.scratch };
        let place = |component| Place { layer: None, component, position: at.first_position, tokens: at.count };
        trace::launch_all(self.tracer.as_deref(), &mut self.device, place, &steps, how)?;
        self.scale(Component::LogitsMultiplier, at, logits, self.spec.logits_multiplier)?;
        Ok(logits)
    }

    /// Multiplies in place; most models have nothing to multiply by.
    fn scale(&mut self, component: Component, at: Tokens, x: Span<f32>, factor: f32) -> Result<(), EngineError> {
        if factor != 1.0 {
            self.launch(component, at, Kernel::Scale { x, factor })?;
        }
        Ok(())
    }

    /// Queues the choice from the first row of logits, which is that of `position`: greedy, or as it is told.
    fn launch_choice(&mut self, position: usize, choice: Option<Choice>, out: Span<u32>) -> Result<(), EngineError> {
        let logits = self.logits.first(self.plan.sizes.vocab_size)?;
        let (component, kernel) = match choice {
            None => (Component::Argmax, Kernel::Argmax { logits, out, next: None }),
            Some(choice) => (Component::Sample, Kernel::Sample { logits, choice, out }),
        };
        self.launch(component, Tokens { first_position: position, count: 1 }, kernel)
    }

    /// [`Engine::launch_choice`], and its answer.
    fn choose(&mut self, position: usize, choice: Option<Choice>) -> Result<u32, EngineError> {
        self.launch_choice(position, choice, self.chosen)?;
        let mut chosen = [0u32];
        self.device.download(self.chosen.as_bytes(), bytemuck::cast_slice_mut(&mut chosen))?;
        if let Some(tracer) = self.tracer.clone() {
            tracer.logits(position, &self.last_logits()?, chosen[0])?;
        }
        Ok(chosen[0])
    }

    /// Layer `index` for `tokens` tokens from `first_position` on, whose residual stream is `x`. Borrows nothing of the engine.
    fn pass<'a>(
        &self,
        index: usize,
        (spec, tracer): (&'a ModelSpec, Option<&'a Tracer>),
        (workspace, arithmetic): (&'a Workspace, Arithmetic),
        x: Span<f32>,
        first_position: usize,
    ) -> LayerPass<'a> {
        LayerPass {
            index,
            tracer,
            spec: &spec.layers[index],
            weights: self.weights.layers[index],
            kv: self.kv[index],
            workspace,
            hidden_size: spec.hidden_size,
            eps: spec.rms_norm_eps,
            x,
            arithmetic,
            tokens: x.len() / spec.hidden_size,
            first_position,
            position_at: None,
        }
    }

    /// Copies experts into slots and makes the compute stream wait for them.
    fn copy_experts(&mut self, copies: &[Miss]) -> Result<(), EngineError> {
        let Some(bank) = self.plan.bank else { return Ok(()) };
        if copies.is_empty() {
            return Ok(());
        }
        // A slot may still be read by kernels that are queued.
        let free = self.device.record(Stream::Compute)?;
        self.device.wait(Stream::Copy, free)?;
        for copy in copies {
            self.device.copy_from_bank(&self.bank, bank.expert_range(copy.expert), copy.to)?;
        }
        let arrived = self.device.record(Stream::Copy)?;
        self.device.wait(Stream::Compute, arrived)?;
        Ok(())
    }
}

/// Everything that can be refused before any work.
fn check<D: Device>(
    device: &D,
    spec: &ModelSpec,
    bank: &HostBank,
    options: &EngineOptions,
) -> Result<MemoryPlan, EngineError> {
    options.check(spec)?;
    if device.kind() != options.device {
        let (found, expected) = (device.kind().name(), options.device.name());
        return Err(EngineError::Option { option: "device", found: found.to_owned(), expected });
    }
    let plan = MemoryPlan::new(spec, options)?;
    let expected = plan.bank.map_or(0, |bank| bank.bytes());
    if bank.len() != expected {
        return Err(EngineError::Bank { found: bank.len(), expected });
    }
    plan.check_budget(device.budget(), options.min_chunk)?;
    Ok(plan)
}

fn allocate_kv<D: Device>(
    device: &mut D,
    spec: &ModelSpec,
    options: &EngineOptions,
    plan: &MemoryPlan,
    buffers: &mut Vec<Buffer>,
) -> Result<Vec<KvSpan>, EngineError> {
    let buffer = device.allocate(plan.kv_bytes, "the KV cache")?;
    let mut address = buffer.address();
    buffers.push(buffer);
    let format = options.precision.kv;
    let mut layers = Vec::with_capacity(spec.layers.len());
    for layer in &spec.layers {
        let layout = KvLayout {
            format,
            capacity_tokens: options.context_tokens,
            kv_heads: layer.attention.num_key_value_heads,
            head_dim: layer.attention.head_dim,
        };
        let bytes = layout.bytes().ok_or(EngineError::TooLarge { what: "a layer's KV cache" })?;
        layers.push(KvSpan { layout, bytes: Span::new(address, bytes) });
        address += layer_kv_bytes(format, options.context_tokens, layer)?;
    }
    Ok(layers)
}
