//! A repository of its own for each test, so that no test writes into the ledger of this one.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

pub(crate) struct Place {
    folder: tempfile::TempDir,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let name = entry.unwrap().file_name();
            copy(&from.join(&name), &to.join(&name));
        }
    } else {
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(from, to).unwrap();
    }
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::with(&[])
    }

    /// One that has these paths of the repository too.
    pub(crate) fn with(paths: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let always = ["fixtures/adq", "fixtures/corpus/manifest.toml", "fixtures/models/tiny-moe/tokenizer.json"];
        for path in always.iter().chain(paths) {
            copy(&root().join(path), &folder.path().join(path));
        }
        Self { folder }
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_assay"));
        command.current_dir(self.folder.path()).args(arguments).stdin(Stdio::null());
        command
    }

    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command that answers in JSON; its exit code and answer.
    pub(crate) fn ask(&self, arguments: &[&str]) -> (i32, Value) {
        let output = self.run(&[arguments, &["--output", "json"]].concat());
        let answer = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{arguments:?}: {error}: {}", String::from_utf8_lossy(&output.stderr)));
        (output.status.code().unwrap(), answer)
    }
}

/// The verdict and the reason of a row.
pub(crate) fn row<'a>(answer: &'a Value, name: &str) -> (&'a str, &'a str) {
    let rows = answer["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["row"] == name).unwrap_or_else(|| panic!("no row {name}: {answer}"));
    (row["verdict"].as_str().unwrap(), row["reason"].as_str().unwrap())
}
