//! Hashes of large files that were hashed before, recognised by what the file system says of them.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::error::CheckpointError;
use crate::file;

/// Files with fewer bytes are hashed each time: it takes ten milliseconds.
const MIN_BYTES: u64 = 16 << 20;
/// The longest list that is read, in bytes: some 50,000 files.
const MAX_LIST_BYTES: u64 = 16 << 20;
/// A file that changed less than this before it was hashed may have changed once more within one tick of the file
/// system's clock, and is not remembered.
const SETTLED: Duration = Duration::from_secs(2);

/// What a file was when it was hashed. The time of its last change of state cannot be set by a program, as that of its
/// content can.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Seen {
    device: u64,
    inode: u64,
    bytes: u64,
    modified_s: i64,
    modified_ns: i64,
    changed_s: i64,
    changed_ns: i64,
}

impl Seen {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified_s: metadata.mtime(),
            modified_ns: metadata.mtime_nsec(),
            changed_s: metadata.ctime(),
            changed_ns: metadata.ctime_nsec(),
        }
    }

    /// True if the file has been as it is for a while.
    fn is_settled(&self) -> bool {
        let since_epoch = |seconds: i64| Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let last = since_epoch(self.modified_s.max(self.changed_s)) + SETTLED;
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).is_ok_and(|now| now > last)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    seen: Seen,
    sha256: String,
}

/// A list of hashes, kept as a file of this machine. It saves reading a checkpoint of hundreds of gigabytes at every start; who
/// doubts it asks for every file to be read again.
#[derive(Debug)]
pub struct HashCache {
    path: PathBuf,
    recheck: bool,
    entries: Mutex<BTreeMap<PathBuf, Entry>>,
}

impl HashCache {
    /// Opens the list at `path`; empty where there is none, or none that can be read: everything is then hashed. With
    /// `recheck` every file is hashed whatever the list says, and one whose content changed unseen is an error.
    pub fn open(path: &Path, recheck: bool) -> Self {
        Self { path: path.to_path_buf(), recheck, entries: Mutex::new(read(path)) }
    }

    /// The hash of the file at `path`, as 64 hexadecimal digits, from the list or by `hash`.
    pub(super) fn hash(
        &self,
        path: &Path,
        hash: impl FnOnce() -> Result<String, CheckpointError>,
    ) -> Result<String, CheckpointError> {
        let look = || path.metadata().map(|metadata| Seen::of(&metadata)).map_err(CheckpointError::io("inspect", path));
        let before = look()?;
        let name = std::path::absolute(path).map_err(CheckpointError::io("find", path))?;
        let known = self.lock().get(&name).filter(|entry| entry.seen == before).map(|entry| entry.sha256.clone());
        if let (Some(sha256), false) = (&known, self.recheck) {
            return Ok(sha256.clone());
        }
        let sha256 = hash()?;
        if let Some(known) = known.filter(|known| *known != sha256) {
            let found = format!("content with SHA-256 {sha256}");
            let expected = format!("{known}, as when it was last read: the file changed without a trace");
            return Err(CheckpointError::Malformed { path: path.to_owned(), found, expected });
        }
        if before.bytes >= MIN_BYTES && before.is_settled() && look()? == before {
            self.lock().insert(name, Entry { seen: before, sha256: sha256.clone() });
        }
        Ok(sha256)
    }

    /// Writes the list, together with what other processes have added meanwhile and without files that are gone.
    ///
    /// # Errors
    /// When it cannot be written; nothing is lost but time.
    pub fn save(&self) -> std::io::Result<()> {
        let mut entries = read(&self.path);
        let before = entries.clone();
        entries.extend(self.lock().iter().map(|(path, entry)| (path.clone(), entry.clone())));
        entries.retain(|path, _| path.exists());
        if entries == before {
            return Ok(());
        }
        let folder = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)?;
        let mut file = tempfile::Builder::new().suffix(".tmp").tempfile_in(folder)?;
        serde_json::to_writer_pretty(&mut file, &entries)?;
        file.persist(&self.path)?;
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<PathBuf, Entry>> {
        self.entries.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn read(path: &Path) -> BTreeMap<PathBuf, Entry> {
    let list = file::read(path, MAX_LIST_BYTES).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    list.unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_file_is_read_once_and_again_when_it_changed() {
        let folder = tempfile::tempdir().unwrap();
        let (list, model) = (folder.path().join("cache/hashes.json"), folder.path().join("model"));
        let reads = Cell::new(0);
        let hash = |recheck, answer: &str| {
            let cache = HashCache::open(&list, recheck);
            let hashed = cache.hash(&model, || {
                reads.set(reads.get() + 1);
                Ok(answer.to_owned())
            });
            cache.save().unwrap();
            hashed
        };
        std::fs::write(&model, vec![0_u8; MIN_BYTES as usize]).unwrap();
        assert_eq!(hash(false, "a").unwrap(), "a");
        assert!(!list.exists(), "a file that has just been written is not remembered");
        std::thread::sleep(SETTLED + Duration::from_millis(1100));
        assert_eq!(hash(false, "a").unwrap(), "a");
        assert_eq!(reads.replace(0), 2);

        assert_eq!(hash(false, "not asked").unwrap(), "a");
        assert_eq!(reads.replace(0), 0);
        assert_eq!(hash(true, "a").unwrap(), "a");
        assert_eq!(reads.replace(0), 1, "on demand it is read all the same");
        let error = hash(true, "b").unwrap_err().to_string();
        assert!(error.contains("changed without a trace"), "{error}");

        // The same size and the same time of modification, as a forger would leave them.
        let modified = model.metadata().unwrap().modified().unwrap();
        std::fs::write(&model, vec![1_u8; MIN_BYTES as usize]).unwrap();
        std::fs::File::options().write(true).open(&model).unwrap().set_modified(modified).unwrap();
        assert_eq!(hash(false, "c").unwrap(), "c");

        std::fs::write(&list, "not a list").unwrap();
        assert_eq!(hash(false, "d").unwrap(), "d");
    }
}
