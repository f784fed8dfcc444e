//! Results of agents that a model drives.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Interval95;
use crate::Sha256;

/// Work done by an agent that a model drives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskBody {
    /// The set of tasks.
    pub suite: String,
    /// Version of the rules that judged them.
    pub rules_version: u32,
    /// What answered, such as `assay` or a peer's name and version. A record of an endpoint that this project does not
    /// run has no identity.
    pub endpoint: String,
    /// A row a task and context; the record's verdicts name the same rows.
    pub tasks: Vec<TaskRow>,
    /// Share of tasks solved by at least one, and by all, of k attempts, by name (`pass@1`, `pass^4`), with its interval.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shares: BTreeMap<String, Interval95>,
}

/// One task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskRow {
    /// Its name.
    pub task: String,
    /// SHA-256 over everything that it consists of: repository, instruction, tests, forbidden paths.
    pub fixture: Sha256,
    /// Tokens of context that it was given.
    pub context_tokens: u64,
    /// Every attempt, in the order they ran.
    pub attempts: Vec<TaskAttempt>,
}

/// One attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskAttempt {
    /// How it ended.
    pub outcome: TaskOutcome,
    /// Why; what failed, by name.
    pub reason: String,
    /// Calls of tools.
    pub tool_calls: u64,
    /// Tokens that went in, over all requests.
    pub prompt_tokens: u64,
    /// Tokens that came out, over all requests.
    pub completion_tokens: u64,
    /// Wall time, seconds.
    pub seconds: f64,
    /// Content hash of its transcript among the record's logs; absent where it was not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transcript: Option<Sha256>,
    /// Other figures by name, unit last.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, f64>,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskOutcome {
    /// Every test passes and nothing forbidden was touched.
    Solved,
    /// A test fails, or the agent gave up or ran out of its allowance.
    Unsolved,
    /// Something forbidden was touched or tried.
    Forbidden,
    /// The surroundings failed: nothing is said of the model.
    Infrastructure,
}

impl TaskOutcome {
    /// As written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Solved => "solved",
            Self::Unsolved => "unsolved",
            Self::Forbidden => "forbidden",
            Self::Infrastructure => "infrastructure",
        }
    }
}
