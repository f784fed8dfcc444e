//! Decode without the host: a whole token is one captured graph of launches, repeated for each.
//!
//! Routes stay on the device: [`Kernel::FetchExperts`] looks each layer's experts up in the table of residents and copies what is
//! cold out of host memory. Token and position are read from device memory. The routes come back with the chosen token, and
//! the policy runs between tokens: a promoted expert is copied behind the next token and is resident for the one after.

use std::collections::VecDeque;

use super::ahead::Ahead;
use super::calibrate::ColdPath;
use super::layer::Addresses;
use super::{Engine, Tokens};
use crate::device::kernel::{EXPERT_ABSENT, TeamShare};
use crate::device::{Arithmetic, Carver, Device, DownloadId, Event, GraphId, Kernel, Span, Stream};
use crate::error::EngineError;
use crate::memory::{Sizes, Workspace};
use crate::model::spec::FfnSpec;
use crate::residency::{Miss, Recorded};
use crate::trace::Component;
use crate::weights::FfnWeights;
use assay_kernels::Choice;

/// Positions that the first graph serves; each next one serves twice as many, so that few are captured.
const FIRST_POSITIONS: usize = 128;

/// Batches of promoted experts that may still be on their way when a token starts.
pub(crate) const BATCHES_UNDER_WAY: usize = 1;

/// Of an engine without [`Captured`].
const NO_MEMORY: EngineError = EngineError::TooLarge { what: "a captured token without its memory" };

/// A token at its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) token: u32,
    pub(super) position: usize,
}

/// Device memory that the host and a captured token exchange data through.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exchange {
    /// `[moe layers * num_experts]` addresses of residents.
    resident: Span<u64>,
    /// `[top_k]` addresses where cold experts land.
    landing: Span<u64>,
    /// The token and its position; a token's graph ends by leaving the next one's here.
    inputs: Span<u32>,
    /// The chosen token, then `[moe layers][top_k]` routes.
    pub(super) outputs: Span<u32>,
    /// `[top_k + 1]`: of so many cold experts of a layer, how many the host computes.
    pub(super) by_host: Span<u32>,
    /// Number of the last request to the host.
    pub(super) sequence: Span<u32>,
    /// `[top_k, hidden_size]`: what the host's experts give.
    answers: Span<f32>,
}

impl Exchange {
    /// Lays the spans out from `base` on; returns them and the bytes they take.
    pub(crate) fn carve(base: u64, sizes: &Sizes) -> (Self, u64) {
        let mut carver = Carver::new(base);
        let exchange = Self {
            resident: carver.take(sizes.moe_layers * sizes.num_experts),
            landing: carver.take(sizes.top_k),
            inputs: carver.take(2),
            outputs: carver.take(1 + sizes.moe_layers * sizes.top_k),
            by_host: carver.take(1 + sizes.top_k),
            sequence: carver.take(1),
            answers: carver.take(sizes.top_k * sizes.hidden_size),
        };
        (exchange, carver.bytes())
    }
}

/// A graph, and which tokens it serves.
#[derive(Debug, Clone, Copy)]
struct Serves {
    graph: GraphId,
    /// At positions below this.
    below: usize,
    cold: Cold,
}

/// What a token does about experts that are not on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cold {
    /// There are none: none is looked for, and the residents' table is its table.
    None,
    /// They are copied.
    Fetched,
    /// Some are copied, some are computed by the host.
    Shared,
}

/// What is known of the device's side.
pub(super) struct Captured {
    pub(super) exchange: Exchange,
    graphs: Vec<Serves>,
    /// Of the residency that the device's tables say.
    version: Option<u64>,
    landing: Vec<u64>,
    /// What came back of the last token: as [`Exchange::outputs`].
    outputs: Vec<u32>,
    /// Promoted experts under way, oldest first, and when each batch is there.
    arriving: VecDeque<(Vec<Miss>, Event)>,
    /// What [`Exchange::inputs`] holds after all that is queued, where that is known.
    pub(super) inputs: Option<Step>,
    pub(super) ahead: Option<Ahead>,
    /// The last step that was decoded, where a step ahead that is not wanted has overwritten its logits.
    pub(super) logits_lost: Option<Step>,
}

impl Captured {
    pub(super) fn new(exchange: Exchange) -> Self {
        let outputs = vec![0; exchange.outputs.len()];
        Self {
            exchange,
            graphs: Vec::new(),
            version: None,
            landing: Vec::new(),
            outputs,
            arriving: VecDeque::new(),
            inputs: None,
            ahead: None,
            logits_lost: None,
        }
    }

    /// Graphs that ask the host are gone.
    pub(super) fn forget_shared(&mut self) {
        self.graphs.retain(|known| known.cold != Cold::Shared);
    }
}

impl<D: Device> Engine<D> {
    /// One token by a captured graph. What decides a sampled choice is another with each token, so that is launched behind the graph, and its
    /// answer takes the place of the greedy one. With `more` the next token is queued before this one is waited for.
    pub(super) fn decode_captured(
        &mut self,
        token: u32,
        choice: Option<Choice>,
        more: bool,
    ) -> Result<u32, EngineError> {
        self.settle_promotions(BATCHES_UNDER_WAY)?;
        let step = Step { token, position: self.position };
        let cold = match self.cold_path {
            _ if self.residency.resident() == self.residency.total() => Cold::None,
            ColdPath::WithHost => Cold::Shared,
            ColdPath::CopyEngine | ColdPath::Multiprocessors => Cold::Fetched,
        };
        // What is ahead has chosen greedily.
        let ahead = match choice {
            None => self.take_ahead(step)?,
            Some(_) => self.discard_ahead().map(|()| None)?,
        };
        let download = match ahead {
            Some(download) => download,
            None => self.queue_step(step, choice, cold)?,
        };
        let goes_on = more && choice.is_none() && cold == Cold::None && step.position + 1 < self.options.context_tokens;
        let next = if goes_on { Some(self.queue_graph(step.position + 1, None, cold)?) } else { None };
        // While the device computes.
        self.settle_counts();
        let mut outputs =
            self.captured.as_mut().map(|captured| std::mem::take(&mut captured.outputs)).unwrap_or_default();
        let decoded = self
            .finish_step(step, choice, (download, next), &mut outputs)
            .and_then(|()| self.settle_token(&outputs, cold));
        if let Some(captured) = &mut self.captured {
            captured.outputs = outputs;
        }
        decoded
    }

    /// Queues a step's graph and the download of what it gives.
    pub(super) fn queue_step(
        &mut self,
        step: Step,
        choice: Option<Choice>,
        cold: Cold,
    ) -> Result<DownloadId, EngineError> {
        let Some(captured) = &self.captured else { return Err(NO_MEMORY) };
        if captured.inputs != Some(step) {
            let (inputs, to) = ([step.token, step.position as u32], captured.exchange.inputs);
            self.device.upload(bytemuck::cast_slice(&inputs), to.as_bytes())?;
        }
        self.queue_graph(step.position, choice, cold)
    }

    /// [`Engine::queue_step`] of the step that the device's memory says, at this position.
    fn queue_graph(&mut self, position: usize, choice: Option<Choice>, cold: Cold) -> Result<DownloadId, EngineError> {
        let Some(exchange) = self.captured.as_ref().map(|captured| captured.exchange) else { return Err(NO_MEMORY) };
        self.send_tables(exchange)?;
        let graph = self.graph_for(position, exchange, cold)?;
        if let Some(captured) = &mut self.captured {
            captured.inputs = None;
        }
        self.device.replay(graph)?;
        if choice.is_some() {
            self.launch_choice(position, choice, exchange.outputs.first(1)?)?;
        }
        Ok(self.device.begin_download(exchange.outputs.as_bytes())?)
    }

    /// What follows from the choice and the routes of a token; the choice.
    fn settle_token(&mut self, outputs: &[u32], cold: Cold) -> Result<u32, EngineError> {
        let Some((&chosen, routes)) = outputs.split_first() else {
            return Err(NO_MEMORY);
        };
        if cold != Cold::None {
            self.promote(routes)?;
            self.recorded.iter_mut().for_each(Recorded::decoded);
        } else {
            self.count_later(routes);
        }
        Ok(chosen)
    }

    /// The tables of residents and landing slots, where they have changed.
    fn send_tables(&mut self, exchange: Exchange) -> Result<(), EngineError> {
        let version = self.residency.version();
        let Some(captured) = &mut self.captured else { return Ok(()) };
        if captured.version != Some(version) && !exchange.resident.is_empty() {
            let addresses = self.residency.addresses(EXPERT_ABSENT);
            self.device.upload(bytemuck::cast_slice(&addresses), exchange.resident.as_bytes())?;
            captured.version = Some(version);
        }
        let landing = || self.residency.landing(exchange.landing.len());
        if !landing().eq(captured.landing.iter().copied()) {
            let landing: Vec<u64> = landing().collect();
            let to = exchange.landing.first(landing.len())?;
            self.device.upload(bytemuck::cast_slice(&landing), to.as_bytes())?;
            captured.landing = landing;
        }
        Ok(())
    }

    /// The graph that serves a position; captured if there is none.
    fn graph_for(&mut self, position: usize, exchange: Exchange, cold: Cold) -> Result<GraphId, EngineError> {
        let known = self.captured.as_ref().map_or(&[][..], |captured| captured.graphs.as_slice());
        if let Some(known) = known.iter().find(|known| known.cold == cold && position < known.below) {
            return Ok(known.graph);
        }
        let mut below = FIRST_POSITIONS;
        while below <= position {
            below *= 2;
        }
        let below = below.min(self.options.context_tokens);
        self.device.begin_capture()?;
        let launched = self.launch_token(below - 1, exchange, cold);
        // Capture is ended whatever happened: the stream must work again.
        let graph = self.device.end_capture();
        launched?;
        let graph = graph?;
        if let Some(captured) = &mut self.captured {
            captured.graphs.push(Serves { graph, below, cold });
        }
        Ok(graph)
    }

    /// All launches of a token at any position up to `last`.
    fn launch_token(&mut self, last: usize, exchange: Exchange, cold: Cold) -> Result<(), EngineError> {
        let (workspace, x, spec) = (self.decode_workspace, self.decode_hidden, self.spec.clone());
        let (ids, position) = (exchange.inputs.part(0, 1)?, exchange.inputs.part(1, 1)?);
        let at = Tokens { first_position: last, count: 1 };
        self.embed_ids(ids, last, x)?;
        let mut moe_layer = 0;
        for (index, layer) in spec.layers.iter().enumerate() {
            // Routes go where they are read back from.
            let (top_k, routed) = (self.plan.sizes.top_k, matches!(layer.ffn, FfnSpec::Moe(_)));
            let routes = exchange.outputs.part(1 + moe_layer * top_k, if routed { top_k } else { 0 })?;
            let workspace = Workspace { routes, ..workspace };
            let mut pass = self.pass(index, (&spec, None), (&workspace, Arithmetic::Exact), x, last);
            pass.position_at = Some(position);
            pass.attention(&mut self.device)?;
            match (&layer.ffn, &pass.weights.ffn, self.plan.bank) {
                (FfnSpec::Moe(moe), FfnWeights::Moe(weights), Some(bank)) => {
                    pass.route(&mut self.device, moe, weights)?;
                    let resident = exchange.resident.part(moe_layer * bank.num_experts, bank.num_experts)?;
                    let mut table = resident;
                    if cold != Cold::None {
                        table = workspace.table.first(bank.num_experts)?;
                        let share = TeamShare {
                            layer: moe_layer,
                            x: workspace.normed.first(spec.hidden_size)?,
                            by_host: exchange.by_host.first(1 + moe.num_experts_per_tok)?,
                            sequence: exchange.sequence,
                            out: exchange.answers.first(moe.num_experts_per_tok * spec.hidden_size)?,
                        };
                        let fetch = Kernel::FetchExperts {
                            ids: pass.routes(moe)?,
                            resident,
                            bank_start: bank.layer_offset(moe_layer),
                            expert_bytes: bank.expert.bytes,
                            landing: exchange.landing,
                            table,
                            team: (cold == Cold::Shared).then_some(share),
                        };
                        pass.launch(&mut self.device, Component::FetchExperts, fetch)?;
                    }
                    pass.experts(&mut self.device, moe, weights, &bank, Addresses::OnDevice(table))?;
                    moe_layer += 1;
                }
                (_, FfnWeights::Dense(mlp), _) => pass.dense(&mut self.device, mlp)?,
                (_, FfnWeights::Moe(_), _) => {}
            }
        }
        self.head(x, at, &workspace)?;
        let (logits, out) = (self.logits.first(self.plan.sizes.vocab_size)?, exchange.outputs.first(1)?);
        self.launch(Component::Argmax, at, Kernel::Argmax { logits, out, next: Some(exchange.inputs) })
    }

    /// Counts a token's routes, and starts the copies of what the policy promotes; looks after the host.
    fn promote(&mut self, routes: &[u32]) -> Result<(), EngineError> {
        let Some(bank) = self.plan.bank else { return Ok(()) };
        self.watch_host(routes);
        let waiting: Vec<Miss> =
            self.captured.iter().flat_map(|c| &c.arriving).flat_map(|(batch, _)| batch).copied().collect();
        let copies = self.count_token(routes, &waiting);
        if copies.is_empty() {
            return Ok(());
        }
        // Every kernel that could read the victims has been waited for, with the chosen token.
        for copy in &copies {
            self.device.copy_from_bank(&self.bank, bank.expert_range(copy.expert), copy.to)?;
        }
        let event = self.device.record(Stream::Copy)?;
        if let Some(captured) = &mut self.captured {
            captured.arriving.push_back((copies, event));
        }
        Ok(())
    }

    /// Makes the oldest promotions resident until at most `left` batches are under way.
    pub(super) fn settle_promotions(&mut self, left: usize) -> Result<(), EngineError> {
        while let Some((batch, event)) = self
            .captured
            .as_mut()
            .and_then(|captured| (captured.arriving.len() > left).then(|| captured.arriving.pop_front()).flatten())
        {
            self.device.wait(Stream::Compute, event)?;
            self.residency.arrive(&batch);
        }
        Ok(())
    }

    /// After an error: promotions under way are given up, and the tables are sent again.
    pub(super) fn drop_promotions(&mut self) {
        if let Some(captured) = &mut self.captured {
            for (batch, _) in captured.arriving.drain(..) {
                self.residency.give_up(&batch);
            }
            captured.version = None;
            captured.landing.clear();
        }
    }
}
