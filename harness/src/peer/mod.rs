//! Other programs on the same machine, with the same weights, inside the same memory: what Assay is compared with.
//!
//! - [`build`]: llama-bench out of a llama.cpp source tree
//! - [`bench`]: one run of it
//! - [`memory`]: what a process takes of the card while it runs
//! - [`search`]: the peer's best setting inside a budget

pub mod bench;
pub mod build;
pub mod memory;
pub mod search;

pub use bench::{LlamaBench, Row, Setting, Workload};
pub use memory::CardWatch;
