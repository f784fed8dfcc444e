//! `assay adq new`

use crate::adq::task::{FOLDER, Task};
use crate::exit::Exit;
use crate::output::{Answer, Format};
use crate::repository::Repository;
use anyhow::{Context, ensure};
use clap::Args;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  assay adq new refunds";

/// The runner of public tests, which all tasks share.
const RUNNER: &str = include_str!("../../../../fixtures/adq/ledger/tests/public/test_public.py");

/// The files of a new task, to be filled in
///
/// A small task that is sound as it stands: change it piece by piece, and let `assay adq check` say what is missing.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct New {
    /// The task's name: small letters, digits and -
    #[arg(value_name = "TASK")]
    name: String,
}

/// Path and content of every file; NAME is the task's name.
const FILES: [(&str, &str); 8] = [
    (
        "task.toml",
        r#"format_version = 1
name = "NAME"
title = "Say what the task is about"
instruction = """
double.py is wrong. Mend `double(number)`; keep its name and signature.
"""
tools = ["list_files", "read_file", "write_file", "edit_file", "run_tests", "finish"]
protected = ["tests", "README.md"]
forbidden = [".git"]

[limits]
turns = 24
completion_tokens = 1024
seconds = 900
"#,
    ),
    ("repo/README.md", "# Doubling\n\n`double(number)` is twice the number. Of a text it is a `TypeError`.\n"),
    ("repo/double.py", "def double(number):\n    return number + 1\n"),
    (
        "solution/double.py",
        "def double(number):\n    if isinstance(number, str):\n        raise TypeError(\"a text\")\n    return 2 * number\n",
    ),
    ("visible/double.py", "def double(number):\n    return 2 * number\n"),
    (
        "tests/public/cases.json",
        "[\n  {\"name\": \"two\", \"module\": \"double\", \"call\": \"double\", \"args\": [2], \"expect\": 4}\n]\n",
    ),
    (
        "tests/hidden/cases.json",
        "[\n  {\"name\": \"a text\", \"module\": \"double\", \"call\": \"double\", \"args\": [\"a\"], \"raises\": \"TypeError\"}\n]\n",
    ),
    (
        "mutants.toml",
        r#"# Each is one edit of the solution that one hidden case alone catches.

[[mutant]]
name = "another error"
file = "double.py"
find = "TypeError"
replace = "ValueError"
"#,
    ),
];

impl New {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        ensure!(
            !self.name.is_empty() && self.name.chars().all(plain),
            "{:?} is no name for a task: expected small letters, digits and -",
            self.name
        );
        let repository = Repository::find()?;
        let folder = repository.path(FOLDER).join(&self.name);
        ensure!(!folder.exists(), "{} is there already", folder.display());
        let runner = ("tests/public/test_public.py", RUNNER);
        let mut written = Vec::new();
        for (path, content) in FILES.into_iter().chain([runner]) {
            let path = folder.join(path);
            let parent = path.parent().unwrap_or(&folder);
            std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
            std::fs::write(&path, content.replace("NAME", &self.name))
                .with_context(|| format!("cannot write {}", path.display()))?;
            written.push(repository.display(&path).display().to_string());
        }
        Task::read(&folder)?;
        let shown = repository.display(&folder).display().to_string();
        Answer::new(&json!({ "task": self.name, "folder": shown, "files": written }))?
            .line(format!("wrote {} files to {shown}; next: assay adq check {}", written.len(), self.name))
            .print(format)?;
        Ok(Exit::DONE)
    }
}
