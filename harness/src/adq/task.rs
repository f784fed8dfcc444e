//! A task: a repository, an instruction, tests that the agent sees, and cases that it never does.

use super::history::HistorySpec;
use super::tree::{Tree, TreeError};
use assay_engine::file;
use assay_ledgers::Sha256;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Where the tasks lie, under the repository's root.
pub const FOLDER: &str = "fixtures/adq";
/// The version of `task.toml` that is read.
const FORMAT_VERSION: u32 = 1;
/// The longest file of a task's description, in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// What an agent may be given.
pub const TOOLS: [&str; 6] = ["list_files", "read_file", "write_file", "edit_file", "run_tests", "finish"];
/// Where the tests that an agent sees lie in its repository.
pub const PUBLIC_TESTS: &str = "tests/public";

/// `task.toml`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskFile {
    /// 1.
    pub format_version: u32,
    /// The folder's name.
    pub name: String,
    /// What it is about, for readers.
    pub title: String,
    /// What the agent is told.
    pub instruction: String,
    /// Names of [`TOOLS`].
    pub tools: Vec<String>,
    /// Files and folders that may be read and must not be changed.
    pub protected: Vec<String>,
    /// Files and folders that must not be read either.
    pub forbidden: Vec<String>,
    /// A file that describes a history to be read before the instruction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<String>,
    /// Bounds of an attempt.
    pub limits: AttemptLimits,
}

/// Bounds of an attempt; reaching one ends it, unsolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttemptLimits {
    /// Answers of the model.
    pub turns: u32,
    /// Tokens of one answer.
    pub completion_tokens: u32,
    /// Wall time, seconds.
    pub seconds: u64,
}

/// One assertion: a call, and what must come of it. The call runs in a sandbox; what must come of it never enters one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// What it shows.
    pub name: String,
    /// The module to import.
    pub module: String,
    /// The function in it.
    pub call: String,
    /// Its arguments.
    pub args: Vec<Value>,
    /// The value that it must return, as JSON: 1, 1.0 and true are three values.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub expect: Option<Value>,
    /// The exception that it must raise instead, by its type's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raises: Option<String>,
}

/// `null` is a value to be expected; absent is none.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// An edit of the solution that breaks it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutant {
    /// What is wrong with it.
    pub name: String,
    /// The file that is edited.
    pub file: String,
    /// A text that stands there once.
    pub find: String,
    /// What stands there instead.
    pub replace: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutants {
    #[serde(default)]
    mutant: Vec<Mutant>,
}

/// What sort of work a task of a suite is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kind {
    /// Its name.
    pub name: String,
    /// Whether a model that was trained for the suite has seen none of it.
    pub held_out: bool,
}

/// A task as it lies on disk.
#[derive(Debug, Clone)]
pub struct Task {
    /// `task.toml`.
    pub file: TaskFile,
    /// What sort of work it is, where its suite says.
    pub kind: Option<Kind>,
    /// What the agent is given: the repository with the public tests.
    pub repo: Tree,
    /// What the public tests assert.
    pub public: Vec<Case>,
    /// What the agent never sees.
    pub hidden: Vec<Case>,
    /// The oracle's files.
    pub solution: Tree,
    /// Files that satisfy the public tests alone.
    pub visible: Tree,
    /// Wrong solutions.
    pub mutants: Vec<Mutant>,
    /// The history, where the task has one.
    pub history: Option<HistorySpec>,
    /// SHA-256 over everything above.
    pub digest: Sha256,
}

/// A task that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] file::FileError),
    /// A folder cannot be read.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// A file does not say what it should.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What was expected.
        reason: String,
    },
    /// No task of that name.
    #[error("no task is called {name:?}: there are {}", known.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// No suite of that name.
    #[error("no suite is called {name:?}: a suite is a folder of {FOLDER} with a suite.toml, such as micro")]
    UnknownSuite {
        /// What was asked for.
        name: String,
    },
}

impl Task {
    /// Reads the task in a folder.
    ///
    /// # Errors
    /// When a part is missing or does not fit the others.
    pub fn read(folder: &Path) -> Result<Self, TaskError> {
        let path = folder.join("task.toml");
        let file: TaskFile = toml(&path)?;
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let invalid = |reason: String| TaskError::Invalid { path: path.clone(), reason };
        check_file(&path, &file)?;
        if file.name != name {
            return Err(invalid(format!("name is {:?}, expected the folder's, {name:?}", file.name)));
        }
        let mut repo = Tree::read(&folder.join("repo"))?;
        repo.add_under(PUBLIC_TESTS, &Tree::read(&folder.join(PUBLIC_TESTS))?)?;
        let history = file.history.as_ref().map(|name| HistorySpec::read(&folder.join(name))).transpose()?;
        Ok(Task {
            kind: None,
            public: cases(&folder.join("tests/public/cases.json"))?,
            hidden: cases(&folder.join("tests/hidden/cases.json"))?,
            solution: Tree::read(&folder.join("solution"))?,
            visible: Tree::read(&folder.join("visible"))?,
            mutants: toml::<Mutants>(&folder.join("mutants.toml"))?.mutant,
            digest: Sha256::of_canonical(&Tree::read(folder)?.hashes()).map_err(|error| invalid(error.to_string()))?,
            history,
            repo,
            file,
        })
    }

    /// The tasks of a folder or of a suite, in the order of their names: all of them, or those that are named.
    ///
    /// # Errors
    /// As [`Task::read`]; [`TaskError::Unknown`].
    pub fn read_all(folder: &Path, names: &[String]) -> Result<Vec<Self>, TaskError> {
        let suite = folder.join(super::suite::FILE).is_file();
        let known = if suite { super::suite::names(folder)? } else { Self::folders(folder)? };
        if let Some(name) = names.iter().find(|name| !known.contains(name)) {
            return Err(TaskError::Unknown { name: name.clone(), known });
        }
        let chosen: Vec<String> = known.into_iter().filter(|name| names.is_empty() || names.contains(name)).collect();
        if suite {
            return super::suite::read(folder, &chosen);
        }
        chosen.iter().map(|name| Self::read(&folder.join(name))).collect()
    }

    fn folders(folder: &Path) -> Result<Vec<String>, TaskError> {
        let io = |source| file::FileError::Io { action: "read", path: folder.to_owned(), source };
        let mut known = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(io)? {
            let path = entry.map_err(io)?.path();
            if path.join("task.toml").is_file() {
                known.push(path.file_name().unwrap_or_default().to_string_lossy().into_owned());
            }
        }
        known.sort();
        Ok(known)
    }

    /// The repository with other files in place of its own.
    ///
    /// # Errors
    /// When they do not fit in.
    pub fn repo_with(&self, files: &Tree) -> Result<Tree, TaskError> {
        let mut tree = self.repo.clone();
        tree.overlay(files)?;
        Ok(tree)
    }
}

/// What a task may do.
pub(super) fn check_file(path: &Path, file: &TaskFile) -> Result<(), TaskError> {
    let invalid = |reason: String| TaskError::Invalid { path: path.to_owned(), reason };
    if file.format_version != FORMAT_VERSION {
        return Err(invalid(format!("format_version is {}, expected {FORMAT_VERSION}", file.format_version)));
    }
    if let Some(tool) = file.tools.iter().find(|tool| !TOOLS.contains(&tool.as_str())) {
        return Err(invalid(format!("tools has {tool:?}, expected some of {}", TOOLS.join(", "))));
    }
    if !file.protected.iter().any(|place| place == "tests") {
        return Err(invalid("protected lacks \"tests\": the tests are not the agent's to change".to_owned()));
    }
    Ok(())
}

pub(super) fn toml<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, TaskError> {
    let text = file::read_text(path, MAX_BYTES)?;
    ::toml::from_str(&text).map_err(|error| TaskError::Invalid { path: path.to_owned(), reason: error.to_string() })
}

fn cases(path: &Path) -> Result<Vec<Case>, TaskError> {
    let invalid = |reason: String| TaskError::Invalid { path: path.to_owned(), reason };
    let text = file::read(path, MAX_BYTES)?;
    let cases: Vec<Case> = serde_json::from_slice(&text).map_err(|error| invalid(error.to_string()))?;
    check_cases(path, &cases)?;
    Ok(cases)
}

pub(super) fn check_cases(path: &Path, cases: &[Case]) -> Result<(), TaskError> {
    let invalid = |reason: String| TaskError::Invalid { path: path.to_owned(), reason };
    if cases.is_empty() {
        return Err(invalid("there are no cases, expected one at least".to_owned()));
    }
    for case in cases {
        if case.expect.is_some() == case.raises.is_some() {
            return Err(invalid(format!("case {:?}: expected one of expect and raises", case.name)));
        }
        if cases.iter().filter(|other| other.name == case.name).count() > 1 {
            return Err(invalid(format!("two cases are called {:?}", case.name)));
        }
    }
    Ok(())
}
