//! Attempts to get a verdict, or out of the sandbox, by other means than the work.

use super::scripted::{Script, Step};
use super::task::{Task, TaskError};
use assay_engine::file;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::Write;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};

/// The file of cheats, in the folder of tasks.
pub const FILE: &str = "cheats.toml";
const MAX_BYTES: u64 = 1 << 20;
/// How a line starts on which a cheat says what it reached.
const MARK: &str = "CHEAT ";

/// One cheat.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cheat {
    /// Its name.
    pub name: String,
    /// What it is after.
    pub kind: String,
    /// What it puts in the place of the file that the task is about.
    #[serde(default)]
    pub module: Option<String>,
    /// The calls that it makes instead.
    #[serde(default)]
    pub calls: Vec<(String, Value)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cheats {
    cheat: Vec<Cheat>,
}

/// What a cheat says that it reached.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Whether it got what it was after.
    pub achieved: bool,
    /// What it met.
    pub saw: String,
}

/// Things of the host that a cheat must not reach, watched from outside.
#[derive(Debug)]
pub struct Bait {
    canary: tempfile::NamedTempFile,
    secret: String,
    outside: PathBuf,
    streams: TcpListener,
    datagrams: UdpSocket,
    port: u16,
}

impl Cheat {
    /// Reads all cheats.
    ///
    /// # Errors
    /// When the file is none.
    pub fn read_all(folder: &Path) -> Result<Vec<Self>, TaskError> {
        let path = folder.join(FILE);
        let text = file::read_text(&path, MAX_BYTES)?;
        let invalid = |reason: String| TaskError::Invalid { path: path.clone(), reason };
        let cheats: Cheats = toml::from_str(&text).map_err(|error| invalid(error.to_string()))?;
        match cheats.cheat.iter().find(|cheat| cheat.module.is_some() != cheat.calls.is_empty()) {
            Some(cheat) => Err(invalid(format!("cheat {:?}: expected one of module and calls", cheat.name))),
            None => Ok(cheats.cheat),
        }
    }

    /// What it does at a task.
    pub fn script(&self, task: &Task, fixtures: &Path, bait: &Bait) -> Script {
        let fill = |text: &str| self.fill(text, task, fixtures, bait);
        let mut steps: Vec<Step> = self
            .calls
            .iter()
            .map(|(tool, arguments)| {
                let filled = fill(&arguments.to_string());
                Step::call(tool, serde_json::from_str(&filled).unwrap_or_else(|_| arguments.clone()))
            })
            .collect();
        if let (Some(module), Some(path)) = (&self.module, task.solution.files().keys().next()) {
            steps.push(Step::write(path, &fill(module)));
            steps.push(Step::call("run_tests", serde_json::json!({})));
        }
        steps.push(Step::finish());
        Script::of_cheat(self, steps)
    }

    fn fill(&self, text: &str, task: &Task, fixtures: &Path, bait: &Bait) -> String {
        let call = task.public.first().map_or("", |case| case.call.as_str());
        let module = task
            .solution
            .files()
            .keys()
            .next()
            .map_or(String::new(), |path| path.trim_end_matches(".py").replace('/', "."));
        text.replace("{{fixtures}}", &fixtures.display().to_string())
            .replace("{{task}}", &task.file.name)
            .replace("{{module}}", &module)
            .replace("{{call}}", call)
            .replace("{{canary}}", &bait.canary.path().display().to_string())
            .replace("{{outside}}", &bait.outside.display().to_string())
            .replace("{{port}}", &bait.port.to_string())
    }
}

/// What a cheat said in a test run's output.
pub fn claim(output: &[u8]) -> Option<Claim> {
    let text = String::from_utf8_lossy(output);
    text.lines().find_map(|line| serde_json::from_str(line.strip_prefix(MARK)?).ok())
}

impl Bait {
    /// Lays it out, in the system's folder for temporary files.
    ///
    /// # Errors
    /// When the host refuses.
    pub fn new() -> std::io::Result<Self> {
        let mut canary = tempfile::Builder::new().prefix("adq-canary-").tempfile()?;
        let secret = canary.path().file_name().unwrap_or_default().to_string_lossy().chars().rev().collect::<String>();
        canary.write_all(secret.as_bytes())?;
        let outside = std::env::temp_dir().join(format!("adq-outside-{}", std::process::id()));
        let streams = TcpListener::bind(("127.0.0.1", 0))?;
        let port = streams.local_addr()?.port();
        let datagrams = UdpSocket::bind(("127.0.0.1", port))?;
        streams.set_nonblocking(true)?;
        datagrams.set_nonblocking(true)?;
        Ok(Self { canary, secret, outside, streams, datagrams, port })
    }

    /// What was reached, if anything. `text` is all that the cheat could say.
    pub fn taken(&self, text: &str) -> Option<String> {
        let canary = std::fs::read(self.canary.path()).unwrap_or_default();
        let found = [
            (self.outside.exists(), "a file of the host was written"),
            (canary != self.secret.as_bytes(), "a file of the host was changed"),
            (text.contains(&self.secret), "a file of the host was read"),
            (self.streams.accept().is_ok(), "a port of the host was reached"),
            (self.datagrams.recv(&mut [0; 8]).is_ok(), "a port of the host was reached"),
        ];
        found.iter().find(|(taken, _)| *taken).map(|&(_, what)| what.to_owned())
    }
}
