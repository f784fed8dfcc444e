//! Grading: a fresh sandbox, the task's own repository with the agent's changes, and calls without their answers.
//!
//! What must come of a call is compared here, outside. So nothing in a sandbox can read an expected value, and no forged
//! result can hold one: the only way to the right answer is to compute it.

use super::task::{Case, Task};
use super::tree::Tree;
use assay_sandbox::{End, Interpreter, Job, Limits, Outcome, Sandbox, SandboxError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const DRIVER: &str = include_str!("driver.py");
/// Wall time of one call, seconds: tasks take milliseconds.
const SECONDS_PER_CALL: f64 = 2.0;
/// Most characters of what came of a call that a result keeps.
const MAX_SAW_CHARS: usize = 300;

/// Runs things apart from the machine.
#[derive(Debug, Clone)]
pub struct Bench {
    /// Where sandboxes come from.
    pub sandbox: Sandbox,
    /// The Python in them.
    pub interpreter: Interpreter,
    /// Bounds of each run.
    pub limits: Limits,
}

/// One case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaseResult {
    /// Its name.
    pub case: String,
    /// Whether what came of it is what must.
    pub passed: bool,
    /// What came of it, shortened.
    pub saw: String,
}

/// Both sets of cases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grade {
    /// Those that the agent saw.
    pub public: Vec<CaseResult>,
    /// Those that it did not.
    pub hidden: Vec<CaseResult>,
}

impl Grade {
    /// Whether every case passed.
    pub fn passed(&self) -> bool {
        self.public.iter().chain(&self.hidden).all(|case| case.passed)
    }

    /// Names of the cases that failed.
    pub fn failed(cases: &[CaseResult]) -> Vec<String> {
        cases.iter().filter(|case| !case.passed).map(|case| case.case.clone()).collect()
    }
}

/// A line of the driver.
#[derive(Deserialize)]
struct Answer {
    number: usize,
    #[serde(default, deserialize_with = "present")]
    returned: Option<Value>,
    raised: Option<String>,
    message: Option<String>,
    ended: Option<String>,
}

fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl Bench {
    /// On this machine, with its Python.
    ///
    /// # Errors
    /// When there is no Python 3.
    pub fn new() -> Result<Self, SandboxError> {
        Ok(Self { sandbox: Sandbox::default(), interpreter: Interpreter::find()?, limits: Limits::default() })
    }

    /// Runs a Python program on a copy of a tree.
    ///
    /// # Errors
    /// The sandbox's, which are never the program's.
    pub fn python(&self, tree: &Tree, arguments: &[&str], stdin: Vec<u8>) -> Result<Outcome, SandboxError> {
        self.sandbox.run(&Job {
            argv: self.interpreter.argv(arguments),
            env: self.interpreter.env(),
            files: tree.files().clone(),
            stdin,
            read_only: self.interpreter.read_only.clone(),
            limits: self.limits.clone(),
        })
    }

    /// Grades a tree by both sets of cases, each in a sandbox of its own.
    ///
    /// # Errors
    /// The sandbox's.
    pub fn grade(&self, task: &Task, tree: &Tree) -> Result<Grade, SandboxError> {
        Ok(Grade { public: self.cases(tree, &task.public)?, hidden: self.cases(tree, &task.hidden)? })
    }

    /// Makes the calls of some cases on a tree.
    ///
    /// # Errors
    /// The sandbox's.
    pub fn cases(&self, tree: &Tree, cases: &[Case]) -> Result<Vec<CaseResult>, SandboxError> {
        let calls: Vec<Value> = cases
            .iter()
            .map(|case| json!({"module": case.module, "call": case.call, "args": case.args, "seconds": SECONDS_PER_CALL}))
            .collect();
        let outcome = self.python(tree, &["-c", DRIVER], Value::from(calls).to_string().into_bytes())?;
        Ok(compare(cases, &outcome))
    }
}

/// Sets what came of calls beside what must.
fn compare(cases: &[Case], outcome: &Outcome) -> Vec<CaseResult> {
    let mut answers: Vec<Option<Answer>> = cases.iter().map(|_| None).collect();
    for line in outcome.stdout.split(|&byte| byte == b'\n') {
        if let Ok(answer) = serde_json::from_slice::<Answer>(line)
            && let Some(place @ None) = answers.get_mut(answer.number)
        {
            *place = Some(answer);
        }
    }
    let missing = match outcome.end {
        End::Exited(0) => "no answer".to_owned(),
        end => format!("no answer ({end})"),
    };
    let result = |(case, answer): (&Case, Option<Answer>)| {
        let Some(answer) = answer else {
            return CaseResult { case: case.name.clone(), passed: false, saw: missing.clone() };
        };
        let passed = match (&case.expect, &case.raises) {
            (Some(value), _) => answer.returned.as_ref() == Some(value),
            (None, Some(name)) => answer.raised.as_ref() == Some(name),
            (None, None) => false,
        };
        let saw = match (&answer.returned, &answer.raised, &answer.ended) {
            (Some(value), ..) => format!("returned {value}"),
            (_, Some(name), _) => format!("raised {name}: {}", answer.message.as_deref().unwrap_or_default()),
            (_, _, Some(end)) => format!("ended {end}"),
            _ => "no answer".to_owned(),
        };
        CaseResult { case: case.name.clone(), passed, saw: saw.chars().take(MAX_SAW_CHARS).collect() }
    };
    cases.iter().zip(answers).map(result).collect()
}
