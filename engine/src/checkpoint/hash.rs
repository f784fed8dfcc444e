//! SHA-256 of the files that decide what a model computes.

use std::io::Read;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::error::CheckpointError;
use super::hash_cache::HashCache;
use super::open::{CONFIG_FILE, Checkpoint, TOKENIZER_FILE};
use crate::file;

/// Bytes that are read at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// One file's fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileHash {
    /// Name within the checkpoint's folder.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256, 64 lowercase hexadecimal digits.
    pub sha256: String,
}

impl Checkpoint {
    /// Hashes `config.json`, `tokenizer.json` where there is one, and every shard, in this order, several at a time.
    /// Reads the files themselves and not the maps, so resident memory does not grow. `progress` is called with the number
    /// of bytes each time some have been hashed. Files that `cache` knows are not read.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn file_hashes(
        &self,
        cache: Option<&HashCache>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<FileHash>, CheckpointError> {
        // The very bytes that were read, should the file have changed since.
        let config = self.config_bytes();
        progress(config.len() as u64);
        let sha256 = hex(&Sha256::digest(config));
        let mut hashes = vec![FileHash { name: CONFIG_FILE.to_owned(), bytes: config.len() as u64, sha256 }];
        let mut paths = Vec::new();
        let tokenizer = self.dir().join(TOKENIZER_FILE);
        if tokenizer.exists() {
            paths.push(tokenizer);
        }
        paths.extend(self.shards().iter().map(|shard| shard.path().to_owned()));
        let files = paths.par_iter().map(|path: &PathBuf| named_hash(path, cache, progress));
        hashes.extend(files.collect::<Result<Vec<_>, _>>()?);
        Ok(hashes)
    }
}

fn named_hash(
    path: &Path,
    cache: Option<&HashCache>,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<FileHash, CheckpointError> {
    let hash = || hash_file(path, progress);
    let sha256 = match cache {
        None => hash()?,
        Some(cache) => cache.hash(path, hash)?,
    };
    let bytes = path.metadata().map_err(CheckpointError::io("inspect", path))?.len();
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Ok(FileHash { name, bytes, sha256 })
}

fn hash_file(path: &Path, progress: &(dyn Fn(u64) + Sync)) -> Result<String, CheckpointError> {
    let mut file = file::open(path)?;
    let mut buffer = vec![0u8; BUFFER_BYTES];
    let mut hasher = Sha256::new();
    loop {
        let count = match file.read(&mut buffer) {
            Ok(0) => return Ok(hex(&hasher.finalize())),
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(CheckpointError::io("read", path)(error)),
        };
        hasher.update(&buffer[..count]);
        progress(count as u64);
    }
}

/// Lowercase hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
