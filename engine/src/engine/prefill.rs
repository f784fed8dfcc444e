//! The prompt: layer groups outside, chunks inside, so that each expert crosses the link at most once a prompt
//! (white paper §4.1–4.3).
//!
//! The residual stream of the whole prompt stays on the device. Experts that are resident are used where they are; the rest of
//! a group is streamed into one of two staging regions while the group before it computes. An allocation that fails
//! halves the chunk, and the prompt starts again from a clean state.

use std::ops::Range;

use super::calibrate::Calibration;
use super::layer::Addresses;
use super::low_water::Phase;
use super::{Engine, Tokens};
use crate::device::kernel::EXPERT_ABSENT;
use crate::device::{Buffer, Device, DeviceError, Event, Span, Stream};
use crate::error::EngineError;
use crate::memory::plan::LOGITS_ROWS;
use crate::memory::{BankMap, Workspace};
use crate::model::spec::FfnSpec;
use crate::trace;
use crate::weights::FfnWeights;

/// Called with a position and its complete logits.
pub type EachLogits<'a> = &'a mut dyn FnMut(usize, &[f32]) -> Result<(), EngineError>;

/// Consecutive layers whose experts are on the device together.
#[derive(Debug, Clone)]
struct Group {
    layers: Range<usize>,
    /// One table for each MoE layer of the group.
    tables: Vec<Vec<u64>>,
    /// The first MoE layer's number among MoE layers.
    first_moe: usize,
    staged: Option<Event>,
}

/// Device memory of one attempt.
struct Borrowed {
    hidden: Span<f32>,
    workspace: Workspace,
    regions: Vec<Span<u8>>,
}

impl<D: Device> Engine<D> {
    /// Appends a prompt and returns the greedy choice after its last token.
    ///
    /// # Errors
    /// An empty prompt, a token out of the vocabulary, a full context, out of memory at the smallest chunk, a logit that is
    /// not a number, device errors. After an error the sequence is as long as before, without what was being restored.
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<u32, EngineError> {
        self.prefill_with(tokens, 0, None)
    }

    /// [`Engine::prefill`], and the complete logits of every position from the `from`th token of `tokens` on, in order.
    pub fn prefill_logits(&mut self, tokens: &[u32], from: usize, each: EachLogits<'_>) -> Result<u32, EngineError> {
        self.prefill_with(tokens, from, Some(each))
    }

    fn prefill_with(
        &mut self,
        tokens: &[u32],
        from: usize,
        mut each: Option<EachLogits<'_>>,
    ) -> Result<u32, EngineError> {
        self.check_tokens(tokens)?;
        self.discard_ahead()?;
        self.logits_replaced();
        // What makes room, and what comes back after it, is chosen by use.
        self.settle_counts();
        self.trace_step(trace::Phase::Prefill, tokens)?;
        self.settle_promotions(0)?;
        self.make_room(tokens.len())?;
        let mut emitted = from;
        let chosen = loop {
            let mut borrowed = Vec::new();
            let attempt = self.attempt(tokens, &mut borrowed, &mut each, &mut emitted);
            let freed = self.device.synchronize();
            match attempt.and_then(|chosen| freed.map(|()| chosen).map_err(EngineError::from)) {
                Ok(chosen) => {
                    self.recover(borrowed);
                    break chosen;
                }
                Err(EngineError::Device(DeviceError::OutOfMemory { .. })) if self.chunk > self.options.min_chunk => {
                    self.recover(borrowed);
                    self.halve_chunk();
                    self.trace_retry()?;
                }
                Err(error) => {
                    self.recover(borrowed);
                    self.forget_restored();
                    self.note(Phase::Prefill);
                    return Err(error);
                }
            }
        };
        // Every layer has waited for its rows.
        self.restoring = None;
        self.position += tokens.len();
        self.sequence.append_prefilled(tokens);
        self.recorded.iter_mut().for_each(|recorded| recorded.prefilled(tokens.len()));
        self.note(Phase::Prefill);
        self.restore_soft()?;
        self.note(Phase::Restore);
        Ok(chosen)
    }

    /// Gives soft slots back until the measured requirement of this prompt is free.
    fn make_room(&mut self, tokens: usize) -> Result<(), EngineError> {
        let Some(calibration) = &self.calibration else { return Ok(()) };
        let measured = calibration.prefill_requirement(tokens);
        let wanted = measured.saturating_sub(self.less_than_a_chunk(calibration, tokens)) + self.options.margin_bytes;
        if self.device.free_bytes() < wanted && self.residency.soft_slots() > 0 {
            // Copies into the slots may still be under way.
            self.device.synchronize()?;
        }
        while self.device.free_bytes() < wanted {
            let Some(buffer) = self.residency.lend() else { break };
            self.device.free(buffer);
        }
        Ok(())
    }

    /// By how much the activations of a prompt that is shorter than the shortest one measured are smaller: its experts are as many, but each
    /// soft slot that it takes crosses the link twice, once for the prompt and once to come back.
    fn less_than_a_chunk(&self, calibration: &Calibration, tokens: usize) -> u64 {
        let activations = |tokens: usize| self.plan.prefill_bytes(tokens, calibration.chunk, 0);
        activations(calibration.short.tokens).saturating_sub(activations(tokens))
    }

    fn attempt(
        &mut self,
        tokens: &[u32],
        borrowed: &mut Vec<Buffer>,
        each: &mut Option<EachLogits<'_>>,
        emitted: &mut usize,
    ) -> Result<u32, EngineError> {
        let mut groups = self.groups();
        let memory = self.borrow(tokens.len(), &groups, borrowed)?;
        let mut released: Vec<Option<Event>> = vec![None; memory.regions.len()];
        if let Some(first) = groups.first_mut() {
            self.stage(first, &memory, 0, &mut released)?;
        }
        for index in 0..groups.len() {
            if index + 1 < groups.len() {
                let mut next = groups[index + 1].clone();
                self.stage(&mut next, &memory, index + 1, &mut released)?;
                groups[index + 1] = next;
            }
            let group = &groups[index];
            if let Some(event) = group.staged {
                self.device.wait(Stream::Compute, event)?;
            }
            for start in (0..tokens.len()).step_by(self.chunk) {
                if self.interrupt.as_ref().is_some_and(|stop| stop()) {
                    return Err(EngineError::Interrupted);
                }
                let range = start..tokens.len().min(start + self.chunk);
                self.chunk_through(group, tokens, range, &memory)?;
            }
            if !memory.regions.is_empty() {
                released[index % memory.regions.len()] = Some(self.device.record(Stream::Compute)?);
            }
        }
        if let Some(each) = each {
            self.all_logits(tokens.len(), &memory, each, emitted)?;
        }
        let last = memory.hidden.part((tokens.len() - 1) * self.spec.hidden_size, self.spec.hidden_size)?;
        let position = self.position + tokens.len() - 1;
        self.head(last, Tokens { first_position: position, count: 1 }, &memory.workspace)?;
        self.choose(position, None)
    }

    /// Layers cut so that each group has at most `layers_per_group` MoE layers.
    fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        let (mut moe_layers, mut in_group) = (0, 0);
        for (index, layer) in self.spec.layers.iter().enumerate() {
            let is_moe = matches!(layer.ffn, FfnSpec::Moe(_));
            if groups.is_empty() || (is_moe && in_group == self.plan.layers_per_group) {
                groups.push(Group { layers: index..index, tables: Vec::new(), first_moe: moe_layers, staged: None });
                in_group = 0;
            }
            if let Some(group) = groups.last_mut() {
                group.layers.end = index + 1;
                if is_moe {
                    if self.plan.bank.is_some() {
                        group.tables.push(self.residency.layer_addresses(moe_layers, EXPERT_ABSENT));
                    }
                    in_group += 1;
                    moe_layers += 1;
                }
            }
        }
        groups
    }

    fn borrow(&mut self, tokens: usize, groups: &[Group], borrowed: &mut Vec<Buffer>) -> Result<Borrowed, EngineError> {
        let cold = |group: &Group| group.tables.iter().flatten().filter(|&&address| address == EXPERT_ABSENT).count();
        let staging = groups.iter().map(cold).max().unwrap_or(0) as u64 * self.plan.slot_bytes();
        let mut take = |device: &mut D, bytes: u64, label| -> Result<u64, EngineError> {
            let buffer = device.allocate(bytes, label)?;
            let address = buffer.address();
            borrowed.push(buffer);
            Ok(address)
        };
        let hidden_len = tokens * self.spec.hidden_size;
        let hidden = take(&mut self.device, self.plan.hidden_bytes(tokens), "the prompt's residual stream")?;
        let chunk = self.chunk.min(tokens);
        let (_, workspace_bytes) = self.plan.workspace(0, chunk, self.plan.prefill);
        let workspace = take(&mut self.device, workspace_bytes, "the workspace of a prefill chunk")?;
        let mut regions = Vec::new();
        for _ in 0..2 {
            if staging > 0 {
                let address = take(&mut self.device, staging, "a staging region")?;
                regions.push(Span::new(address, staging as usize));
            }
        }
        Ok(Borrowed {
            hidden: Span::new(hidden, hidden_len),
            workspace: self.plan.workspace(workspace, chunk, self.plan.prefill).0,
            regions,
        })
    }

    /// Queues the copies of a group's cold experts into its region, once the region's last user is done.
    fn stage(
        &mut self,
        group: &mut Group,
        memory: &Borrowed,
        index: usize,
        released: &mut [Option<Event>],
    ) -> Result<(), EngineError> {
        let (Some(bank), false) = (self.plan.bank, memory.regions.is_empty()) else { return Ok(()) };
        let slot = index % memory.regions.len();
        if let Some(event) = released[slot].take() {
            self.device.wait(Stream::Copy, event)?;
        }
        let mut place = 0usize;
        for (offset, table) in group.tables.iter_mut().enumerate() {
            let moe_layer = group.first_moe + offset;
            let mut expert = 0;
            while expert < table.len() {
                let run = table[expert..].iter().take_while(|&&address| address == EXPERT_ABSENT).count();
                if run == 0 {
                    expert += 1;
                    continue;
                }
                // Neighbours in the bank are neighbours in the region: one copy.
                let to = memory.regions[slot].part(place, run * bank.expert.bytes)?;
                self.device.copy_from_bank(&self.bank, bank.range(moe_layer, expert, run), to)?;
                for (step, address) in table[expert..expert + run].iter_mut().enumerate() {
                    *address = to.address() + (step * bank.expert.bytes) as u64;
                }
                place += run * bank.expert.bytes;
                expert += run;
            }
        }
        group.staged = Some(self.device.record(Stream::Copy)?);
        Ok(())
    }

    fn chunk_through(
        &mut self,
        group: &Group,
        tokens: &[u32],
        chunk: Range<usize>,
        memory: &Borrowed,
    ) -> Result<(), EngineError> {
        let (spec, tracer) = (self.spec.clone(), self.tracer.clone());
        let first_position = self.position + chunk.start;
        let x = memory.hidden.part(chunk.start * spec.hidden_size, chunk.len() * spec.hidden_size)?;
        if group.layers.start == 0 {
            self.embed(&tokens[chunk.clone()], first_position, memory.workspace.ids, x)?;
        }
        let mut moe_layers = 0;
        for index in group.layers.clone() {
            self.await_rows(index)?;
            let workspace = (&memory.workspace, self.plan.prefill);
            let pass = self.pass(index, (&spec, tracer.as_deref()), workspace, x, first_position);
            pass.attention(&mut self.device)?;
            match (&spec.layers[index].ffn, &pass.weights.ffn, &self.plan.bank) {
                (FfnSpec::Moe(moe), FfnWeights::Moe(weights), Some(bank)) => {
                    let bank: BankMap = *bank;
                    pass.route(&mut self.device, moe, weights)?;
                    self.observe(group.first_moe + moe_layers, pass.routes(moe)?)?;
                    let addresses = Addresses::Table(&group.tables[moe_layers]);
                    pass.experts(&mut self.device, moe, weights, &bank, addresses)?;
                    moe_layers += 1;
                }
                (_, FfnWeights::Dense(mlp), _) => pass.dense(&mut self.device, mlp)?,
                (_, FfnWeights::Moe(_), _) => {}
            }
        }
        Ok(())
    }

    fn observe(&mut self, moe_layer: usize, routes: Span<u32>) -> Result<(), EngineError> {
        if self.observed.is_none() {
            return Ok(());
        }
        let mut ids = vec![0u32; routes.len()];
        self.device.download(routes.as_bytes(), bytemuck::cast_slice_mut(&mut ids))?;
        self.count_routes(moe_layer, &ids);
        Ok(())
    }

    /// Head over every position, a few rows at a time. After a retry, positions that were handed over are not handed over again.
    fn all_logits(
        &mut self,
        tokens: usize,
        memory: &Borrowed,
        each: &mut EachLogits<'_>,
        emitted: &mut usize,
    ) -> Result<(), EngineError> {
        let (hidden_size, vocab_size) = (self.spec.hidden_size, self.spec.vocab_size);
        let rows_at_once = LOGITS_ROWS.min(memory.workspace.tokens);
        let mut logits = vec![0f32; rows_at_once * vocab_size];
        while *emitted < tokens {
            let rows = rows_at_once.min(tokens - *emitted);
            let x = memory.hidden.part(*emitted * hidden_size, rows * hidden_size)?;
            let at = Tokens { first_position: self.position + *emitted, count: rows };
            let span = self.head(x, at, &memory.workspace)?;
            let values = &mut logits[..rows * vocab_size];
            self.device.download(span.as_bytes(), bytemuck::cast_slice_mut(values))?;
            for row in values.chunks_exact(vocab_size) {
                each(self.position + *emitted, row)?;
                *emitted += 1;
            }
        }
        Ok(())
    }
}
