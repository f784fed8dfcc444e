//! Suites of small tasks: one file a task, and once for all of them what they share.
//!
//! `fixtures/adq/<suite>/suite.toml` says what tasks may do and how long; `common/` holds the files that every repository has; every other
//! `.toml` is a task. A suite's tasks are run, graded, checked and verified as the tasks of a folder each are.

use super::task::{AttemptLimits, Case, Kind, Mutant, PUBLIC_TESTS, Task, TaskError, TaskFile};
use super::tree::{Tree, TreeError};
use assay_engine::file;
use assay_ledgers::Sha256;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The file that makes a folder a suite.
pub const FILE: &str = "suite.toml";
/// Files of every task's repository.
const COMMON: &str = "common";

/// `suite.toml`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SuiteFile {
    /// 1.
    format_version: u32,
    /// What it is about, for readers.
    title: String,
    /// Where its tasks come from, for readers.
    origin: String,
    tools: Vec<String>,
    protected: Vec<String>,
    forbidden: Vec<String>,
    /// Kinds of task of which a model that was trained for the suite has seen no instance.
    held_out_kinds: Vec<String>,
    limits: AttemptLimits,
}

/// A task's file. Files of a repository are texts by their paths.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SmallTask {
    kind: String,
    instruction: String,
    files: BTreeMap<String, String>,
    solution: BTreeMap<String, String>,
    visible: BTreeMap<String, String>,
    public: Vec<Case>,
    hidden: Vec<Case>,
    mutant: Vec<Mutant>,
}

/// Where a suite's tasks lie, or without one the tasks that have a folder each.
///
/// # Errors
/// [`TaskError::UnknownSuite`].
pub fn folder(fixtures: &Path, suite: Option<&str>) -> Result<PathBuf, TaskError> {
    let Some(name) = suite else { return Ok(fixtures.to_owned()) };
    let plain = name.chars().all(|char| char.is_ascii_alphanumeric() || char == '-' || char == '_');
    let folder = fixtures.join(name);
    if plain && folder.join(FILE).is_file() {
        return Ok(folder);
    }
    Err(TaskError::UnknownSuite { name: name.to_owned() })
}

/// The names of a suite's tasks, sorted.
pub(super) fn names(folder: &Path) -> Result<Vec<String>, TaskError> {
    let io = |source| file::FileError::Io { action: "read", path: folder.to_owned(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let name = entry.map_err(io)?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".toml").filter(|_| name != FILE).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// Reads those tasks of a suite.
pub(super) fn read(folder: &Path, names: &[String]) -> Result<Vec<Task>, TaskError> {
    let path = folder.join(FILE);
    let suite: SuiteFile = super::task::toml(&path)?;
    super::task::check_file(&path, &file_of(&suite, "", "", ""))?;
    let common = Tree::read(&folder.join(COMMON))?;
    names.iter().map(|name| suite.task(&common, folder, name)).collect()
}

fn file_of(suite: &SuiteFile, name: &str, kind: &str, instruction: &str) -> TaskFile {
    TaskFile {
        format_version: suite.format_version,
        name: name.to_owned(),
        title: format!("{}: {kind}", suite.title),
        instruction: instruction.to_owned(),
        tools: suite.tools.clone(),
        protected: suite.protected.clone(),
        forbidden: suite.forbidden.clone(),
        history: None,
        limits: suite.limits,
    }
}

impl SuiteFile {
    fn task(&self, common: &Tree, folder: &Path, name: &str) -> Result<Task, TaskError> {
        let path = folder.join(name).with_extension("toml");
        let invalid = |reason: String| TaskError::Invalid { path: path.clone(), reason };
        let small: SmallTask = super::task::toml(&path)?;
        super::task::check_cases(&path, &small.public)?;
        super::task::check_cases(&path, &small.hidden)?;
        let shown = serde_json::to_vec_pretty(&small.public).map_err(|error| invalid(error.to_string()))?;
        let mut repo = tree(&small.files)?;
        repo.overlay(common)?;
        repo.write(&format!("{PUBLIC_TESTS}/cases.json"), shown)?;
        let digest =
            Sha256::of_canonical(&(self, common.hashes(), &small)).map_err(|error| invalid(error.to_string()))?;
        Ok(Task {
            file: file_of(self, name, &small.kind, &small.instruction),
            kind: Some(Kind { held_out: self.held_out_kinds.contains(&small.kind), name: small.kind }),
            repo,
            solution: tree(&small.solution)?,
            visible: tree(&small.visible)?,
            public: small.public,
            hidden: small.hidden,
            mutants: small.mutant,
            history: None,
            digest,
        })
    }
}

fn tree(files: &BTreeMap<String, String>) -> Result<Tree, TreeError> {
    let mut tree = Tree::default();
    for (path, text) in files {
        tree.write(&Tree::clean(path)?, text.clone().into_bytes())?;
    }
    Ok(tree)
}
