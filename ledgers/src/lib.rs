//! Evidence: what ran, what came out, and a ledger in which neither can change unnoticed.
//!
//! Parts:
//! - [`schema`]: every type that is written down: [`Identity`], [`Record`] and its bodies, [`VerdictRow`], [`Head`].
//! - [`identity`]: hashing an identity and naming the fields in which two of them differ.
//! - [`run`]: the tokens that keep instrumented runs out of speed rows.
//! - [`draft`]: a record on its way into a ledger.
//! - [`ledger`]: append, read, verify, publish, import, invalidate.
//!
//! # A ledger on disk
//!
//! ```text
//! <dir>/writer                  this machine's writer id, 16 hex digits (never committed)
//! <dir>/<writer>.jsonl          one record a line, one hash chain
//! <dir>/<writer>.head           count, bytes and hash of that chain, so that a removed tail shows
//! <dir>/<writer>.torn-<n>       bytes of an append that was cut short, moved aside by the next one
//! <dir>/logs/<xx>/<sha256>.zst  raw logs by content, compressed; xx the first two digits
//! ```
//!
//! A line is the RFC 8785 canonical JSON of the record without `hash`, with `"hash"` put in as the last member. `hash`
//! is the SHA-256 of that canonical JSON: take `hash` out, canonicalise, hash, and any tool can check a record.
//! `previous` is the hash of the same writer's record before it. One chain a writer means that two machines' ledgers
//! merge by copying files, which [`import()`] does with every check.

pub mod draft;
mod error;
pub mod hash;
pub mod identity;
pub mod ledger;
pub mod run;
pub mod schema;

pub use draft::{Draft, Unidentified, Untimed};
pub use error::{Error, Result};
pub use hash::Sha256;
pub use identity::{FieldDifference, diff};
pub use ledger::{
    Appended, ImportedChain, Ledger, Problem, ProblemKind, Records, Selection, VerifyReport, check_counts, heads,
    import, invalidations, publish, read, verify, verify_anchored,
};
pub use run::{Run, Timing, TimingOff, TimingOn};
pub use schema::*;
