//! The one thread that owns the engine, and the jobs that it takes from a queue.
//!
//! A job's events go through a channel without a bound: a slow reader must not hold the engine up, and a job has at most as many
//! events as the context has tokens. A job ends early, before the next token, once its [`Cancel`] is set or its listener gone.
//! `outgoing` says when the listener is woken.

mod outgoing;
mod queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use assay_engine::device::{Device, FaultPlan};
use assay_engine::sampling::Sampling;
use assay_engine::sampling::logprobs::StepLogprobs;
use assay_engine::session::{Scope, SessionError, Sessions};
use assay_engine::{Engine, EngineError};
use tokio::sync::mpsc::UnboundedSender;

use outgoing::Outgoing;
pub use outgoing::{Events, WAKE_INTERVAL};
pub use queue::{Queue, Refused};

use crate::delivery::Delivery;
use crate::metrics::Metrics;

/// Ends a job from outside, before its next token.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicU8>);

const STOPPED: u8 = 1;
const CANCELLED: u8 = 2;

impl Cancel {
    /// The answer is complete as it is: a stop text was found.
    pub fn stop(&self) {
        self.0.fetch_max(STOPPED, Ordering::Relaxed);
    }

    /// Nobody wants the answer.
    pub fn cancel(&self) {
        self.0.store(CANCELLED, Ordering::Relaxed);
    }

    fn is(&self, state: u8) -> bool {
        self.0.load(Ordering::Relaxed) == state
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
    /// Whose state it may begin from, and leave its own to.
    pub scope: Scope,
    /// Whether it may begin from kept state.
    pub reuse: bool,
    /// Ends it.
    pub cancel: Cancel,
    /// Publishes its state once its answer is delivered.
    pub delivery: Arc<Delivery>,
    /// Who listens.
    pub events: UnboundedSender<Events>,
    /// The least time from one waking of the listener to the next; see [`WAKE_INTERVAL`].
    pub wake_interval: Duration,
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
    Failed(Arc<SessionError>),
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The model wrote this end token.
    Token(u32),
    /// It is as long as it may be.
    Length,
    /// Its listener said that it is complete.
    Stopped,
    /// It was cancelled.
    Cancelled,
}

impl Job {
    /// Whether nobody waits for it.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is(CANCELLED) || self.events.is_closed()
    }

    fn send(&self, event: Event) {
        // A listener that is gone is seen by `is_cancelled`.
        let _gone = self.events.send(Events { index: self.index, events: vec![event] });
    }
}

/// Serves jobs until the queue is closed and empty. Call it on the thread that may use the engine.
pub fn run<D: Device>(
    engine: &mut Engine<D>,
    sessions: &mut Sessions,
    queue: &Queue,
    metrics: &Metrics,
    faults: &[FaultPlan],
) {
    // Should the engine panic, nobody waits for ever.
    let _closed = CloseOnDrop(queue);
    let mut jobs = 0usize;
    while let Some(job) = queue.pop() {
        if job.is_cancelled() {
            job.send(Event::End(End::Cancelled));
            continue;
        }
        metrics.running(1);
        jobs += 1;
        let fault = if jobs.is_multiple_of(2) { faults.get(jobs / 2 - 1) } else { None };
        if let Some(fault) = fault {
            engine.device_mut().plant(*fault);
        }
        if let Err(error) = serve(engine, sessions, &job, metrics) {
            job.send(Event::Failed(Arc::new(error)));
        }
        if fault.is_some() && engine.device_mut().plant(FaultPlan::default()) == Some(FaultPlan::default()) {
            metrics.fault_struck();
        }
        metrics.running(0);
    }
}

struct CloseOnDrop<'a>(&'a Queue);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
        self.0.clear();
    }
}

/// One job, to the end of its answer and the copy of its state.
fn serve<D: Device>(
    engine: &mut Engine<D>,
    sessions: &mut Sessions,
    job: &Job,
    metrics: &Metrics,
) -> Result<(), SessionError> {
    let started = Instant::now();
    // Rows that are reused give no logits, which scoring a prompt needs.
    let most = if job.reuse && !job.prompt_logprobs { job.tokens.len() } else { 0 };
    let turn = sessions.begin(engine, &job.scope, &job.tokens, most)?;
    let mut steps = Vec::new();
    let (cancel, events) = (job.cancel.clone(), job.events.clone());
    engine.set_interrupt(Some(Box::new(move || cancel.is(CANCELLED) || events.is_closed())));
    let prefilled = match job.prompt_logprobs {
        false => engine.prefill(turn.rest()),
        true => prompt_steps(engine, job, &mut steps),
    };
    engine.set_interrupt(None);
    let chosen = match prefilled {
        Err(EngineError::Interrupted) => {
            job.send(Event::End(End::Cancelled));
            return Ok(());
        }
        prefilled => prefilled?,
    };
    metrics.prefilled(&turn, started.duration_since(job.queued), started.elapsed());
    let mut outgoing = Outgoing::new(job);
    outgoing.hold(Event::Prompt { cached: turn.reused, logprobs: steps });
    let end = decode(engine, job, chosen, metrics, &mut outgoing)?;
    // The client need not wait for the copy.
    outgoing.end(end);
    if end == End::Cancelled {
        return Ok(());
    }
    match sessions.finish(engine, turn) {
        Ok(pending) => {
            metrics.saved(&pending);
            job.delivery.saved(pending);
        }
        // The answer is right all the same; the next turn computes what could not be kept.
        Err(_) => metrics.not_saved(),
    }
    Ok(())
}

fn decode<D: Device>(
    engine: &mut Engine<D>,
    job: &Job,
    first: u32,
    metrics: &Metrics,
    outgoing: &mut Outgoing<'_>,
) -> Result<End, EngineError> {
    let mut chosen = first;
    for step in 0..job.max_tokens {
        if job.is_cancelled() {
            return Ok(End::Cancelled);
        }
        if job.cancel.is(STOPPED) {
            return Ok(End::Stopped);
        }
        if step == 0 && !job.sampling.is_greedy() {
            chosen = engine.sample(&job.sampling, 0)?;
        }
        let logprobs = match job.logprobs {
            // The choice is made on the device: logits come back only where they are asked about.
            Some(count) => StepLogprobs::new(&engine.last_logits()?, chosen, count),
            None => None,
        };
        if job.end_ids.contains(&chosen) {
            return Ok(End::Token(chosen));
        }
        metrics.token(job.queued, step);
        outgoing.token(Event::Token { id: chosen, logprobs });
        if step + 1 < job.max_tokens {
            chosen = match job.sampling.is_greedy() && job.logprobs.is_none() {
                // The device goes on while the token is sent.
                true => engine.decode_ahead(chosen, step + 2 < job.max_tokens)?,
                false => engine.decode_sampled(chosen, &job.sampling, step as u64 + 1)?,
            };
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
