//! The caller's side: start the first process, keep what the program writes, hear how it ended.

use crate::inside::{INIT_ARGUMENT, REPORT_FD};
use crate::job::Report;
use crate::{End, Job, Outcome, SandboxError};
use std::io::{PipeReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How much longer than its wall time a run may take to be set up and to end.
const GRACE: Duration = Duration::from_secs(20);
/// The longest report, in bytes.
const MAX_REPORT_BYTES: u64 = 64 << 10;

/// Where sandboxes come from.
#[derive(Debug, Clone)]
pub struct Sandbox {
    init: PathBuf,
}

/// What a reading thread has to say before it ends.
enum Event {
    TooLong,
    ReportClosed,
}

impl Default for Sandbox {
    /// The running program, which must call [`crate::become_init_if_asked`] first of all.
    fn default() -> Self {
        Self::with_init("/proc/self/exe")
    }
}

impl Sandbox {
    /// `init` is a program that calls [`crate::become_init_if_asked`] first of all.
    pub fn with_init(init: impl Into<PathBuf>) -> Self {
        Self { init: init.into() }
    }

    /// Runs a job to its end.
    ///
    /// # Errors
    /// [`SandboxError::Missing`] when this machine cannot isolate (nothing has run then); [`SandboxError::Dead`] when the
    /// sandbox ended without an answer. A program that fails, hangs or is ended is no error: see [`End`].
    pub fn run(&self, job: &Job) -> Result<Outcome, SandboxError> {
        let root = tempfile::Builder::new()
            .prefix("assay-sandbox-")
            .tempdir()
            .map_err(SandboxError::io("create a mount point"))?;
        let header = serde_json::to_vec(job).map_err(|error| SandboxError::Dead(error.to_string()))?;
        let (report, report_writer) = std::io::pipe().map_err(SandboxError::io("create a pipe"))?;
        let mut command = Command::new(&self.init);
        command.arg0("assay-sandbox").arg(INIT_ARGUMENT).arg(root.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).env_clear();
        let fd = report_writer.as_raw_fd();
        // SAFETY: the closure calls dup2 and fcntl alone, which are async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                // dup2 onto itself would keep close-on-exec.
                let kept = if fd == REPORT_FD { libc::fcntl(fd, libc::F_SETFD, 0) } else { libc::dup2(fd, REPORT_FD) };
                if kept < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
            });
        }
        let child = command.spawn().map_err(SandboxError::io(format!("start {}", self.init.display())))?;
        drop(report_writer);
        Running::new(child, report, job, header)?.finish()
    }
}

/// A started sandbox.
struct Running {
    child: Child,
    deadline: Instant,
    events: mpsc::Receiver<Event>,
    stdout: JoinHandle<Vec<u8>>,
    stderr: JoinHandle<Vec<u8>>,
    report: JoinHandle<Vec<u8>>,
}

impl Running {
    fn new(mut child: Child, report: PipeReader, job: &Job, header: Vec<u8>) -> Result<Self, SandboxError> {
        let (sender, events) = mpsc::channel();
        let missing = || SandboxError::Dead("a stream is missing".to_owned());
        let stdout = reader(child.stdout.take().ok_or_else(missing)?, job.limits.output_bytes, sender.clone());
        let stderr = reader(child.stderr.take().ok_or_else(missing)?, job.limits.output_bytes, sender.clone());
        let report = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // A report that cannot be read is one that is missing.
            let _ = report.take(MAX_REPORT_BYTES).read_to_end(&mut bytes);
            let _ = sender.send(Event::ReportClosed);
            bytes
        });
        if let Some(mut stdin) = child.stdin.take() {
            // A first process that died early says so in its report, or by having none.
            let _ = stdin.write_all(&(header.len() as u64).to_le_bytes()).and_then(|()| stdin.write_all(&header));
        }
        let deadline = Instant::now() + Duration::from_millis(job.limits.wall_ms) + GRACE;
        Ok(Self { child, deadline, events, stdout, stderr, report })
    }

    fn finish(mut self) -> Result<Outcome, SandboxError> {
        let event = self.events.recv_timeout(self.deadline.saturating_duration_since(Instant::now()));
        let too_long = matches!(event, Ok(Event::TooLong));
        // The others die with the first: each asked the kernel for that.
        let overdue = Instant::now() >= self.deadline;
        if too_long || overdue {
            let _ = self.child.kill();
        }
        let status = self.child.wait().map_err(SandboxError::io("wait for the sandbox"))?;
        let join = |thread: JoinHandle<Vec<u8>>| thread.join().unwrap_or_default();
        let (stdout, stderr, report) = (join(self.stdout), join(self.stderr), join(self.report));
        if too_long {
            return Ok(Outcome { end: End::OutputLimit, stdout, stderr });
        }
        let end = read_report(&report).unwrap_or_else(|| {
            let words = String::from_utf8_lossy(&stderr);
            let when = if overdue { "it did not end in time" } else { "it said nothing of the program's end" };
            Err(SandboxError::Dead(format!("{when} ({status}): {}", words.trim_end())))
        })?;
        Ok(Outcome { end, stdout, stderr })
    }
}

/// The first thing that the report says; nothing where it is empty or garbled.
fn read_report(report: &[u8]) -> Option<Result<End, SandboxError>> {
    let line = report.split(|&byte| byte == b'\n').next()?;
    Some(match serde_json::from_slice(line).ok()? {
        Report::Ended(end) => Ok(end),
        Report::Missing { mechanism, reason } => Err(SandboxError::Missing { mechanism, reason }),
    })
}

/// Keeps the first `limit` bytes of a stream, and says so when there are more.
fn reader(mut stream: impl Read + Send + 'static, limit: u64, events: mpsc::Sender<Event>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        // What cannot be read was not written.
        let _ = stream.by_ref().take(limit).read_to_end(&mut kept);
        if matches!(stream.read(&mut [0_u8]), Ok(1)) {
            let _ = events.send(Event::TooLong);
        }
        kept
    })
}
