//! The `assay` command line: it runs suites on the engine, judges what comes out and keeps the evidence.
//!
//! - `cli.rs`: commands and global flags; `commands/`: one file a command; `exit.rs`: exit codes; `output.rs`: answers on
//!   stdout; `progress.rs`: bars and lines on stderr; `interrupt.rs`: Ctrl-C.
//! - `repository.rs`: where files are found; `config/`: what is run; `suite/`: which measurements; `corpus/`: pinned texts,
//!   and prompts of exact length out of them.
//! - `runtime/`: from a config to a loaded engine and its identity; `speed/`, `perplexity/`, `checkpoint_check.rs`,
//!   `reference_test.rs`, `session_equivalence/`, `session_benchmark/`: what is measured; `compare/`: two of them in turns;
//!   `synth.rs`: synthetic models; `peer/`: other programs on the same machine; `evidence.rs`: from a finished run to a record;
//!   `claims.rs`: where we stand on the white paper's claims; `schema.rs`: JSON Schemas of files.
//! - `adq/`: development tasks, agents, sandboxes, grades.
//! - `tracing.rs`, `trace_diff/`: what every launch of a request read and wrote, and where two such traces part.
//! - `fidelity/`: how far a config's distributions are from a stored baseline's.
//! - `statistics.rs`: medians, ratios and their intervals; `windows.rs`: perplexity windows.

pub mod adq;
pub mod checkpoint_check;
pub mod claims;
pub mod cli;
pub mod commands;
pub mod compare;
pub mod config;
pub mod corpus;
pub mod evidence;
pub mod exit;
pub mod fidelity;
pub mod interrupt;
pub mod ledger_place;
pub mod output;
pub mod peer;
pub mod perplexity;
pub mod progress;
pub mod reference_test;
pub mod repository;
pub mod runtime;
pub mod schema;
pub mod session_benchmark;
pub mod session_equivalence;
pub mod speed;
pub mod statistics;
pub mod suite;
pub mod synth;
pub mod trace_diff;
pub mod tracing;
pub mod windows;

pub use cli::run;
