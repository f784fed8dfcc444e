//! The proof: a program runs as any other does and tries to get out.

use crate::inside::LOCKED;
use crate::{End, Interpreter, Job, Limits, Sandbox, SandboxError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpListener;

const PROGRAM: &str = include_str!("probe.py");

/// One try.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeRow {
    /// What was tried.
    pub row: String,
    /// Whether the isolation held.
    pub held: bool,
    /// What the try met.
    pub saw: String,
}

/// What the tries met. All held: else there is a [`SandboxError::Leaks`] instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// A row a try.
    pub rows: Vec<ProbeRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    held: BTreeMap<String, bool>,
    saw: BTreeMap<String, String>,
}

impl Sandbox {
    /// Shows that this machine isolates, now.
    ///
    /// # Errors
    /// As [`Sandbox::run`]; [`SandboxError::Leaks`] with the first try that got out.
    pub fn probe(&self, interpreter: &Interpreter) -> Result<Probe, SandboxError> {
        let mut canary =
            tempfile::Builder::new().prefix("assay-canary-").tempfile().map_err(SandboxError::io("write a canary"))?;
        canary.write_all(b"canary\n").map_err(SandboxError::io("write a canary"))?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(SandboxError::io("listen for the probe"))?;
        listener.set_nonblocking(true).map_err(SandboxError::io("listen for the probe"))?;
        let port = listener.local_addr().map_err(SandboxError::io("listen for the probe"))?.port();
        let limits = Limits::default();
        let given = serde_json::json!({
            "canary": canary.path(), "port": port, "harness": std::process::id(), "locked": LOCKED,
            "processes": limits.processes, "memory": limits.memory_bytes, "cpu_s": limits.cpu_s,
        });
        let job = Job {
            argv: interpreter.argv(&["-c", PROGRAM]),
            env: interpreter.env(),
            files: BTreeMap::from([("given.txt".to_owned(), b"given\n".to_vec())]),
            stdin: given.to_string().into_bytes(),
            read_only: interpreter.read_only.clone(),
            limits,
        };
        let outcome = self.run(&job)?;
        let connected = listener.accept().is_ok();
        let leaks = |reason: String| SandboxError::Leaks(reason);
        if outcome.end != End::Exited(0) {
            let words = String::from_utf8_lossy(&outcome.stderr);
            return Err(leaks(format!("the probe did not finish: {}: {}", outcome.end, words.trim_end())));
        }
        let answer: Answer = serde_json::from_slice(&outcome.stdout)
            .map_err(|error| leaks(format!("the probe's answer cannot be read: {error}")))?;
        let saw = |row: &String| answer.saw.get(row).cloned().unwrap_or_default();
        let rows: Vec<ProbeRow> =
            answer.held.iter().map(|(row, &held)| ProbeRow { row: row.clone(), held, saw: saw(row) }).collect();
        if connected {
            return Err(leaks("the probe reached a port of this machine".to_owned()));
        }
        match rows.iter().find(|row| !row.held) {
            Some(row) => Err(leaks(format!("{}: {}", row.row, row.saw))),
            None => Ok(Probe { rows }),
        }
    }
}
