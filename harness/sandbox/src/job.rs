//! What is run, and what comes of it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// One run of one program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// Program and arguments; the program is an absolute path inside.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: BTreeMap<String, String>,
    /// Files by path under `/work`, the current folder. Paths are relative, without `.` and `..`.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Standard input.
    pub stdin: Vec<u8>,
    /// Files and folders of the host that it may read and execute, at the same absolute paths inside.
    pub read_only: Vec<PathBuf>,
    /// Bounds of everything.
    pub limits: Limits,
}

/// Bounds of one run. What reaches one ends, and [`End`] says how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Wall time, milliseconds.
    pub wall_ms: u64,
    /// CPU time of a process, seconds.
    pub cpu_s: u64,
    /// Address space of a process, bytes.
    pub memory_bytes: u64,
    /// Processes and threads at once.
    pub processes: u64,
    /// All files under `/work`, and as much again under `/tmp`, bytes.
    pub disk_bytes: u64,
    /// Standard output and standard error, each, bytes. The program is ended when it writes more.
    pub output_bytes: u64,
}

impl Default for Limits {
    /// For tests of a small Python module: they need a fraction of this.
    fn default() -> Self {
        Self {
            wall_ms: 10_000,
            cpu_s: 8,
            memory_bytes: 512 << 20,
            processes: 16,
            disk_bytes: 16 << 20,
            output_bytes: 64 << 10,
        }
    }
}

/// How the program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
    /// [`Limits::wall_ms`] was over.
    TimedOut,
    /// It wrote more than [`Limits::output_bytes`].
    OutputLimit,
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exit code {code}"),
            Self::Signalled(signal) => write!(f, "ended by signal {signal}"),
            Self::TimedOut => f.write_str("ended: out of time"),
            Self::OutputLimit => f.write_str("ended: too much output"),
        }
    }
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// At most [`Limits::output_bytes`] of its standard output.
    pub stdout: Vec<u8>,
    /// At most [`Limits::output_bytes`] of its standard error.
    pub stderr: Vec<u8>,
}

/// What the processes inside tell the caller, one JSON object a line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    /// A part of the isolation is missing; nothing ran.
    Missing { mechanism: crate::Mechanism, reason: String },
    /// How the program ended.
    Ended(End),
}
