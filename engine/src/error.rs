//! What can go wrong in the engine, apart from reading files.

use crate::checkpoint::CheckpointError;
use crate::device::DeviceError;
use crate::expert_cache::{CacheError, EncodeError};
use crate::model::ModelError;
use crate::sampling::SamplingError;
use crate::synth::SynthError;
use crate::trace::TraceError;

/// An engine error.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The budget is too small for model, context and margin.
    #[error(
        "a budget of {budget} bytes is too small: {needed} bytes are needed \
         ({persistent} for weights, KV cache and decode, {prefill} for prefill in chunks of {min_chunk}, {margin} of margin)"
    )]
    BudgetTooSmall {
        /// The budget given.
        budget: u64,
        /// The least that works.
        needed: u64,
        /// What stays allocated.
        persistent: u64,
        /// What prefill borrows.
        prefill: u64,
        /// The floor of free memory.
        margin: u64,
        /// The chunk that `prefill` is for.
        min_chunk: usize,
    },
    /// A size that does not fit the address space.
    #[error("{what} would take more bytes than can be addressed")]
    TooLarge {
        /// What.
        what: &'static str,
    },
    /// MoE layers of different shapes.
    #[error("layer {layer} has {}, expected {} as in the largest layer", experts_words(found), experts_words(expected))]
    UnevenExperts {
        /// The layer.
        layer: usize,
        /// Experts, width and whether there are biases there.
        found: (usize, usize, bool),
        /// Largest of each.
        expected: (usize, usize, bool),
    },
    /// The host bank is not this model's.
    #[error("the expert bank has {found} bytes, expected {expected}")]
    Bank {
        /// Its size.
        found: usize,
        /// The size that the model needs.
        expected: usize,
    },
    /// More tokens than the context holds.
    #[error("{tokens} tokens after {position} exceed the context of {context} tokens")]
    ContextFull {
        /// Tokens that were to be added.
        tokens: usize,
        /// Tokens already there.
        position: usize,
        /// The context.
        context: usize,
    },
    /// Nothing to do.
    #[error("an empty prompt: at least one token is needed")]
    EmptyPrompt,
    /// A token that the model does not know.
    #[error("token id {id} at index {index}: the vocabulary has {vocab_size}")]
    TokenId {
        /// The id.
        id: u32,
        /// Where in the prompt.
        index: usize,
        /// Ids below this exist.
        vocab_size: usize,
    },
    /// An option that makes no sense.
    #[error("{option} is {found}, expected {expected}")]
    Option {
        /// Its name.
        option: &'static str,
        /// Its value.
        found: String,
        /// What would do.
        expected: &'static str,
    },
    /// More cold experts in one layer than landing slots.
    #[error("layer {layer} has more cold experts than the {slots} landing slots")]
    Landing {
        /// The layer among those with experts.
        layer: usize,
        /// Slots there are.
        slots: usize,
    },
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// No token could be chosen.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The device's words.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The checkpoint's.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The model description's.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The expert cache's.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A synthetic model's.
    #[error(transparent)]
    Synthetic(#[from] SynthError),
    /// A trace's.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A trace is being written already.
    #[error("a trace is being written already: it must be finished before another is started")]
    Traced,
    /// No memory for the experts.
    #[error("cannot map {bytes} bytes of host memory for the experts: {source}")]
    HostMemory {
        /// Size asked for.
        bytes: usize,
        /// The system's words.
        source: std::io::Error,
    },
    /// An encoder's.
    #[error("encoding {tensor}: {source}")]
    Encode {
        /// The tensor.
        tensor: String,
        /// Why.
        source: EncodeError,
    },
}

fn experts_words((count, width, biases): &(usize, usize, bool)) -> String {
    format!("{count} experts of width {width} with{} biases", if *biases { "" } else { "out" })
}
