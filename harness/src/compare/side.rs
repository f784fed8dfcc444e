//! One side of a comparison, and one process of it.

use crate::exit::InvalidEvidence;
use crate::runtime::{Counters, Seen};
use anyhow::{Context, ensure};
use assay_ledgers::{Identity, Sha256, SpeedRow};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Last lines of a process's stderr that an error shows.
const SHOWN_LINES: usize = 5;

/// What is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Side {
    /// What it is called in answers.
    pub name: String,
    /// The executable.
    pub binary: PathBuf,
    /// Its arguments: a config and flags that change it.
    pub arguments: Vec<OsString>,
}

/// One process that ran to its end.
#[derive(Debug, Clone, Serialize)]
pub struct Process {
    /// What ran.
    pub identity: Identity,
    /// Its speed record.
    pub record: Sha256,
    /// Its exit code: what its own verdicts say.
    pub exit_code: i32,
    /// Its rows.
    pub rows: Vec<SpeedRow>,
    /// What else happened meanwhile: on the machine as long as it ran, on the card as long as it timed.
    pub seen: Seen,
}

/// The part of `assay benchmark --output json` that is needed.
#[derive(Debug, Deserialize)]
struct Answer {
    identity: Identity,
    rows: Vec<SpeedRow>,
    evidence: Sha256,
    /// Absent in answers of older builds.
    #[serde(default)]
    seen: Seen,
}

impl Side {
    /// A config, with flags behind it, as `tiny-moe --vram 24MiB`.
    pub fn new(text: &str, binary: PathBuf) -> Self {
        Side { name: text.to_owned(), binary, arguments: text.split_whitespace().map(OsString::from).collect() }
    }

    /// Whether the executable is a build of this program, which may be another than this one.
    ///
    /// # Errors
    /// When it cannot be started, or does not say its version as this program does.
    pub fn check_binary(&self) -> anyhow::Result<()> {
        let binary = self.binary.display();
        let mut command = Command::new(&self.binary);
        let output = command.arg("--version").stdin(Stdio::null()).output();
        let said = output.with_context(|| format!("starting {binary}"))?.stdout;
        let said = String::from_utf8_lossy(&said);
        ensure!(
            said.starts_with("assay "),
            "{binary} --version says {:?}, expected \"assay\" and a version",
            said.trim()
        );
        Ok(())
    }

    /// Runs one process with `suite`, a file, and further arguments.
    ///
    /// # Errors
    /// When it cannot be started, stops with an error, or answers what this build cannot read.
    pub fn run(&self, more: &[String]) -> anyhow::Result<Process> {
        let before = Counters::now();
        let output = Command::new(&self.binary)
            .arg("benchmark")
            .args(&self.arguments)
            .args(more)
            .args(["--output", "json"])
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("starting {}", self.binary.display()))?;
        let machine = before.until(Counters::now());
        let exit_code = output.status.code().unwrap_or(-1);
        let failed = || {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let lines: Vec<&str> = stderr.lines().collect();
            let shown = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n  ");
            format!("{} benchmark {} ended with {exit_code}:\n  {shown}", self.binary.display(), self.name)
        };
        ensure!(matches!(exit_code, 0 | 1 | 3 | 4), failed());
        let answer: Answer = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("{} answered what this build cannot read", self.binary.display()))?;
        if exit_code == 4 {
            return Err(InvalidEvidence(failed()).into());
        }
        let seen = Seen { machine, card: answer.seen.card };
        Ok(Process { identity: answer.identity, record: answer.evidence, exit_code, rows: answer.rows, seen })
    }
}
