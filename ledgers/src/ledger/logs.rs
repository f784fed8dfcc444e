//! Raw logs by content, compressed.
//!
//! `logs/<xx>/<sha256>.zst`, where `sha256` is that of the content, is a skippable frame of 32 bytes (RFC 8878, section 3.1.2)
//! that holds the SHA-256 of all that follows, then one zstd frame. `zstd -dc` reads it, and a changed bit is found even
//! where it would decompress to the same content. `logs/<xx>/<sha256>`, the content as it is, is how format 1 kept logs: read
//! as well, never written.

use std::fs::File;
use std::io::{Read, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::Digest as _;

use crate::schema::LogRef;
use crate::{Error, Result, Sha256};

/// A skippable frame's magic number and the length of its content, both little-endian.
const HEADER: [u8; 8] = [0x50, 0x2a, 0x4d, 0x18, 32, 0, 0, 0];
/// Bytes before the zstd frame.
const PREFIX_BYTES: usize = HEADER.len() + 32;
/// zstd's own default.
const LEVEL: i32 = 3;
/// The largest window that is decompressed, as a power of two: 8 MiB, which [`LEVEL`] never needs.
const WINDOW_LOG_MAX: u32 = 23;

/// Where a log with this content lies.
pub(crate) fn log_path(dir: &Path, sha256: &Sha256) -> PathBuf {
    plain_path(dir, sha256).with_extension("zst")
}

/// Where format 1 kept it.
fn plain_path(dir: &Path, sha256: &Sha256) -> PathBuf {
    let hex = sha256.to_string();
    dir.join("logs").join(&hex[..2]).join(hex)
}

/// Stores everything that `content` yields and returns its reference.
pub(crate) fn store_log(dir: &Path, name: &str, content: impl Read) -> Result<LogRef> {
    let logs = dir.join("logs");
    std::fs::create_dir_all(&logs).map_err(Error::io("create", &logs))?;
    let mut temporary = tempfile::Builder::new()
        .prefix("log-")
        .suffix(".tmp")
        .tempfile_in(&logs)
        .map_err(Error::io("create a temporary file in", &logs))?;
    let (sha256, bytes) = compress(content, temporary.as_file_mut())
        .and_then(|stored| temporary.as_file().sync_all().map(|()| stored))
        .map_err(Error::io("write", temporary.path()))?;
    let path = log_path(dir, &sha256);
    let folder = path.parent().unwrap_or(&logs);
    std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    // Persisting over the same content repairs a copy that somebody damaged.
    temporary.persist(&path).map_err(|error| Error::io("store", &path)(error.error))?;
    super::head::sync_dir(folder)?;
    Ok(LogRef { sha256, bytes, name: name.to_owned() })
}

/// Writes `content` in the form that the module's documentation describes; hash and length of the content.
fn compress(mut content: impl Read, file: &mut File) -> std::io::Result<(Sha256, u64)> {
    file.write_all(&[0; PREFIX_BYTES])?;
    let mut encoder = zstd::stream::write::Encoder::new(Hashing { file, hasher: sha2::Sha256::new() }, LEVEL)?;
    let (mut hasher, mut bytes, mut buffer) = (sha2::Sha256::new(), 0_u64, vec![0_u8; 1 << 17]);
    loop {
        match content.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => {
                hasher.update(&buffer[..read]);
                encoder.write_all(&buffer[..read])?;
                bytes += read as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let Hashing { file, hasher: stored } = encoder.finish()?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&HEADER)?;
    file.write_all(&stored.finalize())?;
    Ok((Sha256(hasher.finalize().into()), bytes))
}

/// A file and the hash of what is written to it.
struct Hashing<'a> {
    file: &'a mut File,
    hasher: sha2::Sha256,
}

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// The content of a stored log, read as it is decompressed, at most `log.bytes` of it.
///
/// # Errors
/// [`Error::MissingLog`], [`Error::Io`]. What it yields is [`crate::verify`]'s to judge.
pub(crate) fn open_log(dir: &Path, log: &LogRef) -> Result<Box<dyn Read>> {
    let compressed = log_path(dir, &log.sha256);
    for (path, is_compressed) in [(&compressed, true), (&plain_path(dir, &log.sha256), false)] {
        match File::open(path) {
            Ok(file) if is_compressed => {
                return Ok(Box::new(decompress(file).map_err(Error::io("read", path))?.take(log.bytes)));
            }
            Ok(file) => return Ok(Box::new(file.take(log.bytes))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("open", path)(error)),
        }
    }
    Err(Error::MissingLog { name: log.name.clone(), sha256: log.sha256, path: compressed })
}

/// [`open_log`], for a log that is what the record names.
///
/// # Errors
/// [`Error::MissingLog`], [`Error::ChangedLog`], [`Error::Io`].
pub(crate) fn open_checked(dir: &Path, log: &LogRef) -> Result<Box<dyn Read>> {
    match check_log(dir, log)? {
        Some(LogFault::Changed(path, detail)) => Err(Error::ChangedLog { name: log.name.clone(), path, detail }),
        Some(LogFault::Missing(_)) | None => open_log(dir, log),
    }
}

/// zstd passes over the skippable frame itself.
fn decompress(file: File) -> std::io::Result<impl Read> {
    let mut decoder = zstd::stream::read::Decoder::new(file)?;
    decoder.window_log_max(WINDOW_LOG_MAX)?;
    Ok(decoder)
}

/// True if a log is there: what an append asks before it names one.
pub(crate) fn is_stored(dir: &Path, log: &LogRef) -> bool {
    let length = |path: &Path| std::fs::metadata(path).map(|file| file.len()).ok();
    length(&log_path(dir, &log.sha256)).is_some_and(|length| length > PREFIX_BYTES as u64)
        || length(&plain_path(dir, &log.sha256)) == Some(log.bytes)
}

/// Says what is wrong with a stored log, or `None`.
pub(crate) fn check_log(dir: &Path, log: &LogRef) -> Result<Option<LogFault>> {
    let (compressed, plain) = (log_path(dir, &log.sha256), plain_path(dir, &log.sha256));
    let mut found = false;
    for (path, check) in [(&compressed, check_compressed as Check), (&plain, check_content::<File> as Check)] {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Error::io("open", path)(error)),
        };
        found = true;
        if let Some(detail) = check(file, log).map_err(Error::io("read", path))? {
            return Ok(Some(LogFault::Changed(path.clone(), detail)));
        }
    }
    Ok((!found).then_some(LogFault::Missing(compressed)))
}

/// What is wrong with a file that should hold a log.
type Check = fn(File, &LogRef) -> std::io::Result<Option<String>>;

fn check_compressed(mut file: File, log: &LogRef) -> std::io::Result<Option<String>> {
    let mut prefix = [0; PREFIX_BYTES];
    match file.read_exact(&mut prefix) {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            return Ok(Some(format!("it has fewer than {PREFIX_BYTES} bytes")));
        }
        read => read?,
    }
    if prefix[..HEADER.len()] != HEADER {
        return Ok(Some("it does not begin as a compressed log does".to_owned()));
    }
    if Sha256::of_reader(&mut file)?.0.0[..] != prefix[HEADER.len()..] {
        return Ok(Some("its compressed bytes are not those that were written".to_owned()));
    }
    file.seek(SeekFrom::Start(PREFIX_BYTES as u64))?;
    // The bytes can be read, as was just seen: an error is about what they say.
    match decompress(file).and_then(|content| check_content(content, log)) {
        Ok(fault) => Ok(fault),
        Err(error) => Ok(Some(format!("it cannot be decompressed: {error}"))),
    }
}

fn check_content<R: Read>(content: R, log: &LogRef) -> std::io::Result<Option<String>> {
    let (sha256, bytes) = Sha256::of_reader(content.take(log.bytes.saturating_add(1)))?;
    if bytes > log.bytes {
        return Ok(Some(format!("the record says {} bytes, it has more", log.bytes)));
    }
    if sha256 != log.sha256 {
        return Ok(Some(format!("its content has hash {}", sha256.short())));
    }
    if bytes != log.bytes {
        return Ok(Some(format!("the record says {} bytes, it has {bytes}", log.bytes)));
    }
    Ok(None)
}

/// What can be wrong with a stored log.
#[derive(Debug, Clone)]
pub(crate) enum LogFault {
    Missing(PathBuf),
    Changed(PathBuf, String),
}
