//! One record as one line: canonical JSON without `hash`, then `"hash"` as the last member.

use serde::Deserialize;

use super::form::is_canonical_object;
use super::verify::ProblemKind;
use crate::hash::canonical;
use crate::schema::{FORMAT_VERSION, Record};
use crate::{Error, Result, Sha256};

/// The longest line, newline included. A record is figures; what is longer belongs in a raw log.
pub(crate) const LINE_BYTES_MAX: usize = 16 << 20;

const BEFORE_HASH: &[u8] = b",\"hash\":\"";
const AFTER_HASH: &[u8] = b"\"}";

/// Bytes of a line that carry the hash, newline excluded.
pub(crate) const SEAL_BYTES: usize = BEFORE_HASH.len() + 64 + AFTER_HASH.len();

/// Why a line is not a good record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: ProblemKind,
    pub(crate) detail: String,
}

impl Fault {
    pub(crate) fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into() }
    }
}

/// Sets the record's hash and returns its line, newline included.
///
/// # Errors
/// [`Error::NotCanonical`] if the record does not read back as itself, [`Error::TooLong`].
pub(crate) fn seal(record: &mut Record) -> Result<Vec<u8>> {
    record.hash = Sha256::default();
    let mut line = canonical(record)?;
    record.hash = Sha256::of(&line);
    line.pop();
    line.extend_from_slice(BEFORE_HASH);
    line.extend_from_slice(record.hash.to_string().as_bytes());
    line.extend_from_slice(AFTER_HASH);
    // Integers above 2^53 change in canonical JSON; what cannot be read back must not get into a chain.
    let read = open(&line).map_err(|faults| Error::NotCanonical(describe(&faults)))?;
    if read != *record {
        return Err(Error::NotCanonical("the record reads back changed".to_owned()));
    }
    line.push(b'\n');
    if line.len() > LINE_BYTES_MAX {
        return Err(Error::TooLong { found: line.len(), limit: LINE_BYTES_MAX });
    }
    Ok(line)
}

/// Reads a line (without its newline), checking its hash, its form and its schema.
///
/// # Errors
/// Everything that is wrong with it: an edit that also adds a field is reported as both.
pub(crate) fn open(line: &[u8]) -> std::result::Result<Record, Vec<Fault>> {
    let seal = split_seal(line);
    let parsed = serde_json::from_slice::<Record>(line);
    let mut faults = Vec::new();
    match &seal {
        None => faults.push(unsealed(line)),
        Some((content, stated)) => {
            let computed = content_hash(content);
            if computed != *stated {
                let detail = format!(
                    "the record was edited: it states hash {}, its content has {}",
                    stated.short(),
                    computed.short()
                );
                faults.push(Fault::new(ProblemKind::Edited, detail));
            }
        }
    }
    match parsed {
        Ok(record) if record.format_version > FORMAT_VERSION => faults.push(newer(record.format_version)),
        Ok(record) if faults.is_empty() => return check_form(record, seal.map_or(line, |(content, _)| content)),
        Ok(_) => {}
        Err(error) => faults.extend(schema_fault(line, &error)),
    }
    if faults.is_empty() {
        // Sealed, and no record all the same: content that is not JSON, or JSON that serde gave up on as if it were not.
        faults.push(unread(line));
    }
    Err(faults)
}

/// The hash that a line states, if it ends as a record does.
pub(crate) fn stated_hash(line: &[u8]) -> Option<Sha256> {
    split_seal(line).map(|(_, hash)| hash)
}

/// All faults in one sentence.
pub(crate) fn describe(faults: &[Fault]) -> String {
    faults.iter().map(|fault| fault.detail.as_str()).collect::<Vec<_>>().join("; ")
}

/// True if a line is not even JSON, as bytes of an append that was cut short are not.
pub(crate) fn is_garbage(faults: &[Fault]) -> bool {
    faults.iter().all(|fault| fault.kind == ProblemKind::NotJson)
}

/// Content without its closing brace, and the stated hash.
fn split_seal(line: &[u8]) -> Option<(&[u8], Sha256)> {
    let (content, seal) = line.split_at_checked(line.len().checked_sub(SEAL_BYTES)?)?;
    let hex = seal.strip_prefix(BEFORE_HASH)?.strip_suffix(AFTER_HASH)?;
    Some((content, Sha256::from_hex(std::str::from_utf8(hex).ok()?)?))
}

fn content_hash(content: &[u8]) -> Sha256 {
    use sha2::Digest as _;
    let mut hasher = sha2::Sha256::new();
    hasher.update(content);
    hasher.update(b"}");
    Sha256(hasher.finalize().into())
}

fn unsealed(line: &[u8]) -> Fault {
    match serde_json::from_slice::<serde::de::IgnoredAny>(line) {
        Ok(_) => {
            Fault::new(ProblemKind::Edited, "the record was edited: it does not end in its hash as a ledger line does")
        }
        Err(error) => Fault::new(ProblemKind::NotJson, format!("the line is not JSON: {error}")),
    }
}

fn unread(line: &[u8]) -> Fault {
    match serde_json::from_slice::<serde::de::IgnoredAny>(line) {
        Ok(_) => Fault::new(ProblemKind::BadSchema, "the record does not fit the schema"),
        Err(error) => {
            Fault::new(ProblemKind::Edited, format!("the record was edited: it is sealed and not JSON: {error}"))
        }
    }
}

fn newer(version: u32) -> Fault {
    let detail = format!("format version {version} is newer than {FORMAT_VERSION}, the newest that this build reads");
    Fault::new(ProblemKind::NewerFormat, detail)
}

/// Why a line that may be JSON is no record. A newer version explains fields that this build does not know.
fn schema_fault(line: &[u8], error: &serde_json::Error) -> Option<Fault> {
    #[derive(Deserialize)]
    struct Version {
        format_version: u32,
    }
    if !error.is_data() {
        return None; // not JSON: `unsealed` or a hash that does not match has said so
    }
    match serde_json::from_slice::<Version>(line) {
        Ok(version) if version.format_version > FORMAT_VERSION => Some(newer(version.format_version)),
        _ if error.to_string().starts_with("unknown field") => {
            Some(Fault::new(ProblemKind::UnknownField, error.to_string()))
        }
        _ => Some(Fault::new(ProblemKind::BadSchema, format!("the record does not fit the schema: {error}"))),
    }
}

/// The line must be the canonical form (or another tool would compute another hash), and a published record must still
/// be the record that was first written.
fn check_form(record: Record, content: &[u8]) -> std::result::Result<Record, Vec<Fault>> {
    let not_canonical = |detail: String| vec![Fault::new(ProblemKind::NotCanonical, detail)];
    if !is_canonical_object(content) {
        return Err(not_canonical("the line is not the canonical form of its record".to_owned()));
    }
    if record.identity.is_none() && !record.body.may_lack_identity() {
        let detail = format!("the record does not fit the schema: a {} record has no identity", record.body.kind());
        return Err(vec![Fault::new(ProblemKind::BadSchema, detail)]);
    }
    if record.origin.is_some() {
        let mut original = record.original();
        let stated = std::mem::take(&mut original.hash);
        let computed = Sha256::of_canonical(&original).map_err(|error| not_canonical(error.to_string()))?;
        if computed != stated {
            let detail = format!(
                "the published record is not the one first written: its origin states {}, the original has {}",
                stated.short(),
                computed.short()
            );
            return Err(vec![Fault::new(ProblemKind::BadOrigin, detail)]);
        }
    }
    Ok(record)
}
