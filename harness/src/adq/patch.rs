//! What an agent changed: the only thing of its that grading sees.

use super::task::Task;
use super::tree::{Tree, TreeError, is_within};
use serde::{Deserialize, Serialize};
use similar::TextDiff;
use std::collections::BTreeMap;

/// Changed and new files with their whole content. Agents have no way to remove one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Patch {
    /// Content by path. Tools take text alone, so text it is.
    pub files: BTreeMap<String, String>,
}

impl Patch {
    /// From one tree to another.
    pub fn between(before: &Tree, after: &Tree) -> Self {
        let changed = after.files().iter().filter(|(path, content)| before.get(path) != Some(content.as_slice()));
        Self {
            files: changed
                .map(|(path, content)| (path.clone(), String::from_utf8_lossy(content).into_owned()))
                .collect(),
        }
    }

    /// Whether nothing was changed.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Paths that the task does not leave to the agent.
    pub fn violations(&self, task: &Task) -> Vec<String> {
        let not_allowed =
            |path: &&String| is_within(path, &task.file.protected) || is_within(path, &task.file.forbidden);
        self.files.keys().filter(not_allowed).map(|path| format!("changed {path}")).collect()
    }

    /// The task's own repository with the changes that the task allows.
    ///
    /// # Errors
    /// When the changes do not fit in.
    pub fn apply(&self, task: &Task) -> Result<Tree, TreeError> {
        let mut tree = task.repo.clone();
        for (path, content) in &self.files {
            if !is_within(path, &task.file.protected) && !is_within(path, &task.file.forbidden) {
                tree.write(&Tree::clean(path)?, content.clone().into_bytes())?;
            }
        }
        Ok(tree)
    }

    /// For readers: a unified diff.
    pub fn diff(&self, task: &Task) -> String {
        let mut text = String::new();
        for (path, after) in &self.files {
            let before = String::from_utf8_lossy(task.repo.get(path).unwrap_or_default()).into_owned();
            let diff = TextDiff::from_lines(&before, after);
            let from = if task.repo.get(path).is_some() { format!("a/{path}") } else { "/dev/null".to_owned() };
            text += &diff.unified_diff().header(&from, &format!("b/{path}")).to_string();
        }
        text
    }
}
