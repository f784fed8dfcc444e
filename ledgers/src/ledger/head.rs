//! Where a chain ends: `<writer>.head`, rewritten after every append.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use crate::hash::canonical;
use crate::schema::{Head, WriterId};
use crate::{Error, Result};

/// The longest head or writer id that is read, in bytes; both have some hundred.
const SMALL_BYTES_MAX: u64 = 4096;

/// Reads a small file whole.
pub(crate) fn read_small(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(SMALL_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > SMALL_BYTES_MAX {
        let error = format!("more than {SMALL_BYTES_MAX} bytes, expected some hundred");
        return Err(std::io::Error::new(ErrorKind::InvalidData, error));
    }
    Ok(bytes)
}

pub(crate) fn chain_path(dir: &Path, writer: &WriterId) -> PathBuf {
    dir.join(format!("{writer}.jsonl"))
}

pub(crate) fn head_path(dir: &Path, writer: &WriterId) -> PathBuf {
    dir.join(format!("{writer}.head"))
}

/// The head beside a chain, or `None` if there is none.
///
/// # Errors
/// [`Error::Io`]; [`Error::Broken`] if it is not a head of this writer.
pub(crate) fn read_head(dir: &Path, writer: &WriterId) -> Result<Option<Head>> {
    let path = head_path(dir, writer);
    let bytes = match read_small(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == ErrorKind::InvalidData => return Err(Error::broken(&path, error.to_string())),
        Err(error) => return Err(Error::io("read", &path)(error)),
    };
    let head: Head =
        serde_json::from_slice(&bytes).map_err(|error| Error::broken(&path, format!("not a head: {error}")))?;
    if head.writer != *writer {
        return Err(Error::broken(&path, format!("expected the head of {writer}, found that of {}", head.writer)));
    }
    // The empty chain's head has neither, every other's has both: a head of no records that ends somewhere vouches for nothing.
    let empty = head.count == 0;
    if empty != head.hash.is_none() || empty != (head.bytes == 0) {
        let hash = if head.hash.is_some() { "a hash" } else { "no hash" };
        let detail = format!("the head names {} records in {} bytes with {hash}", head.count, head.bytes);
        return Err(Error::broken(&path, detail));
    }
    if to_bytes(&head)? != bytes {
        return Err(Error::broken(&path, "the head is not in its canonical form"));
    }
    Ok(Some(head))
}

/// Writes the head in place: one write of less than a sector that never shortens the file, as counts only grow. The
/// caller holds the chain's lock.
pub(crate) fn write_head(dir: &Path, head: &Head) -> Result<()> {
    let path = head_path(dir, &head.writer);
    let bytes = to_bytes(head)?;
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(Error::io("open", &path))?;
    file.seek(SeekFrom::Start(0)).map_err(Error::io("seek in", &path))?;
    file.write_all(&bytes).map_err(Error::io("write", &path))?;
    file.set_len(bytes.len() as u64).map_err(Error::io("cut", &path))?;
    file.sync_data().map_err(Error::io("sync", &path))
}

fn to_bytes(head: &Head) -> Result<Vec<u8>> {
    let mut bytes = canonical(head)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Makes new names in a folder durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(Error::io("sync", dir))
}
