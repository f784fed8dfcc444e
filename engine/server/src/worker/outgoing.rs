//! A job's events on their way to its listener.
//!
//! Waking a thread costs the one that wakes about as much as a fiftieth of a small model's token, and on a machine with few processors the
//! thread that wakes takes one of them from the engine. So tokens that come quickly are handed over together; they stay events of
//! their own, and a client sees a chunk for each.

use std::time::{Duration, Instant};

use super::{End, Event, Job};

/// The least time from one waking of a stream's writer to the next. The first token never waits, and a token that comes later than
/// this after the last one handed over does not either; of those in between each waits for the next token at most.
pub const WAKE_INTERVAL: Duration = Duration::from_millis(1);

/// Events of one job, in their order.
#[derive(Debug)]
pub struct Events {
    /// Which choice of its request the job is.
    pub index: usize,
    /// The events.
    pub events: Vec<Event>,
}

/// Holds events back until the listener is to be woken.
#[derive(Debug)]
pub(super) struct Outgoing<'j> {
    job: &'j Job,
    held: Vec<Event>,
    woken: Option<Instant>,
}

impl<'j> Outgoing<'j> {
    pub(super) fn new(job: &'j Job) -> Self {
        Self { job, held: Vec::new(), woken: None }
    }

    /// An event that goes with the next one.
    pub(super) fn hold(&mut self, event: Event) {
        self.held.push(event);
    }

    pub(super) fn token(&mut self, token: Event) {
        self.held.push(token);
        let now = Instant::now();
        if self.woken.is_none_or(|woken| now.duration_since(woken) >= self.job.wake_interval) {
            self.woken = Some(now);
            self.flush();
        }
    }

    pub(super) fn end(&mut self, end: End) {
        self.held.push(Event::End(end));
        self.flush();
    }

    fn flush(&mut self) {
        let events = std::mem::take(&mut self.held);
        // A listener that is gone is seen by `Job::is_cancelled`.
        let _gone = self.job.events.send(Events { index: self.job.index, events });
    }
}

impl Drop for Outgoing<'_> {
    /// What was computed before a failure is still told.
    fn drop(&mut self) {
        if !self.held.is_empty() {
            self.flush();
        }
    }
}
