//! Raw logs by content.

use std::fs::File;
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};

use crate::schema::LogRef;
use crate::{Error, Result, Sha256};

/// Where a log with this content lies.
pub(crate) fn log_path(dir: &Path, sha256: &Sha256) -> PathBuf {
    let hex = sha256.to_string();
    dir.join("logs").join(&hex[..2]).join(hex)
}

/// Stores everything that `content` yields and returns its reference. Content that is there already is kept.
pub(crate) fn store_log(dir: &Path, name: &str, mut content: impl Read) -> Result<LogRef> {
    let logs = dir.join("logs");
    std::fs::create_dir_all(&logs).map_err(Error::io("create", &logs))?;
    let mut temporary = tempfile::Builder::new()
        .prefix("log-")
        .suffix(".tmp")
        .tempfile_in(&logs)
        .map_err(Error::io("create a temporary file in", &logs))?;
    std::io::copy(&mut content, temporary.as_file_mut()).map_err(Error::io("write", temporary.path()))?;
    temporary.as_file_mut().flush().map_err(Error::io("write", temporary.path()))?;
    temporary.as_file().sync_all().map_err(Error::io("sync", temporary.path()))?;
    let file = File::open(temporary.path()).map_err(Error::io("open", temporary.path()))?;
    let (sha256, bytes) = Sha256::of_reader(file).map_err(Error::io("read", temporary.path()))?;
    let path = log_path(dir, &sha256);
    let folder = path.parent().unwrap_or(&logs);
    std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    // Persisting over the same content repairs a copy that somebody damaged.
    temporary.persist(&path).map_err(|error| Error::io("store", &path)(error.error))?;
    super::head::sync_dir(folder)?;
    Ok(LogRef { sha256, bytes, name: name.to_owned() })
}

/// Says what is wrong with a stored log, or `None`.
pub(crate) fn check_log(dir: &Path, log: &LogRef) -> Result<Option<LogFault>> {
    let path = log_path(dir, &log.sha256);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Some(LogFault::Missing(path))),
        Err(error) => return Err(Error::io("open", &path)(error)),
    };
    let (sha256, bytes) = Sha256::of_reader(file).map_err(Error::io("read", &path))?;
    if sha256 != log.sha256 {
        return Ok(Some(LogFault::Changed(path, format!("its content has hash {}", sha256.short()))));
    }
    if bytes != log.bytes {
        return Ok(Some(LogFault::Changed(path, format!("the record says {} bytes, it has {bytes}", log.bytes))));
    }
    Ok(None)
}

/// What can be wrong with a stored log.
#[derive(Debug, Clone)]
pub(crate) enum LogFault {
    Missing(PathBuf),
    Changed(PathBuf, String),
}
