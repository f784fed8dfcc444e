//! Where two traces part.
//!
//! Both files are streamed side by side: memory is bounded by a window of events, however long the files are. Events are paired by what
//! they are (step, layer, component, tokens), so that an event which only one side has is passed over and named. A launch is
//! blamed for a difference only if everything it read was equal.
//!
//! - `read.rs`: lines, checked
//! - `pair.rs`: which event of one side belongs to which of the other
//! - `tolerance.rs`: when two tensors are equal, and by how much they differ
//! - `compare.rs`: when two events are equal
//! - `judge.rs`: last match, first difference, what followed

mod compare;
mod judge;
mod pair;
mod read;
mod tolerance;

pub use compare::{Blame, Finding};
pub use judge::{Comparison, ContractDifference, First, Followed, Side, diff};
pub use pair::Site;
pub use read::TraceFileError;
pub use tolerance::{Size, Tolerance, ToleranceError};
