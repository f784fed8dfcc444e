//! The processes of a sandbox: A maps ids, B enters the namespaces, C is their first process, D becomes the program.
//!
//! Files: `mod.rs` A, B and C; `root.rs` the root in memory; `program.rs` D; `filter.rs` the system calls.
//!
//! Every process but D waits for the next one, and dies with the one before it. All of them run this file alone and are
//! single-threaded.

mod filter;
mod program;
mod root;

pub(crate) use root::LOCKED;

use crate::job::Report;
use crate::{End, Job, Mechanism};
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getegid, geteuid};
use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{FromRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The argument that turns a program into the sandbox's first process.
pub(crate) const INIT_ARGUMENT: &str = "--assay-sandbox-init";
/// Where the report is written.
pub(crate) const REPORT_FD: RawFd = 3;
/// The most bytes of a job.
const MAX_JOB_BYTES: u64 = 1 << 30;
/// The program's user and group inside, and outside where the caller is root: nobody's.
pub(crate) const INSIDE_ID: u32 = 1000;
const OUTSIDE_ID: u32 = 65534;
/// How often the wall clock is looked at once it has run out: a signal before the wait would be lost otherwise.
const TICK: Duration = Duration::from_millis(50);

/// What stops a sandbox before its program runs.
#[derive(Debug)]
pub(crate) struct Missing(Mechanism, String);

impl Missing {
    /// For `map_err`: which part failed, doing what.
    pub(crate) fn at<E: std::fmt::Display>(mechanism: Mechanism, action: impl Into<String>) -> impl FnOnce(E) -> Self {
        let action = action.into();
        move |error| Self(mechanism, format!("{action}: {error}"))
    }
}

/// To be called first of all in a program that starts sandboxes with [`crate::Sandbox::default`]. Returns at once, unless the
/// program was started as a sandbox's first process; then it never returns.
pub fn become_init_if_asked() {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_none_or(|argument| argument != INIT_ARGUMENT) {
        return;
    }
    let root = arguments.next().map(PathBuf::from).unwrap_or_default();
    let ended = first(&root);
    end(ended)
}

/// Says how it went, and ends this process.
fn end(ended: Result<Option<End>, Missing>) -> ! {
    let report = match ended {
        Ok(None) => std::process::exit(0),
        Ok(Some(end)) => Report::Ended(end),
        Err(Missing(mechanism, reason)) => Report::Missing { mechanism, reason },
    };
    // SAFETY: the caller put its pipe there, and this process ends now.
    let mut pipe = unsafe { File::from_raw_fd(REPORT_FD) };
    let line = serde_json::to_string(&report).unwrap_or_default() + "\n";
    let _ = pipe.write_all(line.as_bytes());
    std::process::exit(0)
}

/// This process dies when its parent does.
fn die_with_parent() {
    // SAFETY: takes a number, touches no memory of ours.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// A: reads the job, maps ids for B.
fn first(root: &Path) -> Result<Option<End>, Missing> {
    die_with_parent();
    let job = read_job().map_err(Missing::at(Mechanism::Program, "read the job"))?;
    // Root inside somebody's namespace may be root in name only.
    let privileged = geteuid().is_root() && nix::unistd::setgroups(&[]).is_ok() && has_nobody();
    let pipe = || std::io::pipe().map_err(Missing::at(Mechanism::UserNamespace, "create a pipe"));
    let ((mut entered, entered_writer), (mapped, mut mapped_writer)) = (pipe()?, pipe()?);
    // SAFETY: this process has one thread.
    match unsafe { fork() }.map_err(Missing::at(Mechanism::PidNamespace, "fork"))? {
        ForkResult::Child => {
            drop((entered, mapped_writer));
            end(second(&job, root, entered_writer, mapped))
        }
        ForkResult::Parent { child } => {
            drop((entered_writer, mapped));
            // Where B could not enter it has said so itself.
            if entered.read_exact(&mut [0]).is_ok() {
                map_ids(child, privileged)?;
                let _ = mapped_writer.write_all(&[1]);
            }
            wait_for(child)?;
            Ok(None)
        }
    }
}

/// Whether nobody's id exists here; in a namespace with few ids it may not.
fn has_nobody() -> bool {
    let has = |file: &str| {
        std::fs::read_to_string(file).unwrap_or_default().lines().any(|line| {
            let numbers: Vec<u64> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
            matches!(numbers[..], [first, _, count] if (first..first.saturating_add(count)).contains(&u64::from(OUTSIDE_ID)))
        })
    };
    has("/proc/self/uid_map") && has("/proc/self/gid_map")
}

fn read_job() -> std::io::Result<Job> {
    let mut stdin = std::io::stdin().lock();
    let mut length = [0; 8];
    stdin.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_JOB_BYTES {
        return Err(std::io::Error::other(format!("the job has {length} bytes, expected at most {MAX_JOB_BYTES}")));
    }
    let mut bytes = Vec::new();
    stdin.take(length).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// Root maps itself, to set things up, and nobody's id, which the program gets; anyone else maps themselves.
fn map_ids(child: Pid, privileged: bool) -> Result<(), Missing> {
    let write = |file: &str, text: String| {
        std::fs::write(format!("/proc/{child}/{file}"), text)
            .map_err(Missing::at(Mechanism::UserNamespace, format!("write {file}")))
    };
    if privileged {
        let map = format!("0 0 1\n{INSIDE_ID} {OUTSIDE_ID} 1\n");
        write("uid_map", map.clone())?;
        return write("gid_map", map);
    }
    write("setgroups", "deny".to_owned())?;
    write("uid_map", format!("{INSIDE_ID} {} 1\n", geteuid()))?;
    write("gid_map", format!("{INSIDE_ID} {} 1\n", getegid()))
}

/// B: enters the namespaces, one after the other so that the one that is missing has a name.
fn second(job: &Job, root: &Path, mut entered: PipeWriter, mut mapped: PipeReader) -> Result<Option<End>, Missing> {
    die_with_parent();
    let enter = |flag, mechanism| unshare(flag).map_err(Missing::at(mechanism, "unshare"));
    enter(CloneFlags::CLONE_NEWUSER, Mechanism::UserNamespace)?;
    let met = entered.write_all(&[1]).and_then(|()| mapped.read_exact(&mut [0]));
    if met.is_err() {
        // A has said why.
        return Ok(None);
    }
    enter(CloneFlags::CLONE_NEWNS, Mechanism::MountNamespace)?;
    enter(CloneFlags::CLONE_NEWNET, Mechanism::NetNamespace)?;
    enter(CloneFlags::CLONE_NEWIPC, Mechanism::IpcNamespace)?;
    enter(CloneFlags::CLONE_NEWUTS, Mechanism::UtsNamespace)?;
    enter(CloneFlags::CLONE_NEWPID, Mechanism::PidNamespace)?;
    nix::unistd::sethostname("sandbox").map_err(Missing::at(Mechanism::UtsNamespace, "set the host name"))?;
    // SAFETY: this process has one thread.
    match unsafe { fork() }.map_err(Missing::at(Mechanism::PidNamespace, "fork"))? {
        ForkResult::Child => end(third(job, root)),
        ForkResult::Parent { child } => {
            wait_for(child)?;
            Ok(None)
        }
    }
}

/// Waits for a process that says itself how it went.
fn wait_for(child: Pid) -> Result<(), Missing> {
    loop {
        match waitpid(child, None) {
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => return Ok(()),
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(Missing(Mechanism::PidNamespace, format!("wait: {error}"))),
        }
    }
}

/// C: the first process of the pid namespace. When it ends, the kernel ends every other process in it.
fn third(job: &Job, root: &Path) -> Result<Option<End>, Missing> {
    die_with_parent();
    if std::os::unix::process::parent_id() != 0 {
        return Err(Missing(Mechanism::PidNamespace, "the first process sees its parent".to_owned()));
    }
    root::build(job, root)?;
    // SAFETY: this process has one thread.
    match unsafe { fork() }.map_err(Missing::at(Mechanism::PidNamespace, "fork"))? {
        ForkResult::Child => {
            let Err(missing) = program::become_program(job);
            end(Err(missing))
        }
        ForkResult::Parent { child } => keep(child, Duration::from_millis(job.limits.wall_ms)),
    }
}

extern "C" fn wake(_: libc::c_int) {}

/// Reaps until the program has ended or its time is over.
fn keep(program: Pid, wall: Duration) -> Result<Option<End>, Missing> {
    // Nothing here holds the program's streams open.
    for fd in 0..3 {
        let _ = nix::unistd::close(fd);
    }
    let started = Instant::now();
    set_alarm(wall)?;
    loop {
        let status = waitpid(None, None);
        if started.elapsed() >= wall {
            return Ok(Some(End::TimedOut));
        }
        match status {
            Ok(WaitStatus::Exited(pid, code)) if pid == program => return Ok(Some(End::Exited(code))),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == program => {
                return Ok(Some(End::Signalled(signal as i32)));
            }
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(Missing(Mechanism::PidNamespace, format!("wait: {error}"))),
        }
    }
}

/// A signal at the end of `wall`, and again and again, that interrupts a wait.
fn set_alarm(wall: Duration) -> Result<(), Missing> {
    let time = |duration: Duration| libc::timeval {
        tv_sec: duration.as_secs() as libc::time_t,
        tv_usec: duration.subsec_micros() as libc::suseconds_t,
    };
    let timer = libc::itimerval { it_interval: time(TICK), it_value: time(wall.max(TICK)) };
    // SAFETY: the action is zeroed but for its handler, which does nothing; both structures outlive the calls.
    let set = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = wake as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()) == 0
            && libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) == 0
    };
    if set {
        return Ok(());
    }
    Err(Missing(Mechanism::Rlimits, format!("set the wall clock: {}", std::io::Error::last_os_error())))
}
