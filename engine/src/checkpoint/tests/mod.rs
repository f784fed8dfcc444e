#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
//! Tests of checkpoint reading. Broken files are made in temporary folders.

mod files;
mod folders;
mod parts;
mod tokenizer;
mod values;

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{Checkpoint, CheckpointError};
use crate::model::spec::TensorSource;

/// A checkpoint in `fixtures/models`.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models").join(name)
}

/// The bytes of a safetensors file with this header and this data.
fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// A header entry.
fn entry(name: &str, dtype: &str, shape: &[usize], range: (u64, u64)) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{},{}]}}"#, range.0, range.1)
}

/// A checkpoint folder with an empty config and the given files.
fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("config.json"), "{}").unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

/// Opens a folder and expects it to fail; the folder's own path is cut out of the message.
fn open_error(folder: &TempDir) -> String {
    let error: CheckpointError = Checkpoint::open(folder.path()).expect_err("a broken checkpoint was opened");
    error.to_string().replace(&format!("{}/", folder.path().display()), "")
}

fn source(name: &str, shape: &[usize]) -> TensorSource {
    TensorSource { name: name.to_owned(), shape: shape.to_vec(), part: None }
}
