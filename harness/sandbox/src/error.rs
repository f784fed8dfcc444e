//! What can go wrong before and around a program, which is never the program's own failure.

use serde::{Deserialize, Serialize};

/// A part of the isolation. All are indispensable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mechanism {
    /// Ids of its own, without rights outside.
    UserNamespace,
    /// Mounts of its own.
    MountNamespace,
    /// Sees and signals its own processes alone.
    PidNamespace,
    /// No interface, not even a loopback that is up.
    NetNamespace,
    /// No shared memory or queues of others.
    IpcNamespace,
    /// A host name of its own.
    UtsNamespace,
    /// The root in memory.
    Root,
    /// A second wall around files.
    Landlock,
    /// The list of system calls.
    Seccomp,
    /// Limits of CPU time, memory, processes and files.
    Rlimits,
    /// No capability, and no way to gain one.
    Privileges,
    /// Starting the program itself.
    Program,
}

impl std::fmt::Display for Mechanism {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::UserNamespace => "user namespace",
            Self::MountNamespace => "mount namespace",
            Self::PidNamespace => "pid namespace",
            Self::NetNamespace => "network namespace",
            Self::IpcNamespace => "IPC namespace",
            Self::UtsNamespace => "UTS namespace",
            Self::Root => "root in memory",
            Self::Landlock => "Landlock",
            Self::Seccomp => "seccomp",
            Self::Rlimits => "resource limits",
            Self::Privileges => "dropping of privileges",
            Self::Program => "start of the program",
        })
    }
}

/// The sandbox, not the program in it, failed.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// This machine cannot isolate: nothing has run.
    #[error("cannot isolate here: {mechanism}: {reason}")]
    Missing {
        /// The part that is missing.
        mechanism: Mechanism,
        /// What the system said.
        reason: String,
    },
    /// The sandbox ended without saying how the program ended.
    #[error("the sandbox died: {0}")]
    Dead(String),
    /// The probe got out, or could not be read.
    #[error("isolation does not hold: {0}")]
    Leaks(String),
    /// No Python that could be used.
    #[error("no Python 3 to run tasks with: {0}")]
    Interpreter(String),
    /// The host's own calls failed.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried.
        action: String,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl SandboxError {
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }
}
