//! One run of llama-bench.

use super::build::shown;
use super::memory::CardWatch;
use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What llama.cpp can be told. Each field is one of its flags.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// `-ngl`: layers on the card, 0 or all.
    pub n_gpu_layers: u32,
    /// `-ncmoe`: layers whose experts are on the CPU, from the first.
    pub n_cpu_moe: u32,
    /// `-ub`: tokens of a micro-batch.
    pub n_ubatch: u32,
    /// `-lm`: how the file is read.
    pub load_mode: String,
    /// `-t`.
    pub threads: u32,
}

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// `-p`: prefill of so many tokens.
    Prefill {
        /// Tokens.
        tokens: u32,
    },
    /// `-n` behind `-d`: decode of so many tokens behind a prompt.
    Decode {
        /// Tokens.
        tokens: u32,
        /// Tokens of the prompt.
        depth: u32,
    },
}

/// One line of its answer: those fields that are used; the raw line goes into the log whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Of the source.
    pub build_commit: String,
    /// As llama.cpp names the model and its type.
    pub model_type: String,
    /// Bytes of the weights.
    pub model_size: u64,
    /// Tokens of prefill; 0 in a row of decode.
    pub n_prompt: u32,
    /// Tokens of decode; 0 in a row of prefill.
    pub n_gen: u32,
    /// Tokens before what is timed.
    pub n_depth: u32,
    /// Tokens of a micro-batch.
    pub n_ubatch: u32,
    /// Threads.
    pub n_threads: u32,
    /// Tokens a second of each repetition.
    pub samples_ts: Vec<f64>,
    /// Most that the card held while this row ran, beyond what it held before the process, bytes; absent without a card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
}

/// The program with its model.
#[derive(Debug, Clone)]
pub struct LlamaBench {
    /// The program.
    pub program: PathBuf,
    /// The weights.
    pub model: PathBuf,
}

/// A run's rows, its command and all that it printed.
#[derive(Debug, Clone)]
pub struct Finished {
    /// In the order they ran: for each workload, each micro-batch and each number of threads.
    pub rows: Vec<Row>,
    /// As typed, without this machine's folders.
    pub command: String,
    /// stdout, then stderr, without this machine's folders.
    pub raw: String,
}

impl Workload {
    fn args(self) -> Vec<String> {
        let (prompt, generate, depth) = match self {
            Self::Prefill { tokens } => (tokens, 0, 0),
            Self::Decode { tokens, depth } => (0, tokens, depth),
        };
        ["-p", &prompt.to_string(), "-n", &generate.to_string(), "-d", &depth.to_string()].map(str::to_owned).to_vec()
    }

    /// Whether a row is of this workload.
    pub fn is_of(self, row: &Row) -> bool {
        match self {
            Self::Prefill { tokens } => (row.n_prompt, row.n_gen) == (tokens, 0),
            Self::Decode { tokens, depth } => (row.n_prompt, row.n_gen, row.n_depth) == (0, tokens, depth),
        }
    }

    /// Tokens that are timed.
    pub fn tokens(self) -> u32 {
        match self {
            Self::Prefill { tokens } | Self::Decode { tokens, .. } => tokens,
        }
    }
}

impl LlamaBench {
    /// Runs one workload `repetitions` times after llama-bench's own warm-up, at each of the micro-batches and thread counts given;
    /// the model is loaded once. `watch` sees the card's memory.
    ///
    /// # Errors
    /// When the program fails, or answers what was not asked.
    pub fn run(
        &self,
        setting: &Setting,
        ubatches: &[u32],
        threads: &[u32],
        workload: Workload,
        repetitions: u32,
        watch: Option<&CardWatch>,
    ) -> anyhow::Result<Finished> {
        let list = |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let largest = ubatches.iter().copied().max().unwrap_or(setting.n_ubatch);
        let mut command = Command::new(&self.program);
        command.arg("-m").arg(&self.model).args(workload.args());
        command.args(["-ngl", &setting.n_gpu_layers.to_string(), "-ncmoe", &setting.n_cpu_moe.to_string()]);
        command.args(["-fa", "1", "-lm", &setting.load_mode, "-t", &list(threads), "-ub", &list(ubatches)]);
        // A batch is cut into micro-batches: it has to be as large as the largest.
        command.args(["-b", &largest.max(2048).to_string(), "-r", &repetitions.to_string(), "-o", "jsonl"]);
        let (rows, raw) = self.rows(&mut command, watch)?;
        let expected = ubatches.len() * threads.len();
        ensure!(rows.len() == expected, "{} rows of `{}`, expected {expected}", rows.len(), shown(&command));
        for row in &rows {
            ensure!(
                workload.is_of(row) && row.samples_ts.len() == repetitions as usize,
                "`{}` answered {row:?}, expected {repetitions} repetitions of {workload:?}",
                shown(&command)
            );
        }
        Ok(Finished { rows, command: self.portable(&shown(&command)), raw: self.portable(&raw) })
    }

    fn rows(&self, command: &mut Command, watch: Option<&CardWatch>) -> anyhow::Result<(Vec<Row>, String)> {
        let typed = shown(command);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting `{typed}`"))?;
        let (Some(stdout), Some(mut stderr)) = (child.stdout.take(), child.stderr.take()) else {
            bail!("`{typed}` has no output");
        };
        let errors = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = stderr.read_to_end(&mut bytes);
            (String::from_utf8_lossy(&bytes).into_owned(), read)
        });
        let (mut rows, mut raw) = (Vec::new(), String::new());
        for line in BufReader::new(stdout).lines() {
            let line = line.with_context(|| format!("reading what `{typed}` prints"))?;
            raw.push_str(&line);
            raw.push('\n');
            if line.starts_with('{') {
                let mut row: Row =
                    serde_json::from_str(&line).with_context(|| format!("`{typed}` printed {line:?}"))?;
                row.peak_bytes = watch.map(CardWatch::take_peak);
                rows.push(row);
            }
        }
        let status = child.wait().with_context(|| format!("waiting for `{typed}`"))?;
        let errors = errors.join().map_or_else(|_| String::new(), |(text, _)| text);
        ensure!(status.success(), "`{typed}` ended with {status}:\n{}", last_lines(&errors));
        raw.push_str(&errors);
        Ok((rows, raw))
    }

    /// Without the folders in which this machine keeps program and model.
    fn portable(&self, text: &str) -> String {
        let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        text.replace(&*self.program.to_string_lossy(), &name(&self.program))
            .replace(&*self.model.to_string_lossy(), &name(&self.model))
    }
}

fn last_lines(text: &str) -> String {
    const LINES: usize = 20;
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
