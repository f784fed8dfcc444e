//! Reading a JSON file of a versioned schema that nobody vouches for.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::SCHEMA_VERSION;
use crate::error::WitnessError;

/// The largest file that is read. An artifact of a hundred prompts of 3,000 tokens has some 4 MB.
const MAX_BYTES: u64 = 64 << 20;

/// A whole file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, WitnessError> {
    let read_error = |source| WitnessError::Read { path: path.to_owned(), source };
    // Asked before opening, since opening a pipe waits for its other end.
    if !std::fs::metadata(path).map_err(read_error)?.is_file() {
        let reason = "not an ordinary file, expected JSON or TOML".to_owned();
        return Err(WitnessError::Malformed { path: path.to_owned(), reason });
    }
    let file = File::open(path).map_err(read_error)?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(read_error)?;
    let found = bytes.len() as u64;
    if found > MAX_BYTES {
        return Err(WitnessError::TooLarge { path: path.to_owned(), found, limit: MAX_BYTES });
    }
    Ok(bytes)
}

/// A value of the current schema version. The version is looked at first, so that a newer file is called newer and not
/// malformed.
pub(crate) fn parse<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, WitnessError> {
    #[derive(Deserialize)]
    struct Versioned {
        schema_version: u64,
    }
    let malformed =
        |error: serde_json::Error| WitnessError::Malformed { path: path.to_owned(), reason: error.to_string() };
    let Versioned { schema_version } = serde_json::from_slice(bytes).map_err(malformed)?;
    if schema_version != u64::from(SCHEMA_VERSION) {
        let (found, expected) = (schema_version, SCHEMA_VERSION);
        return Err(WitnessError::SchemaVersion { path: path.to_owned(), found, expected });
    }
    serde_json::from_slice(bytes).map_err(malformed)
}
