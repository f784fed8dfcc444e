//! Traces: what every kernel launch of a request read and wrote, one JSON object a line.
//!
//! A trace belongs to one request. It is started on an engine, each launch that the [`Selection`] names is then written down with
//! a summary of its inputs and outputs, and it is finished. Tensors are downloaded through [`Device::download`] around the
//! launch, so a trace is the same on every device; nothing of an answer changes, not a bit. Without a trace a launch costs one
//! comparison. With one, decode takes the path that is launched kernel by kernel, never a captured graph.
//!
//! A traced run is far slower than another: it is an instrumented run and gives no speed row.
//!
//! - [`component`]: what a launch is for, by the names that checkpoints use
//! - [`event`]: the lines of a trace, to write and to read
//! - `operands`: which tensors a kernel reads and writes
//! - `summary`: a tensor as a hash, extremes, mean, norm and some of its values
//! - [`select`]: which events are written

pub mod component;
pub mod event;
mod operands;
pub mod select;
mod summary;

use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::device::{Device, DeviceError, Kernel, Launch, Span};
use crate::error::EngineError;

pub use component::Component;
pub use event::{
    Contract, End, Event, FORMAT_VERSION, Input, Logits, MAX_LINE_BYTES, Number, Op, Phase, Retry, Routes, Tensor,
    TopLogit,
};
pub use select::{Ranges, SelectError, Selection};
pub use summary::{HASH_DIGITS, MAX_VALUES};

use operands::{Operand, Operands, Stored};

/// Logits that a [`Logits`] event names.
const TOP_LOGITS: usize = 10;

/// Why a trace could not be written.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The sink refused.
    #[error("cannot write the trace: {0}")]
    Io(#[from] std::io::Error),
    /// A value that JSON cannot hold.
    #[error("cannot write an event of the trace: {0}")]
    Json(#[from] serde_json::Error),
}

/// Where a launch stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Absent outside the layers.
    pub(crate) layer: Option<usize>,
    /// What it computes.
    pub(crate) component: Component,
    /// Position of its first token.
    pub(crate) position: usize,
    /// Its tokens.
    pub(crate) tokens: usize,
}

/// What a finished trace came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct TraceTotals {
    /// Lines, the last one included.
    pub events: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A trace being written.
pub(crate) struct Tracer {
    state: Mutex<State>,
}

struct State {
    sink: Box<dyn Write + Send>,
    selection: Selection,
    line: Vec<u8>,
    totals: TraceTotals,
    /// Of the step under way; the first one is 0.
    step: u64,
    steps: u64,
    phase: Phase,
}

impl Tracer {
    /// Writes the first line.
    pub(crate) fn start(
        sink: Box<dyn Write + Send>,
        selection: Selection,
        fields: std::collections::BTreeMap<String, String>,
    ) -> Result<Self, TraceError> {
        let contract = Contract {
            format_version: FORMAT_VERSION,
            fields,
            selection: selection.to_string(),
            values: selection.values as u64,
        };
        let mut state = State {
            sink,
            selection,
            line: Vec::new(),
            totals: TraceTotals { events: 0, bytes: 0 },
            step: 0,
            steps: 0,
            phase: Phase::Prefill,
        };
        state.write(&Event::Contract(contract))?;
        Ok(Self { state: Mutex::new(state) })
    }

    /// Writes the last line.
    pub(crate) fn finish(&self) -> Result<TraceTotals, TraceError> {
        let mut state = self.lock();
        let events = state.totals.events + 1;
        state.write(&Event::End(End { events }))?;
        state.sink.flush()?;
        Ok(state.totals)
    }

    /// A call of prefill or decode begins.
    pub(crate) fn begin(&self, phase: Phase, position: usize, tokens: &[u32]) -> Result<(), TraceError> {
        let mut state = self.lock();
        (state.step, state.phase) = (state.steps, phase);
        state.steps += 1;
        if !state.selection.step(state.step) {
            return Ok(());
        }
        let input = Input { step: state.step, phase, position: position as u64, tokens: tokens.to_vec() };
        state.write(&Event::Input(input))
    }

    /// The step begins again with a smaller chunk.
    pub(crate) fn retry(&self, chunk: usize) -> Result<(), TraceError> {
        let mut state = self.lock();
        let step = state.step;
        if !state.selection.step(step) {
            return Ok(());
        }
        state.write(&Event::Retry(Retry { step, chunk: chunk as u64 }))
    }

    fn launch<D: Device>(&self, device: &mut D, place: Place, kernel: Kernel, how: Launch) -> Result<(), EngineError> {
        let mut state = self.lock();
        if !state.selection.wants(state.step, place.layer, place.component) {
            return Ok(device.launch(kernel, how)?);
        }
        let Operands { inputs, outputs } = operands::of(&kernel, place.tokens)?;
        let values = state.selection.values;
        // Before the launch: a kernel may work in place.
        let inputs = summaries(device, &inputs, values)?;
        device.launch(kernel, how)?;
        let outputs = summaries(device, &outputs, values)?;
        let event = Op {
            step: state.step,
            phase: state.phase,
            layer: place.layer.map(|layer| layer as u64),
            component: place.component.name().into(),
            kernel: kernel.name().into(),
            position: place.position as u64,
            tokens: place.tokens as u64,
            inputs,
            outputs,
        };
        Ok(state.write(&Event::Op(event))?)
    }

    /// The experts of `tokens` tokens and their weights, complete.
    pub(crate) fn routes<D: Device>(
        &self,
        device: &mut D,
        place: Place,
        ids: Span<u32>,
        weights: Span<f32>,
    ) -> Result<(), EngineError> {
        let mut state = self.lock();
        if !state.selection.wants(state.step, place.layer, Component::Routes) {
            return Ok(());
        }
        let mut chosen = vec![0u32; ids.len()];
        device.download(ids.as_bytes(), bytemuck::cast_slice_mut(&mut chosen))?;
        let mut shares = vec![0f32; weights.len()];
        device.download(weights.as_bytes(), bytemuck::cast_slice_mut(&mut shares))?;
        let event = Routes {
            step: state.step,
            phase: state.phase,
            layer: place.layer.unwrap_or(0) as u64,
            position: place.position as u64,
            top_k: (chosen.len() / place.tokens.max(1)) as u64,
            ids: chosen,
            weights: shares.into_iter().map(Number).collect(),
        };
        Ok(state.write(&Event::Routes(event))?)
    }

    /// The largest of one position's logits, and the token that was chosen.
    pub(crate) fn logits(&self, position: usize, logits: &[f32], chosen: u32) -> Result<(), TraceError> {
        let mut state = self.lock();
        if !state.selection.wants(state.step, None, Component::Logits) {
            return Ok(());
        }
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let top = TOP_LOGITS.min(order.len());
        let by_logit = |&a: &u32, &b: &u32| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b));
        if top < order.len() {
            order.select_nth_unstable_by(top, by_logit);
            order.truncate(top);
        }
        order.sort_unstable_by(by_logit);
        let top = order.into_iter().map(|id| TopLogit { id, logit: Number(logits[id as usize]) }).collect();
        let shape = vec![logits.len() as u64];
        let logits = summary::of_f32("logits", shape, logits, state.selection.values);
        let event = Logits { step: state.step, phase: state.phase, position: position as u64, chosen, top, logits };
        state.write(&Event::Logits(event))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A writer that panicked leaves at worst a line that is cut short, which every reader notices.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn write(&mut self, event: &Event<'_>) -> Result<(), TraceError> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, event)?;
        self.line.push(b'\n');
        self.sink.write_all(&self.line)?;
        self.totals.events += 1;
        self.totals.bytes += self.line.len() as u64;
        Ok(())
    }
}

/// Queues a kernel, and writes it down where there is a trace that wants it.
pub(crate) fn launch<D: Device>(
    tracer: Option<&Tracer>,
    device: &mut D,
    place: Place,
    kernel: Kernel,
    how: Launch,
) -> Result<(), EngineError> {
    match tracer {
        None => Ok(device.launch(kernel, how)?),
        Some(tracer) => tracer.launch(device, place, kernel, how),
    }
}

/// Queues kernels that may be done with fewer launches ([`Device::launch_all`]); where there is a trace, one by one.
pub(crate) fn launch_all<D: Device>(
    tracer: Option<&Tracer>,
    device: &mut D,
    place: impl Fn(Component) -> Place,
    steps: &[(Component, Kernel)],
    how: Launch,
) -> Result<(), EngineError> {
    let Some(tracer) = tracer else {
        let kernels: Vec<Kernel> = steps.iter().map(|&(_, kernel)| kernel).collect();
        return Ok(device.launch_all(&kernels, how)?);
    };
    steps.iter().try_for_each(|&(component, kernel)| tracer.launch(device, place(component), kernel, how))
}

fn summaries<D: Device>(
    device: &mut D,
    operands: &[Operand],
    values: usize,
) -> Result<Vec<Tensor<'static>>, DeviceError> {
    operands.iter().map(|operand| summarise(device, operand, values)).collect()
}

fn summarise<D: Device>(device: &mut D, operand: &Operand, values: usize) -> Result<Tensor<'static>, DeviceError> {
    let Operand { name, shape, stored } = operand;
    Ok(match stored {
        Stored::F32(span) => {
            let mut data = vec![0f32; span.len()];
            device.download(span.as_bytes(), bytemuck::cast_slice_mut(&mut data))?;
            summary::of_f32(name, shape.clone(), &data, values)
        }
        Stored::U32(span) => {
            let mut data = vec![0u32; span.len()];
            device.download(span.as_bytes(), bytemuck::cast_slice_mut(&mut data))?;
            summary::of_u32(name, shape.clone(), &data, values)
        }
        Stored::Kv { cache, positions } => {
            let bytes = cache.layout.prefix_bytes(positions.end).unwrap_or(usize::MAX);
            let mut data = vec![0u8; bytes.min(cache.bytes.len())];
            device.download(cache.bytes.first(data.len())?, &mut data)?;
            let rows = cache.layout.rows(&data, positions.clone());
            summary::of_f32(name, shape.clone(), &rows, values)
        }
    })
}
