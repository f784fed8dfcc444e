//! Assay's side: a process of its own for each turn, as the peer has.

use anyhow::{Context, ensure};
use assay_ledgers::{Identity, Sha256, SpeedRow};
use serde::Deserialize;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

/// What `assay benchmark --output json` says, as far as it is used here.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct OwnRun {
    /// A row each measure and length.
    pub rows: Vec<SpeedRow>,
    /// What ran.
    pub identity: Identity,
    /// Its hash.
    pub identity_sha256: Sha256,
    /// Hash of the record.
    pub evidence: Sha256,
}

/// Runs a config's benchmark with this very program; its progress goes to stderr. An exit code other than 0 is its verdicts',
/// which its record keeps: a benchmark that answers at all has a record.
///
/// # Errors
/// When it ends without an answer.
pub fn benchmark(config: &[OsString], suite: &Path) -> anyhow::Result<OwnRun> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(program);
    command.arg("benchmark").args(config).arg("--suite").arg(suite).args(["--output", "json"]);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("starting assay benchmark")?;
    ensure!(!output.stdout.is_empty(), "`assay benchmark` ended with {} and no answer", output.status);
    serde_json::from_slice(&output.stdout).context("reading the answer of assay benchmark")
}
