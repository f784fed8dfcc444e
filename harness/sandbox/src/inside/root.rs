//! The root in memory: the given files, the interpreter, and nothing else of the host.

use super::{INSIDE_ID, Missing};
use crate::{Job, Mechanism};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::{Gid, Uid, chdir, chown, pivot_root};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// The current folder of the program.
pub(super) const WORK: &str = "/work";
pub(super) const TMP: &str = "/tmp";
pub(super) const NULL: &str = "/dev/null";
/// Readable by anyone as far as the root goes, and no Landlock rule covers it: reading it shows that Landlock is off.
pub(crate) const LOCKED: &str = "/locked";
/// The root itself holds folders, links and one file.
const ROOT_BYTES: u64 = 1 << 20;
/// Links at the top of a merged file system, as `/lib64` to `usr/lib64`.
const TOP_LINKS: [&str; 5] = ["bin", "sbin", "lib", "lib32", "lib64"];

fn at<E: std::fmt::Display>(action: impl Into<String>) -> impl FnOnce(E) -> Missing {
    Missing::at(Mechanism::Root, action)
}

/// Builds the root on the empty folder `root` and moves into it.
pub(super) fn build(job: &Job, root: &Path) -> Result<(), Missing> {
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .map_err(Missing::at(Mechanism::MountNamespace, "make mounts private"))?;
    memory(root, ROOT_BYTES, MsFlags::empty())?;
    for name in TOP_LINKS {
        if let Ok(target) = std::fs::read_link(Path::new("/").join(name)) {
            std::os::unix::fs::symlink(target, root.join(name)).map_err(at("link"))?;
        }
    }
    for path in &job.read_only {
        bind(root, path, libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV)?;
    }
    // A device file works only where devices do.
    bind(root, Path::new(NULL), libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC)?;
    for folder in [WORK, TMP] {
        let folder = under(root, Path::new(folder));
        std::fs::create_dir(&folder).map_err(at(format!("create {}", folder.display())))?;
        memory(&folder, job.limits.disk_bytes, MsFlags::MS_NOEXEC)?;
        own(&folder)?;
    }
    write_files(job, &under(root, Path::new(WORK)))?;
    std::fs::write(under(root, Path::new(LOCKED)), "locked\n").map_err(at("write a file"))?;
    enter(root)
}

/// A file system in memory.
fn memory(folder: &Path, bytes: u64, flags: MsFlags) -> Result<(), Missing> {
    let options = format!("size={bytes},nr_inodes=16384,mode=0755");
    mount(Some("tmpfs"), folder, Some("tmpfs"), flags | MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some(options.as_str()))
        .map_err(at(format!("mount memory on {}", folder.display())))
}

/// `path`, which is absolute, under another root.
fn under(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Shows a file or folder of the host at its own path, with these attributes on every mount below it.
fn bind(root: &Path, path: &Path, attributes: u64) -> Result<(), Missing> {
    let target = under(root, path);
    let made = if path.is_dir() {
        std::fs::create_dir_all(&target)
    } else {
        target.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::write(&target, ""))
    };
    made.map_err(at(format!("create {}", target.display())))?;
    mount(Some(path), &target, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .map_err(at(format!("show {}", path.display())))?;
    set_attributes(&target, attributes, true)
}

/// Adds attributes to a mount, and to those below it; what is locked stays as it is.
fn set_attributes(path: &Path, attributes: u64, recursive: bool) -> Result<(), Missing> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(at("name a mount"))?;
    // SAFETY: zero is a valid value of every field.
    let mut wanted: libc::mount_attr = unsafe { std::mem::zeroed() };
    wanted.attr_set = attributes;
    let flags = if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: name and structure outlive the call, and the size is the structure's.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            name.as_ptr(),
            flags,
            &raw const wanted,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Missing(Mechanism::Root, format!("protect {}: {error}", path.display())))
}

/// Gives a file or folder to the program.
fn own(path: &Path) -> Result<(), Missing> {
    chown(path, Some(Uid::from_raw(INSIDE_ID)), Some(Gid::from_raw(INSIDE_ID)))
        .map_err(at(format!("hand over {}", path.display())))
}

fn write_files(job: &Job, work: &Path) -> Result<(), Missing> {
    for (name, content) in &job.files {
        let relative = Path::new(name);
        let plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
        if name.is_empty() || !plain {
            return Err(Missing(Mechanism::Root, format!("{name:?} is no relative path without . and ..")));
        }
        let mut folder = work.to_owned();
        for part in relative.parent().into_iter().flat_map(Path::components) {
            folder.push(part);
            if !folder.is_dir() {
                std::fs::create_dir(&folder).map_err(at(format!("create {}", folder.display())))?;
                own(&folder)?;
            }
        }
        let path = work.join(relative);
        std::fs::write(&path, content).map_err(at(format!("write {name}")))?;
        own(&path)?;
    }
    Ok(())
}

/// Moves into the new root, which nobody can write to from then on, and lets go of the old one.
fn enter(root: &Path) -> Result<(), Missing> {
    chdir(root).map_err(at("enter the root"))?;
    pivot_root(".", ".").map_err(at("change the root"))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(at("leave the old root"))?;
    chdir("/").map_err(at("enter the root"))?;
    set_attributes(Path::new("/"), libc::MOUNT_ATTR_RDONLY, false)?;
    chdir(WORK).map_err(at("enter the folder of work"))
}
