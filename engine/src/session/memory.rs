//! How much host memory is left: of the machine, and of every control group that this process is in.
//!
//! A group's limit may be far below the machine's memory, and what exceeds it is killed. Version 2 of control groups states
//! `memory.max` and `memory.current` in one hierarchy, version 1 `memory.limit_in_bytes` and `memory.usage_in_bytes` in the
//! memory controller's own; every ancestor's limit holds too. Page cache that is not in use (`inactive_file`) is given back by
//! the kernel before it refuses anything, and counts as left.

use std::path::{Path, PathBuf};

/// Text of a file of `/proc` or a control group is read up to here.
const MAX_BYTES: u64 = 64 << 10;

/// Bytes that this process may still take, the least of all that is stated; `None` where nothing is, as outside Linux.
pub fn headroom() -> Option<u64> {
    headroom_under(Path::new("/"))
}

fn headroom_under(root: &Path) -> Option<u64> {
    let machine = text(&root.join("proc/meminfo")).and_then(|text| available(&text));
    let groups = text(&root.join("proc/self/cgroup")).unwrap_or_default();
    let group = groups.lines().filter_map(|line| group_headroom(root, line)).min();
    machine.into_iter().chain(group).min()
}

/// `MemAvailable` of `/proc/meminfo`.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Of one line of `/proc/self/cgroup`: `hierarchy:controllers:path`.
fn group_headroom(root: &Path, line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let (mount, limit, usage, inactive) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        _ if controllers.split(',').any(|name| name == "memory") => {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        }
        _ => return None,
    };
    let mount = root.join(mount);
    let own: PathBuf = mount.join(path.trim_start_matches('/'));
    let of = |folder: &Path| {
        let number = |name: &str| text(&folder.join(name))?.trim().parse::<u64>().ok();
        let inactive = text(&folder.join("memory.stat")).and_then(|text| stat(&text, inactive)).unwrap_or(0);
        Some(number(limit)?.saturating_sub(number(usage)?.saturating_sub(inactive)))
    };
    // In a container the path may be the host's, and the mount itself the group.
    own.ancestors().take_while(|folder| folder.starts_with(&mount)).filter_map(of).min()
}

/// A named number of `memory.stat`.
fn stat(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

fn text(path: &Path) -> Option<String> {
    crate::file::read_text(path, MAX_BYTES).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;

    fn headroom_of(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        headroom_under(root.path())
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:  1000 kB\nMemAvailable:    900 kB\n");

    #[test]
    fn without_groups_the_machine_counts() {
        assert_eq!(headroom_of(&[]), None);
        assert_eq!(headroom_of(&[MEMINFO]), Some(900 * 1024));
        assert_eq!(headroom_of(&[MEMINFO, ("proc/self/cgroup", "0::/none\n1:cpu:/x\nnonsense\n")]), Some(900 * 1024));
    }

    #[test]
    fn version_2_counts_every_ancestor_and_idle_page_cache() {
        let group = ("proc/self/cgroup", "0::/a/b\n");
        let own = [("sys/fs/cgroup/a/b/memory.max", "max\n"), ("sys/fs/cgroup/a/b/memory.current", "5000\n")];
        let parent = [
            ("sys/fs/cgroup/a/memory.max", "10000\n"),
            ("sys/fs/cgroup/a/memory.current", "7000\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 2500\n"),
        ];
        assert_eq!(headroom_of(&[&[MEMINFO, group][..], &own, &parent].concat()), Some(5500));
        assert_eq!(headroom_of(&[&[MEMINFO, group][..], &own].concat()), Some(900 * 1024));
    }

    #[test]
    fn version_1_and_a_group_seen_from_inside_its_container() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "9:cpuset:/docker/x\n4:cpu,memory:/docker/x\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "8000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "9000\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 1500\n"),
        ];
        assert_eq!(headroom_of(&files), Some(500));
    }
}
