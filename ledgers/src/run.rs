//! Tokens that keep instrumented runs out of speed rows.
//!
//! A command takes one token for one run and hands `&Run<T>` to whatever builds the engine: [`Run::is_instrumented`]
//! says whether timing instrumentation goes in. The same token is then spent on the record, and
//! [`crate::Draft::speed`] takes a `Run<TimingOff>` only. A run can become instrumented, never the reverse.
//!
//! ```
//! # use assay_ledgers::{Draft, Identity, Run, SpeedBody};
//! fn record(identity: Identity, body: SpeedBody) -> Draft {
//!     Draft::speed(Run::timing_off(), identity, body)
//! }
//! ```
//!
//! An instrumented run does not compile:
//!
//! ```compile_fail,E0308
//! # use assay_ledgers::{Draft, Identity, Run, SpeedBody};
//! fn record(identity: Identity, body: SpeedBody) -> Draft {
//!     Draft::speed(Run::timing_on(), identity, body)
//! }
//! ```
//!
//! neither does a run that became instrumented on the way:
//!
//! ```compile_fail,E0308
//! # use assay_ledgers::{Draft, Identity, Run, SpeedBody};
//! fn record(identity: Identity, body: SpeedBody) -> Draft {
//!     Draft::speed(Run::timing_off().instrument(), identity, body)
//! }
//! ```
//!
//! it is no comparison of speeds either:
//!
//! ```
//! # use assay_ledgers::{ComparisonBody, Draft, Identity, Run};
//! fn record(identity: Identity, body: ComparisonBody) -> Draft {
//!     Draft::comparison(Run::timing_off(), identity, body)
//! }
//! ```
//!
//! ```compile_fail,E0308
//! # use assay_ledgers::{ComparisonBody, Draft, Identity, Run};
//! fn record(identity: Identity, body: ComparisonBody) -> Draft {
//!     Draft::comparison(Run::timing_on(), identity, body)
//! }
//! ```
//!
//! and one token is one record:
//!
//! ```compile_fail,E0382
//! # use assay_ledgers::{Draft, Identity, Run, SpeedBody};
//! fn records(identity: Identity, body: SpeedBody) -> [Draft; 2] {
//!     let run = Run::timing_off();
//!     [Draft::speed(run, identity.clone(), body.clone()), Draft::speed(run, identity, body)]
//! }
//! ```

use std::marker::PhantomData;

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::TimingOff {}
    impl Sealed for super::TimingOn {}
}

/// Whether timing instrumentation is in a run.
pub trait Timing: sealed::Sealed {
    /// True if it is.
    const INSTRUMENTED: bool;
}

/// No timing instrumentation.
#[derive(Debug)]
pub enum TimingOff {}

/// Timing instrumentation.
#[derive(Debug)]
pub enum TimingOn {}

impl Timing for TimingOff {
    const INSTRUMENTED: bool = false;
}

impl Timing for TimingOn {
    const INSTRUMENTED: bool = true;
}

/// One run. It can be neither copied nor cloned: a record spends it.
#[derive(Debug)]
pub struct Run<T: Timing>(PhantomData<T>);

impl Run<TimingOff> {
    /// Begins a run without timing instrumentation.
    pub const fn timing_off() -> Self {
        Self(PhantomData)
    }

    /// Puts instrumentation in. There is no way back.
    pub const fn instrument(self) -> Run<TimingOn> {
        Run(PhantomData)
    }
}

impl Run<TimingOn> {
    /// Begins a run with timing instrumentation.
    pub const fn timing_on() -> Self {
        Self(PhantomData)
    }
}

impl<T: Timing> Run<T> {
    /// What the engine asks when it is built.
    pub const fn is_instrumented(&self) -> bool {
        T::INSTRUMENTED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_say_what_they_are() {
        assert!(!Run::timing_off().is_instrumented());
        assert!(Run::timing_on().is_instrumented());
        assert!(Run::timing_off().instrument().is_instrumented());
    }
}
