//! Everything that is written down, as serde structs that refuse unknown fields.
//!
//! A field that does not apply is absent, never null: a field added later leaves the hash of every older identity as it
//! was. Byte counts are integers up to 2^53 (JSON's exact range); a seed, which may use all 64 bits, is a decimal string.
//! Changing the meaning of a field, or removing one, needs a new [`FORMAT_VERSION`].
//!
//! Files: `identity.rs` what ran, `record.rs` the record around a result, `body.rs` the results, `verdict.rs` judgements.

mod body;
mod identity;
mod record;
mod verdict;

pub use body::*;
pub use identity::*;
pub use record::*;
pub use verdict::*;

/// Version of the record format that this build writes, and the newest that it reads.
pub const FORMAT_VERSION: u32 = 1;
