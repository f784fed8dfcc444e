//! Locks and flags, in this crate's own tests those of a model checker.

#[cfg(not(test))]
pub(super) use std::sync::Mutex;
#[cfg(not(test))]
pub(super) use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(test)]
pub(super) use loom::sync::Mutex;
#[cfg(test)]
pub(super) use loom::sync::atomic::{AtomicBool, Ordering};
