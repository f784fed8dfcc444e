//! What the paths ask of an engine or a server.

use std::path::Path;

/// One request.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The prompt, as token ids.
    pub tokens: &'a [u32],
    /// Tokens of the answer, greedy.
    pub answer: usize,
    /// Whether another tenant sends it.
    pub other_tenant: bool,
    /// Whether earlier state may be reused, and this request's state kept.
    pub cache: bool,
    /// Whether the answer is delivered, so that its state is kept. A server keeps it in any case.
    pub deliver: bool,
    /// Where a trace of what is computed goes, from the continuation's prefill on; for subjects that can write one.
    pub trace: Option<&'a Path>,
}

impl<'a> Request<'a> {
    /// A request that reuses what it can and is delivered.
    pub fn new(tokens: &'a [u32], answer: usize) -> Self {
        Self { tokens, answer, other_tenant: false, cache: true, deliver: true, trace: None }
    }
    /// Full history, computed afresh.
    pub fn fresh(tokens: &'a [u32], answer: usize) -> Self {
        Self { cache: false, deliver: false, ..Self::new(tokens, answer) }
    }
}

/// What stood behind the choice of one token.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row {
    /// Names of the values; empty for complete logits, whose names are the ids.
    pub names: Vec<String>,
    /// F32 logits, or log-probabilities.
    pub values: Vec<f64>,
}

/// An answer.
#[derive(Debug, Clone, Default)]
pub struct Answered {
    /// Its tokens as they are compared: ids, or what a server calls them.
    pub tokens: Vec<String>,
    /// Ids that continue the conversation.
    pub ids: Vec<u32>,
    /// A row a token.
    pub rows: Vec<Row>,
    /// Tokens of the prompt that were not computed again; `None` where the subject does not say.
    pub reused_tokens: Option<u64>,
    /// Bytes copied to the device for that; `None` where the subject does not say.
    pub restored_bytes: Option<u64>,
}

/// Something that answers.
pub trait Subject {
    /// Answers a request.
    ///
    /// # Errors
    /// When it cannot, or the user interrupts.
    fn ask(&mut self, request: &Request<'_>) -> anyhow::Result<Answered>;

    /// Starts to answer a request, and stops in the middle of the answer.
    ///
    /// # Errors
    /// As [`Subject::ask`].
    fn cancel(&mut self, request: &Request<'_>) -> anyhow::Result<()>;

    /// Answers afresh, its prompt computed in two pieces, the first of `first` tokens; `None` where that cannot be asked for.
    ///
    /// # Errors
    /// As [`Subject::ask`].
    fn in_two_pieces(&mut self, request: &Request<'_>, first: usize) -> anyhow::Result<Option<Answered>>;

    /// Forgets all kept state, and keeps no more than `tokens` tokens' from now on (`None`: as many as it would); whether it
    /// could.
    fn limit(&mut self, tokens: Option<usize>) -> bool;

    /// Whether the state of every request is kept, delivered or not: each path then needs a message of its own.
    fn keeps_all(&self) -> bool;
}
