//! Runs one program on a copy of given files, cut off from the machine, or says why this machine cannot do that.
//!
//! What stands around a program, each part indispensable: user, mount, pid, network, IPC and UTS namespaces; a root of its
//! own in memory that holds the given files, the interpreter and its libraries, and nothing else; Landlock; a list of the
//! system calls that it may make (no sockets among them); resource limits; no capability and no way to gain one. Where one
//! of them is missing [`Sandbox::run`] returns [`SandboxError::Missing`] with its name, and nothing has run. Landlock's
//! network rules and scopes, which only newer kernels have, are used where they exist: the other parts cover them.
//!
//! Nothing that a program writes survives it: its files lie in memory and go with it; what comes back is its exit, its
//! standard output and its standard error. No folder of the host is ever writable, so no link can lead out of one.
//!
//! Isolation is shown, not assumed: [`Sandbox::probe`] runs a program that tries to get out, and says what each try met.
//!
//! # Processes
//!
//! ```text
//! caller ── spawns its own executable again (see `become_init_if_asked`) ──► A
//!           A  maps ids for B, waits            B  enters the namespaces
//!           C  first process of the pid namespace: mounts, keeps the wall clock, reaps; when it ends all end
//!           D  limits, Landlock, seccomp, then the program
//! ```
//!
//! A fork of a program with threads may do very little; so all this happens in a fresh, single-threaded process.
//!
//! Files: `job.rs` what is run and what comes of it; `spawn.rs` the caller's side; `inside/` A to D; `interpreter.rs` which
//! Python, and which files it needs; `probe.rs`, `probe.py` the proof.

mod error;
mod inside;
mod interpreter;
mod job;
mod probe;
mod spawn;

pub use error::{Mechanism, SandboxError};
pub use inside::become_init_if_asked;
pub use interpreter::Interpreter;
pub use job::{End, Job, Limits, Outcome};
pub use probe::{Probe, ProbeRow};
pub use spawn::Sandbox;
