//! The ledger on disk: the crate's documentation draws it.
//!
//! Files: `line.rs` one record as one line, `form.rs` whether a line is canonical, `head.rs` where a chain ends, `append.rs` adding to it, `logs.rs` raw logs,
//! `read.rs` streaming it, `chain.rs` and `verify.rs` judging it, `publish.rs` copying out of it, `import.rs` taking another machine's in,
//! `invalidate.rs` records that say why an earlier one no longer counts.

mod append;
mod chain;
mod form;
mod head;
mod import;
mod invalidate;
mod line;
mod logs;
mod publish;
mod read;
mod verify;

pub use append::{Appended, Ledger};
pub use import::{ImportedChain, import};
pub use invalidate::{check_counts, invalidations};
pub use publish::{Selection, publish};
pub use read::{Records, heads, read};
pub use verify::{Problem, ProblemKind, VerifyReport, verify, verify_anchored};
