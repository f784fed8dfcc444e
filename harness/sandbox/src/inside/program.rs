//! D: gives up everything that the program must not have, then becomes it.

use super::root::{NULL, TMP, WORK};
use super::{INSIDE_ID, Missing, REPORT_FD, filter};
use crate::{Job, Mechanism};
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, RestrictionStatus, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, Uid, getuid};
use std::convert::Infallible;
use std::ffi::CString;
use std::io::{Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd};

/// The newest rights of Landlock that are asked for; an older kernel gives what it has.
const LANDLOCK: ABI = ABI::V6;
/// Open files of a process.
const OPEN_FILES: u64 = 64;
/// Processes of the sandbox itself that may count as the program's.
const OWN_PROCESSES: u64 = 3;
/// The largest number of a capability that a kernel could have.
const MAX_CAPABILITY: libc::c_ulong = 63;

/// Becomes the program.
pub(super) fn become_program(job: &Job) -> Result<Infallible, Missing> {
    super::die_with_parent();
    // SAFETY: takes numbers, touches no memory of ours. The report closes when the program starts.
    unsafe { libc::fcntl(REPORT_FD, libc::F_SETFD, libc::FD_CLOEXEC) };
    let argv = strings(job.argv.iter())?;
    let env = strings(job.env.iter().map(|(name, value)| format!("{name}={value}")))?;
    feed(&job.stdin).map_err(Missing::at(Mechanism::Program, "pass standard input"))?;
    limit(job)?;
    drop_privileges()?;
    // The death of a parent is forgotten when ids change.
    super::die_with_parent();
    lock(job)?;
    filter::apply().map_err(|reason| Missing(Mechanism::Seccomp, reason))?;
    let program = argv.first().ok_or_else(|| Missing(Mechanism::Program, "there is none".to_owned()))?;
    nix::unistd::execve(program, &argv, &env)
        .map_err(Missing::at(Mechanism::Program, format!("start {}", program.to_string_lossy())))
}

fn strings(texts: impl Iterator<Item = impl ToString>) -> Result<Vec<CString>, Missing> {
    texts
        .map(|text| CString::new(text.to_string()))
        .collect::<Result<_, _>>()
        .map_err(Missing::at(Mechanism::Program, "read the command line"))
}

/// Standard input is a file in memory.
fn feed(content: &[u8]) -> std::io::Result<()> {
    // SAFETY: the name is a C string; the descriptor is checked before it is owned.
    let mut file = unsafe {
        let fd = libc::memfd_create(c"stdin".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        std::fs::File::from_raw_fd(fd)
    };
    file.write_all(content)?;
    file.rewind()?;
    // SAFETY: both descriptors are open.
    if unsafe { libc::dup2(file.as_raw_fd(), 0) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

fn limit(job: &Job) -> Result<(), Missing> {
    let limits = &job.limits;
    let set = |resource, soft, hard| {
        setrlimit(resource, soft, hard).map_err(Missing::at(Mechanism::Rlimits, format!("{resource:?}")))
    };
    // The soft limit's signal says what happened; the hard one ends who catches it.
    set(Resource::RLIMIT_CPU, limits.cpu_s, limits.cpu_s.saturating_add(1))?;
    let processes = limits.processes.saturating_add(OWN_PROCESSES);
    for (resource, most) in [
        (Resource::RLIMIT_AS, limits.memory_bytes),
        (Resource::RLIMIT_NPROC, processes),
        (Resource::RLIMIT_FSIZE, limits.disk_bytes),
        (Resource::RLIMIT_NOFILE, OPEN_FILES),
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_MEMLOCK, 0),
    ] {
        set(resource, most, most)?;
    }
    Ok(())
}

/// Nobody's ids, no capability in any set, and none to be had from a file.
fn drop_privileges() -> Result<(), Missing> {
    let failed =
        |action: &str| Missing(Mechanism::Privileges, format!("{action}: {}", std::io::Error::last_os_error()));
    for capability in 0..=MAX_CAPABILITY {
        // SAFETY: takes numbers, touches no memory of ours. A capability that the kernel does not know is none.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
    let (user, group) = (Uid::from_raw(INSIDE_ID), Gid::from_raw(INSIDE_ID));
    if getuid() != user {
        nix::unistd::setresgid(group, group, group).map_err(Missing::at(Mechanism::Privileges, "change group"))?;
        nix::unistd::setresuid(user, user, user).map_err(Missing::at(Mechanism::Privileges, "change user"))?;
    }
    /// As in `linux/capability.h`, version 3.
    const VERSION_3: u32 = 0x2008_0522;
    let header: [u32; 2] = [VERSION_3, 0];
    let none = [0_u32; 6];
    // SAFETY: header and sets have the sizes that version 3 states.
    if unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) } != 0 {
        return Err(failed("drop capabilities"));
    }
    // SAFETY: takes numbers, touches no memory of ours.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(failed("refuse new privileges"));
    }
    Ok(())
}

/// Landlock: reads and executes what it is given, writes to its own folders, nothing else.
fn lock(job: &Job) -> Result<(), Missing> {
    let status = rules(job).map_err(Missing::at(Mechanism::Landlock, "restrict"))?;
    if status.ruleset == RulesetStatus::NotEnforced {
        let reason = format!("the kernel does not enforce it: {:?}", status.landlock);
        return Err(Missing(Mechanism::Landlock, reason));
    }
    Ok(())
}

fn rules(job: &Job) -> Result<RestrictionStatus, Box<dyn std::error::Error>> {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?;
    let allow = |ruleset: RulesetCreated, path: &std::path::Path, access: landlock::BitFlags<AccessFs>| {
        let access = if path.is_dir() { access } else { access & AccessFs::from_file(LANDLOCK) };
        Ok::<_, Box<dyn std::error::Error>>(ruleset.add_rule(PathBeneath::new(PathFd::new(path)?, access))?)
    };
    let mut ruleset = ruleset;
    for path in &job.read_only {
        ruleset = allow(ruleset, path, AccessFs::from_read(LANDLOCK))?;
    }
    for path in [WORK, TMP, NULL] {
        let access = AccessFs::from_all(LANDLOCK) & !AccessFs::Execute;
        ruleset = allow(ruleset, path.as_ref(), access)?;
    }
    let restricted: Result<_, RulesetError> = ruleset.restrict_self();
    Ok(restricted?)
}
