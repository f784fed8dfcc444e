//! Traces of an engine: see [`crate::trace`].

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use super::Engine;
use crate::device::Device;
use crate::error::EngineError;
use crate::trace::{Phase, Selection, TraceTotals, Tracer};

impl<D: Device> Engine<D> {
    /// Writes every chosen event from here to [`Engine::finish_trace`] into `sink`. `fields` is what the caller knows of the run, by
    /// dotted names; what the engine knows is added under `engine.`.
    ///
    /// # Errors
    /// A trace under way; a sink that refuses the first line.
    pub fn start_trace(
        &mut self,
        sink: Box<dyn Write + Send>,
        selection: Selection,
        fields: BTreeMap<String, String>,
    ) -> Result<(), EngineError> {
        if self.tracer.is_some() {
            return Err(EngineError::Traced);
        }
        let mut contract = fields;
        contract.extend(self.contract());
        self.tracer = Some(Arc::new(Tracer::start(sink, selection, contract)?));
        Ok(())
    }

    /// Writes the last line and lets go of the sink; `None` where there is no trace.
    ///
    /// # Errors
    /// A sink that refuses.
    pub fn finish_trace(&mut self) -> Result<Option<TraceTotals>, EngineError> {
        Ok(self.tracer.take().map(|tracer| tracer.finish()).transpose()?)
    }

    /// Whether a trace is being written: such a run is no measurement of speed.
    pub fn is_traced(&self) -> bool {
        self.tracer.is_some()
    }

    /// What decides values, and what may decide where they are computed.
    fn contract(&self) -> impl Iterator<Item = (String, String)> {
        let (options, spec, precision) = (&self.options, &self.spec, &self.options.precision);
        let fields = [
            ("layers", spec.layers.len().to_string()),
            ("hidden_size", spec.hidden_size.to_string()),
            ("vocab_size", spec.vocab_size.to_string()),
            ("num_experts", self.plan.sizes.num_experts.to_string()),
            ("device", options.device.name().to_owned()),
            ("prefill", options.prefill.name().to_owned()),
            ("decode", crate::device::Arithmetic::Exact.name().to_owned()),
            ("experts", precision.experts.name().to_owned()),
            ("attention", precision.attention.name().to_owned()),
            ("dense", precision.dense.name().to_owned()),
            ("head", precision.head.name().to_owned()),
            ("kv", format!("{:?}", precision.kv).to_lowercase()),
            ("context_tokens", options.context_tokens.to_string()),
            ("chunk", self.chunk.to_string()),
            ("budget_bytes", self.device.budget().to_string()),
            ("policy", options.policy.name().to_owned()),
            ("resident_experts", self.residency.resident().to_string()),
        ];
        fields.into_iter().map(|(name, value)| (format!("engine.{name}"), value))
    }

    pub(super) fn trace_step(&self, phase: Phase, tokens: &[u32]) -> Result<(), EngineError> {
        match &self.tracer {
            None => Ok(()),
            Some(tracer) => Ok(tracer.begin(phase, self.position, tokens)?),
        }
    }

    pub(super) fn trace_retry(&self) -> Result<(), EngineError> {
        match &self.tracer {
            None => Ok(()),
            Some(tracer) => Ok(tracer.retry(self.chunk)?),
        }
    }
}
