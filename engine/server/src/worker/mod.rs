//! The one thread that owns the engine, and the jobs that it takes from a queue.
//!
//! A job's events go through a channel without a bound: a slow reader must not hold the engine up, and a job has at most as many
//! events as the context has tokens. A job ends early, before the next token, once its [`Cancel`] is set or its listener gone.

mod queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use assay_engine::device::Device;
use assay_engine::sampling::Sampling;
use assay_engine::sampling::logprobs::StepLogprobs;
use assay_engine::{Engine, EngineError};
use tokio::sync::mpsc::UnboundedSender;

pub use queue::{Queue, Refused};

use crate::metrics::Metrics;

/// A flag that ends a job.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Ends the job before its next token.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// One sequence to generate.
#[derive(Debug)]
pub struct Job {
    /// Which choice of its request it is; goes back with every event.
    pub index: usize,
    /// The prompt.
    pub tokens: Vec<u32>,
    /// Most tokens to generate; 0 scores the prompt alone.
    pub max_tokens: usize,
    /// How a token is chosen.
    pub sampling: Sampling,
    /// Tokens that end the answer; they are no part of it.
    pub end_ids: Arc<[u32]>,
    /// How many of the likeliest tokens are reported for each token; `None` for no log-probabilities.
    pub logprobs: Option<usize>,
    /// Whether the prompt's tokens get log-probabilities too.
    pub prompt_logprobs: bool,
    /// Ends it.
    pub cancel: Cancel,
    /// Who listens.
    pub events: UnboundedSender<(usize, Event)>,
    /// When the request was taken.
    pub queued: Instant,
}

/// What a job's listener hears, in this order: `Prompt` once, `Token`s, `End` or `Failed`.
#[derive(Debug)]
pub enum Event {
    /// The prompt is processed.
    Prompt {
        /// Tokens whose state was reused.
        cached: usize,
        /// Of each prompt token but the first, where asked for.
        logprobs: Vec<StepLogprobs>,
    },
    /// A token of the answer.
    Token {
        /// Its id.
        id: u32,
        /// Of its step, where asked for.
        logprobs: Option<StepLogprobs>,
    },
    /// The end.
    End(End),
    /// The engine failed.
    Failed(Arc<EngineError>),
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The model wrote this end token.
    Token(u32),
    /// It is as long as it may be.
    Length,
    /// It was cancelled.
    Cancelled,
}

impl Job {
    /// Whether nobody waits for it.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_set() || self.events.is_closed()
    }

    fn send(&self, event: Event) {
        // A listener that is gone is seen by `is_cancelled`.
        let _gone = self.events.send((self.index, event));
    }
}

/// Serves jobs until the queue is closed and empty. Call it on the thread that may use the engine.
pub fn run<D: Device>(engine: &mut Engine<D>, queue: &Queue, metrics: &Metrics) {
    // Should the engine panic, nobody waits for ever.
    let _closed = CloseOnDrop(queue);
    while let Some(job) = queue.pop() {
        let end = if job.is_cancelled() { Ok(End::Cancelled) } else { generate(engine, &job, metrics) };
        match end {
            Ok(end) => job.send(Event::End(end)),
            Err(error) => job.send(Event::Failed(Arc::new(error))),
        }
    }
}

struct CloseOnDrop<'a>(&'a Queue);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
        self.0.clear();
    }
}

fn generate<D: Device>(engine: &mut Engine<D>, job: &Job, metrics: &Metrics) -> Result<End, EngineError> {
    let started = Instant::now();
    engine.reset();
    let mut steps = Vec::new();
    let mut chosen = match job.prompt_logprobs {
        false => engine.prefill(&job.tokens)?,
        true => prompt_steps(engine, job, &mut steps)?,
    };
    metrics.prefilled(job.tokens.len(), started.duration_since(job.queued), started.elapsed());
    job.send(Event::Prompt { cached: 0, logprobs: steps });
    for step in 0..job.max_tokens {
        if job.is_cancelled() {
            return Ok(End::Cancelled);
        }
        let mut logprobs = None;
        if !job.sampling.is_greedy() || job.logprobs.is_some() {
            let logits = engine.last_logits()?;
            if !job.sampling.is_greedy() {
                chosen = job.sampling.choose(&logits, step as u64)?;
            }
            logprobs = job.logprobs.and_then(|count| StepLogprobs::new(&logits, chosen, count));
        }
        if job.end_ids.contains(&chosen) {
            return Ok(End::Token(chosen));
        }
        metrics.token(job.queued, step);
        job.send(Event::Token { id: chosen, logprobs });
        if step + 1 < job.max_tokens {
            chosen = engine.decode(chosen)?;
        }
    }
    Ok(End::Length)
}

/// Prefill with the log-probabilities of every prompt token that has one in front of it.
fn prompt_steps<D: Device>(
    engine: &mut Engine<D>,
    job: &Job,
    steps: &mut Vec<StepLogprobs>,
) -> Result<u32, EngineError> {
    let count = job.logprobs.unwrap_or(0);
    engine.prefill_logits(&job.tokens, 0, &mut |position, logits| {
        let next = job.tokens.get(position + 1);
        steps.extend(next.and_then(|&next| StepLogprobs::new(logits, next, count)));
        Ok(())
    })
}
