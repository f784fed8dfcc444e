//! The line of waiting jobs: first come, first served, of a stated length.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::Job;

/// Why a job was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// As many are waiting as may.
    Full {
        /// How many.
        waiting: usize,
    },
    /// The worker is gone, or going.
    Closed,
}

/// Jobs that wait for the worker.
#[derive(Debug)]
pub struct Queue {
    length: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<Job>,
    closed: bool,
}

impl Queue {
    /// An empty queue in which at most `length` jobs wait.
    pub fn new(length: usize) -> Self {
        let state = State { waiting: VecDeque::new(), closed: false };
        Self { length, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts jobs at the end, all or none. Places of jobs that nobody waits for any more are free.
    ///
    /// # Errors
    /// When they do not fit, or the queue is closed.
    pub fn push(&self, jobs: Vec<Job>) -> Result<(), Refused> {
        let mut state = self.state();
        if state.closed {
            return Err(Refused::Closed);
        }
        if state.waiting.len() + jobs.len() > self.length {
            state.waiting.retain(|job| !job.is_cancelled());
        }
        if state.waiting.len() + jobs.len() > self.length {
            return Err(Refused::Full { waiting: state.waiting.len() });
        }
        state.waiting.extend(jobs);
        self.changed.notify_one();
        Ok(())
    }

    /// The next job; waits for one. `None` once the queue is closed and empty.
    pub fn pop(&self) -> Option<Job> {
        let mut state = self.state();
        loop {
            if let Some(job) = state.waiting.pop_front() {
                return Some(job);
            }
            if state.closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes no more jobs; those that wait are still served.
    pub fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    /// Whether it takes no more.
    pub fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Drops every job that waits: whoever listens hears that it ended.
    pub fn clear(&self) {
        self.state().waiting.clear();
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.state().waiting.len()
    }
}
