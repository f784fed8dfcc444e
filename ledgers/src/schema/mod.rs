//! Everything that is written down, as serde structs that refuse unknown fields.
//!
//! A field that does not apply is absent, never null: a field added later leaves the hash of every older identity as it
//! was. Byte counts are integers up to 2^53 (JSON's exact range); a seed, which may use all 64 bits, is a decimal string.
//! Changing the meaning of a field, or removing one, needs a new [`FORMAT_VERSION`].
//!
//! Files: `identity.rs` what ran, `record.rs` the record around a result, `verdict.rs` judgements; the results: `body.rs` their
//! sum, speed and what is said of records, `quality.rs` answers, `task.rs` agents, `comparison.rs` one beside another,
//! `roofline.rs` what a card allows; `row_key.rs` tells the rows of one result apart; `files.rs` the JSON Schemas in `ledgers/schema/`.
//!
//! Version 2 added kinds of results, records without an identity, and compressed raw logs; it reads version 1.

mod body;
mod comparison;
mod files;
mod identity;
mod quality;
mod record;
mod roofline;
mod row_key;
mod task;
mod verdict;

pub use body::*;
pub use comparison::*;
pub use files::*;
pub use identity::*;
pub use quality::*;
pub use record::*;
pub use roofline::*;
pub use row_key::*;
pub use task::*;
pub use verdict::*;

/// Version of the record format that this build writes, and the newest that it reads.
pub const FORMAT_VERSION: u32 = 2;
