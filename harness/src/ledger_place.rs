//! Which ledgers there are, where, and what vouches for the tracked one's end.

use crate::repository::Repository;
use anyhow::Context;
use assay_engine::file;
use assay_ledgers::{Head, Record};
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A ledger's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LedgerPlace {
    /// Where runs append on this machine; not tracked by git, so that a run never dirties the tree that it names.
    Local,
    /// Where chosen records are kept for everyone.
    Tracked,
    /// Anywhere else.
    Folder(PathBuf),
}

impl LedgerPlace {
    /// The folder.
    pub fn folder(&self, repository: &Repository) -> PathBuf {
        match self {
            LedgerPlace::Local => repository.path("ledgers/local"),
            LedgerPlace::Tracked => repository.path("ledgers/tracked"),
            LedgerPlace::Folder(folder) => folder.clone(),
        }
    }
}

impl FromStr for LedgerPlace {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "local" => LedgerPlace::Local,
            "tracked" => LedgerPlace::Tracked,
            folder => LedgerPlace::Folder(folder.into()),
        })
    }
}

/// The ledgers of this checkout that there are.
pub fn places(repository: &Repository) -> impl Iterator<Item = PathBuf> {
    let folders = [LedgerPlace::Local, LedgerPlace::Tracked].map(|place| place.folder(repository));
    folders.into_iter().filter(|folder| folder.exists())
}

/// Every record of them, one that was published twice: either may say what invalidates a record of the other.
///
/// # Errors
/// When one cannot be read.
pub fn known_records(repository: &Repository) -> anyhow::Result<Vec<Record>> {
    let mut records = Vec::new();
    for folder in places(repository) {
        for record in assay_ledgers::read(folder)? {
            records.push(record?);
        }
    }
    Ok(records)
}

/// Where the tracked ledger's chains ended when the reports were last made, under the repository's root. Kept apart from
/// the ledger, so that a removed end shows.
const ANCHORS: &str = "reports/heads.json";
/// The longest list of anchors that is read, in bytes: some 5,000 of them.
const MAX_ANCHORS_BYTES: u64 = 1 << 20;

/// The anchors; none where no report has been made yet.
///
/// # Errors
/// When the file cannot be read or is no list of heads.
pub fn read_anchors(repository: &Repository) -> anyhow::Result<Vec<Head>> {
    let path = repository.path(ANCHORS);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = file::read(&path, MAX_ANCHORS_BYTES)?;
    serde_json::from_slice(&text).with_context(|| format!("{} is no list of heads", path.display()))
}

/// Replaces the anchors.
///
/// # Errors
/// When the file cannot be written.
pub fn write_anchors(repository: &Repository, heads: &[Head]) -> anyhow::Result<()> {
    replace_file(&repository.path(ANCHORS), &(serde_json::to_string_pretty(heads)? + "\n"))
}

/// Writes a file beside its place and renames it, so that it is the old one or the new one, whatever happens.
///
/// # Errors
/// When it cannot be written.
pub fn replace_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let write = || -> std::io::Result<()> {
        let mut file = tempfile::Builder::new().suffix(".tmp").permissions(readable()).tempfile_in(folder)?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// As an editor would create a file; the umask takes its share.
fn readable() -> Permissions {
    Permissions::from_mode(0o666)
}
