//! Bad input through the command line: every kind of file that Assay reads, damaged in every way that matters.
//!
//! A case breaks one file of a small place of its own and runs one command there, in bounded memory. It must end with the
//! documented exit code and a message that names the file; what the message says is kept as a snapshot, to be read by whoever
//! changes it. `place.rs` makes the places, `table.rs` checks a case, the other files are the cases.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cache;
mod checkpoint;
mod config_json;
mod corpus;
mod disk;
mod fidelity;
mod heatmap;
mod ledger;
mod place;
mod table;
mod tokenizer;
mod toml_files;
mod trace;
mod weights;
mod witness;
