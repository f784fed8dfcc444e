//! Grading again from a transcript: no model, no agent, no trust in what was recorded.

use super::attempt::{Ending, Judged, judge};
use super::grade::{Bench, Grade};
use super::patch::Patch;
use super::task::Task;
use super::tools::Workspace;
use super::transcript::{Line, Transcript};
use assay_sandbox::SandboxError;

/// What a transcript is worth.
#[derive(Debug, Clone)]
pub struct Regraded {
    /// What the calls in it changed.
    pub patch: Patch,
    /// Its grade.
    pub grade: Grade,
    /// Its judgement.
    pub judged: Judged,
}

/// Makes the calls of a transcript again, but for test runs, and grades what they changed.
///
/// # Errors
/// The sandbox's.
pub fn regrade(bench: &Bench, task: &Task, ending: &Ending, transcript: &Transcript) -> Result<Regraded, SandboxError> {
    let mut workspace = Workspace::new(task, bench);
    for line in transcript.lines() {
        if let Line::Call { tool, arguments, .. } = line
            && tool != "run_tests"
        {
            workspace.call(tool, arguments)?;
        }
    }
    let patch = Patch::between(&task.repo, &workspace.tree);
    let mut violations = workspace.violations;
    violations.extend(patch.violations(task));
    let tree = patch.apply(task).map_err(|error| SandboxError::Dead(error.to_string()))?;
    let grade = bench.grade(task, &tree)?;
    let judged = judge(ending, &patch, &violations, Some(&grade));
    Ok(Regraded { patch, grade, judged })
}
