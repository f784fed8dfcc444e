//! Assay's own server, started for a run and stopped with it.

use super::http::HttpEndpoint;
use anyhow::{Context, bail};
use serde::Deserialize;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// A server of a config, in a process of its own.
#[derive(Debug)]
pub struct OwnServer {
    process: Child,
    /// What it said of itself.
    pub about: About,
    /// How to ask it.
    pub endpoint: HttpEndpoint,
}

/// The line that a server writes when it is ready.
#[derive(Debug, Clone, Deserialize)]
pub struct About {
    /// The name for requests.
    pub model: String,
    /// Where it listens.
    pub address: String,
    /// Longest sequence.
    pub context_tokens: u64,
    /// Longest prompt.
    pub max_prompt_tokens: u64,
}

impl OwnServer {
    /// Starts one and waits until it is ready.
    ///
    /// # Errors
    /// When it ends before that, or says what cannot be read.
    pub fn start<Argument: AsRef<OsStr>>(config: &[Argument]) -> anyhow::Result<Self> {
        // The same executable, even where a build has replaced its file.
        let mut process = Command::new("/proc/self/exe")
            .arg0("assay")
            .args(["serve", "--port", "0", "--output", "json"])
            .args(config)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the server")?;
        let stdout = process.stdout.take().context("the server has no standard output")?;
        let stderr = process.stderr.take().context("the server has no standard error")?;
        // What it says is shown where it does not start, and dropped afterwards; it must never wait for a reader.
        let said = std::thread::spawn(move || {
            let lines: Vec<String> = BufReader::new(stderr).lines().map_while(Result::ok).collect();
            lines.join("\n")
        });
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).context("cannot read what the server says")?;
        let Ok(about) = serde_json::from_str::<About>(&line) else {
            let _ = process.kill();
            let status = process.wait().context("cannot wait for the server")?;
            bail!("the server did not start ({status}): {}", said.join().unwrap_or_default());
        };
        let endpoint = HttpEndpoint::new(&format!("http://{}", about.address));
        Ok(Self { process, about, endpoint })
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
