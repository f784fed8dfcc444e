//! The readers, each with valid files to start from and the promises that it must keep.

mod cache;
mod config;
mod fidelity;
mod heatmap;
mod ledger;
mod lists;
mod requests;
mod safetensors;
mod templates;
mod tiny;
mod tokenizer;
mod tomls;
mod tool_calls;
mod trace;
mod witness;

use std::path::Path;

use crate::random::Random;

/// Changes a part of an input; `true` says that it is JSON or TOML.
pub type Change<'a> = &'a dyn Fn(&mut Random, &mut Vec<u8>, bool);

/// A reader.
#[derive(Debug)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Valid inputs.
    pub seeds: fn() -> anyhow::Result<Vec<Vec<u8>>>,
    /// Writes what the reader needs beside the input, once.
    pub prepare: fn(&Path) -> anyhow::Result<()>,
    /// Changes parts of an input and makes what frames them fit again, most of the time.
    pub change: fn(&mut Random, &mut Vec<u8>, Change<'_>),
    /// Reads an input in the prepared folder. The error is a promise that was broken.
    pub read: fn(&Path, &[u8]) -> Result<Verdict, String>,
    /// Memory that an input may take, for each of its bytes and in addition.
    pub bytes_per_input_byte: usize,
    /// See above.
    pub bytes: usize,
}

/// What a reader said.
#[derive(Debug)]
pub enum Verdict {
    /// It took the input.
    Accepted,
    /// It did not.
    Refused(String),
}

impl Verdict {
    /// Of a result.
    pub(crate) fn of<T, E: std::fmt::Display>(result: Result<T, E>) -> Self {
        match result {
            Ok(_) => Self::Accepted,
            Err(error) => Self::Refused(error.to_string()),
        }
    }
}

/// Every reader.
pub const TARGETS: &[Target] = &[
    safetensors::TARGET,
    config::TARGET,
    tokenizer::TARGET,
    cache::TARGET,
    heatmap::TARGET,
    witness::TARGET,
    ledger::TARGET,
    tomls::TARGET,
    lists::TARGET,
    trace::TARGET,
    fidelity::TARGET,
    requests::TARGET,
    templates::TARGET,
    tool_calls::TARGET,
];

/// Nothing beside the input.
fn nothing(_: &Path) -> anyhow::Result<()> {
    Ok(())
}

/// Changes all of it as a text.
fn as_text(random: &mut Random, input: &mut Vec<u8>, change: Change<'_>) {
    change(random, input, true);
}

/// Writes a file for a reader.
fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    std::fs::write(path, bytes).map_err(|error| format!("the fuzzer cannot write {}: {error}", path.display()))
}

/// A promise.
fn promise(kept: bool, words: &str) -> Result<(), String> {
    if kept { Ok(()) } else { Err(words.to_owned()) }
}
