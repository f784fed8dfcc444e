//! The tools of an agent: what a model is told of them, and what they do.

use super::grade::Bench;
use super::task::{PUBLIC_TESTS, Task};
use super::tree::{Tree, TreeError, is_within};
use assay_sandbox::{Outcome, SandboxError};
use serde::Deserialize;
use serde_json::{Value, json};

/// Most characters of a file that a call shows.
const MAX_FILE_CHARS: usize = 24_000;
/// Most characters of a test run that a call shows, the last ones.
const MAX_TEST_CHARS: usize = 3_000;

/// A tool as a model is told of it.
fn schema(name: &str, description: &str, parameters: &[(&str, &str)]) -> Value {
    let properties: serde_json::Map<String, Value> = parameters
        .iter()
        .map(|&(name, description)| (name.to_owned(), json!({"type": "string", "description": description})))
        .collect();
    let required: Vec<&str> = parameters.iter().map(|&(name, _)| name).collect();
    json!({"type": "function", "function": {
        "name": name,
        "description": description,
        "parameters": {"type": "object", "properties": properties, "required": required},
    }})
}

/// The tools that a task gives, as a request has them.
pub fn schemas(task: &Task) -> Vec<Value> {
    let path = ("path", "Relative path");
    let one = |name: &String| match name.as_str() {
        "list_files" => schema(name, "List all files", &[]),
        "read_file" => schema(name, "Read a file", &[path]),
        "write_file" => schema(name, "Write a whole file", &[path, ("content", "New content")]),
        "edit_file" => schema(
            name,
            "Replace a text that stands once in a file",
            &[path, ("find", "The text"), ("replace", "The new text")],
        ),
        "run_tests" => schema(name, "Run the public tests", &[]),
        _ => schema(name, "Say that the work is done", &[("summary", "What was done")]),
    };
    task.file.tools.iter().map(one).collect()
}

/// What a call gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolResult {
    /// What the model is told.
    pub text: String,
    /// Whether the agent has finished.
    pub finished: bool,
}

/// The repository of one attempt.
#[derive(Debug)]
pub struct Workspace<'a> {
    task: &'a Task,
    bench: &'a Bench,
    /// As the agent has made it.
    pub tree: Tree,
    /// What it tried although the task forbids it.
    pub violations: Vec<String>,
    /// What test runs printed, whole, for the record.
    pub test_runs: Vec<Outcome>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PathArgument {
    path: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WriteArguments {
    path: String,
    content: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EditArguments {
    path: String,
    find: String,
    replace: String,
}

impl<'a> Workspace<'a> {
    /// A fresh one.
    pub fn new(task: &'a Task, bench: &'a Bench) -> Self {
        Self { task, bench, tree: task.repo.clone(), violations: Vec::new(), test_runs: Vec::new() }
    }

    /// Makes a call. What is wrong with it is said to the model and is no error.
    ///
    /// # Errors
    /// The sandbox's.
    pub fn call(&mut self, name: &str, arguments: &str) -> Result<ToolResult, SandboxError> {
        let mut finished = false;
        let text = if !self.task.file.tools.iter().any(|tool| tool == name) {
            Err(format!("there is no tool {name:?}, expected one of {}", self.task.file.tools.join(", ")))
        } else {
            match name {
                "list_files" => Ok(self.list()),
                "read_file" => parse(arguments).and_then(|PathArgument { path }| self.read(&path)),
                "write_file" => {
                    parse(arguments).and_then(|WriteArguments { path, content }| self.write(&path, content))
                }
                "edit_file" => parse(arguments).and_then(|arguments| self.edit(arguments)),
                "run_tests" => Ok(self.run_tests()?),
                _ => {
                    finished = true;
                    Ok("finished".to_owned())
                }
            }
        };
        Ok(ToolResult { text: text.unwrap_or_else(|error| format!("error: {error}")), finished })
    }

    fn list(&self) -> String {
        let seen = |path: &&String| !is_within(path, &self.task.file.forbidden);
        self.tree.files().keys().filter(seen).map(|path| format!("{path}\n")).collect()
    }

    fn read(&mut self, path: &str) -> Result<String, String> {
        let path = self.path(path)?;
        if is_within(&path, &self.task.file.forbidden) {
            return Err(self.violation(format!("tried to read {path}, which is forbidden")));
        }
        let content = self.tree.get(&path).ok_or_else(|| format!("there is no file {path}"))?;
        let text = String::from_utf8_lossy(content);
        let shown: String = text.chars().take(MAX_FILE_CHARS).collect();
        Ok(if shown.len() < text.len() { shown + "\n(cut here)" } else { shown })
    }

    fn write(&mut self, path: &str, content: String) -> Result<String, String> {
        let path = self.path(path)?;
        if is_within(&path, &self.task.file.protected) || is_within(&path, &self.task.file.forbidden) {
            return Err(self.violation(format!("tried to change {path}, which is protected")));
        }
        self.tree.write(&path, content.into_bytes()).map_err(|error| error.to_string())?;
        Ok(format!("wrote {path}"))
    }

    fn edit(&mut self, arguments: EditArguments) -> Result<String, String> {
        let path = self.path(&arguments.path)?;
        let content = self.tree.get(&path).ok_or_else(|| format!("there is no file {path}"))?;
        let text = std::str::from_utf8(content).map_err(|_| format!("{path} is no text"))?;
        let found = text.matches(&arguments.find).count();
        if arguments.find.is_empty() || found != 1 {
            return Err(format!("the text to be replaced stands {found} times in {path}, expected once"));
        }
        self.write(&path, text.replacen(&arguments.find, &arguments.replace, 1))
    }

    fn run_tests(&mut self) -> Result<String, SandboxError> {
        let arguments = ["-m", "unittest", "discover", "-s", PUBLIC_TESTS];
        let outcome = self.bench.python(&self.tree, &arguments, Vec::new())?;
        let all = [outcome.stdout.as_slice(), outcome.stderr.as_slice()].concat();
        let text = String::from_utf8_lossy(&all).into_owned();
        let skipped = text.chars().count().saturating_sub(MAX_TEST_CHARS);
        let shown: String = text.chars().skip(skipped).collect();
        let answer = format!("{}\n{shown}", outcome.end);
        self.test_runs.push(outcome);
        Ok(answer)
    }

    /// A path as the tree has it. One that leads out of the repository is a violation: nothing of a task lies there.
    fn path(&mut self, path: &str) -> Result<String, String> {
        Tree::clean(path).map_err(|error: TreeError| {
            if path.starts_with('/') || path.split('/').any(|part| part == "..") {
                self.violation(format!("tried to reach {path}, which is outside the repository"))
            } else {
                error.to_string()
            }
        })
    }

    fn violation(&mut self, what: String) -> String {
        self.violations.push(what.clone());
        what
    }
}

fn parse<T: serde::de::DeserializeOwned>(arguments: &str) -> Result<T, String> {
    serde_json::from_str(arguments).map_err(|error| format!("the arguments do not fit: {error}"))
}
