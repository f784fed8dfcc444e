//! What Prometheus is told.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use assay_engine::session::{Pending, Turn};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Upper bounds of time to first token and of waiting, in seconds.
const LONG_BUCKETS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];

/// How many requests ended in what way.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    /// The route, never a path that a client made up.
    route: &'static str,
    status: u16,
}

/// Counters of one server.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<Answer, Counter>,
    prompt_tokens: Counter,
    reused_tokens: Counter,
    restored_bytes: Counter,
    saved_bytes: Counter,
    unsaved: Counter,
    generated_tokens: Counter,
    cancelled: Counter,
    planted: Counter,
    waiting: Gauge<i64, AtomicI64>,
    running: Gauge<i64, AtomicI64>,
    prefill_s: Histogram,
    queue_s: Histogram,
    first_token_s: Histogram,
    /// Of the token before, in nanoseconds since the server started; there is one worker.
    started: Instant,
    last_token: AtomicU64,
    between_tokens_s: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("assay");
        let long = || Histogram::new(LONG_BUCKETS);
        let short = Histogram::new([0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0]);
        let metrics = Self {
            requests: Family::default(),
            prompt_tokens: Counter::default(),
            reused_tokens: Counter::default(),
            restored_bytes: Counter::default(),
            saved_bytes: Counter::default(),
            unsaved: Counter::default(),
            generated_tokens: Counter::default(),
            cancelled: Counter::default(),
            planted: Counter::default(),
            waiting: Gauge::default(),
            running: Gauge::default(),
            prefill_s: long(),
            queue_s: long(),
            first_token_s: long(),
            started: Instant::now(),
            last_token: AtomicU64::new(0),
            between_tokens_s: short,
            registry: Registry::default(),
        };
        registry.register("requests", "Requests by route and status", metrics.requests.clone());
        registry.register("prompt_tokens", "Tokens of prompts", metrics.prompt_tokens.clone());
        registry.register(
            "reused_prompt_tokens",
            "Tokens of prompts whose state was reused",
            metrics.reused_tokens.clone(),
        );
        registry.register("restored_bytes", "Bytes of state copied to the device", metrics.restored_bytes.clone());
        registry.register("saved_bytes", "Bytes of state copied to host memory", metrics.saved_bytes.clone());
        registry.register("unsaved_requests", "Requests whose state could not be copied", metrics.unsaved.clone());
        registry.register("generated_tokens", "Tokens of answers", metrics.generated_tokens.clone());
        registry.register("cancelled_requests", "Requests whose client went away", metrics.cancelled.clone());
        registry.register("planted_faults", "Planted faults that a request has met", metrics.planted.clone());
        registry.register("waiting_requests", "Requests in the queue", metrics.waiting.clone());
        registry.register("running_requests", "Requests that the engine is at", metrics.running.clone());
        registry.register("prefill_seconds", "Time of prefill", metrics.prefill_s.clone());
        registry.register("queue_seconds", "Time in the queue", metrics.queue_s.clone());
        registry.register("first_token_seconds", "From request to first token", metrics.first_token_s.clone());
        registry.register("between_tokens_seconds", "From token to token", metrics.between_tokens_s.clone());
        Self { registry, ..metrics }
    }
}

impl Metrics {
    pub(crate) fn answered(&self, route: &'static str, status: u16) {
        self.requests.get_or_create(&Answer { route, status }).inc();
    }

    pub(crate) fn running(&self, requests: i64) {
        self.running.set(requests);
    }

    pub(crate) fn cancelled(&self) {
        self.cancelled.inc();
    }

    pub(crate) fn fault_struck(&self) {
        self.planted.inc();
    }

    pub(crate) fn prefilled(&self, turn: &Turn, queued: Duration, prefill: Duration) {
        self.prompt_tokens.inc_by(turn.tokens().len() as u64);
        self.reused_tokens.inc_by(turn.reused as u64);
        self.restored_bytes.inc_by(turn.restored_bytes);
        self.queue_s.observe(queued.as_secs_f64());
        self.prefill_s.observe(prefill.as_secs_f64());
    }

    pub(crate) fn saved(&self, pending: &Pending) {
        self.saved_bytes.inc_by(pending.saved_bytes);
    }

    pub(crate) fn not_saved(&self) {
        self.unsaved.inc();
    }

    /// Step `step` of a request that came at `queued` has given a token.
    pub(crate) fn token(&self, queued: Instant, step: usize) {
        self.generated_tokens.inc();
        let now = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let before = self.last_token.swap(now, Ordering::Relaxed);
        match step {
            0 => self.first_token_s.observe(queued.elapsed().as_secs_f64()),
            _ => self.between_tokens_s.observe(Duration::from_nanos(now - before.min(now)).as_secs_f64()),
        }
    }

    /// In Prometheus' text form.
    pub(crate) fn text(&self, waiting: usize) -> String {
        self.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
        let mut text = String::new();
        // Writing to a string cannot fail.
        encode(&mut text, &self.registry).unwrap_or_default();
        text
    }
}
