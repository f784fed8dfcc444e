//! A record on its way into a ledger.
//!
//! [`crate::Ledger::append`] takes a [`Draft`] and nothing else, and a draft is made here and nowhere else (it cannot be
//! deserialised), so these constructors are the whole of what a ledger can be given. A speed body has no way around
//! [`Draft::speed`]:
//!
//! ```
//! # use assay_ledgers::{CheckBody, Draft, EvidenceClass, Identity, SpeedBody};
//! fn record(identity: Identity, body: CheckBody) -> Draft {
//!     Draft::new(EvidenceClass::Functional, identity, body)
//! }
//! ```
//!
//! ```compile_fail,E0277
//! # use assay_ledgers::{CheckBody, Draft, EvidenceClass, Identity, SpeedBody};
//! fn record(identity: Identity, body: SpeedBody) -> Draft {
//!     Draft::new(EvidenceClass::Functional, identity, body)
//! }
//! ```

use crate::run::{Run, TimingOff};
use crate::schema::{
    Body, CheckBody, ComparisonBody, DecisionBody, DeterminismBody, EquivalenceBody, EvidenceClass, ExternalBody,
    FidelityBody, Identity, InvalidationBody, LogRef, MemoryBody, Observations, PerplexityBody, RooflineBody,
    SpeedBody, TaskBody, VerdictRow,
};

mod sealed {
    pub trait Sealed {}
}

/// A result in which no time of an engine is measured.
pub trait Untimed: sealed::Sealed + Into<Body> {}

macro_rules! untimed {
    ($($body:ident => $kind:ident),* $(,)?) => {$(
        impl sealed::Sealed for $body {}
        impl Untimed for $body {}
        impl From<$body> for Body {
            fn from(body: $body) -> Self {
                Self::$kind(body)
            }
        }
    )*};
}

untimed! {
    PerplexityBody => Perplexity,
    FidelityBody => Fidelity,
    EquivalenceBody => Equivalence,
    DeterminismBody => Determinism,
    MemoryBody => Memory,
    RooflineBody => Roofline,
    TaskBody => Task,
    ExternalBody => External,
    CheckBody => Check,
    DecisionBody => Decision,
    InvalidationBody => Invalidation,
}

/// A result that may stand without an identity: see [`Body::may_lack_identity`].
pub trait Unidentified: Untimed {}

impl Unidentified for RooflineBody {}
impl Unidentified for TaskBody {}
impl Unidentified for ExternalBody {}
impl Unidentified for DecisionBody {}
impl Unidentified for InvalidationBody {}

/// A record without its links: see the module's documentation.
#[derive(Debug, PartialEq)]
pub struct Draft {
    pub(crate) evidence_class: EvidenceClass,
    pub(crate) body: Body,
    pub(crate) identity: Option<Identity>,
    pub(crate) observations: Observations,
    pub(crate) verdicts: Vec<VerdictRow>,
    pub(crate) command: Vec<String>,
    pub(crate) logs: Vec<LogRef>,
}

impl Draft {
    /// A speed result of a run without timing instrumentation. Its class is `current_benchmark` until
    /// [`Draft::class`] says otherwise, so it needs a raw log.
    pub fn speed(_run: Run<TimingOff>, identity: Identity, body: SpeedBody) -> Self {
        Self::with_body(EvidenceClass::CurrentBenchmark, Some(identity), Body::Speed(body))
    }

    /// A comparison of speeds, each of runs without timing instrumentation. `identity` is that of `body.b`; the class is as
    /// in [`Draft::speed`].
    pub fn comparison(_run: Run<TimingOff>, identity: Identity, body: ComparisonBody) -> Self {
        Self::with_body(EvidenceClass::CurrentBenchmark, Some(identity), Body::Comparison(body))
    }

    /// Any other result.
    pub fn new(evidence_class: EvidenceClass, identity: Identity, body: impl Untimed) -> Self {
        Self::with_body(evidence_class, Some(identity), body.into())
    }

    /// A result of something that this project did not run, or that is about other records.
    pub fn without_identity(evidence_class: EvidenceClass, body: impl Unidentified) -> Self {
        Self::with_body(evidence_class, None, body.into())
    }

    fn with_body(evidence_class: EvidenceClass, identity: Option<Identity>, body: Body) -> Self {
        Self {
            evidence_class,
            body,
            identity,
            observations: Observations::default(),
            verdicts: Vec::new(),
            command: Vec::new(),
            logs: Vec::new(),
        }
    }

    /// Sets the evidence class.
    #[must_use]
    pub fn class(mut self, evidence_class: EvidenceClass) -> Self {
        self.evidence_class = evidence_class;
        self
    }

    /// Sets what was seen beside the result.
    #[must_use]
    pub fn observations(mut self, observations: Observations) -> Self {
        self.observations = observations;
        self
    }

    /// Sets the judgements.
    #[must_use]
    pub fn verdicts(mut self, verdicts: Vec<VerdictRow>) -> Self {
        self.verdicts = verdicts;
        self
    }

    /// Sets the command line, one argument an element.
    #[must_use]
    pub fn command(mut self, command: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.command = command.into_iter().map(Into::into).collect();
        self
    }

    /// Adds a raw log that [`crate::Ledger::store_log`] has stored.
    #[must_use]
    pub fn log(mut self, log: LogRef) -> Self {
        self.logs.push(log);
        self
    }
}
