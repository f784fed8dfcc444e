//! SHA-256 values, and canonical JSON (RFC 8785) to take them of.

use std::borrow::Cow;
use std::fmt;
use std::io::Read;
use std::path::Path;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Digest as _;

use crate::{Error, Result};

/// A SHA-256 value; 64 lowercase hex digits wherever it is written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sha256(pub [u8; 32]);

impl Sha256 {
    /// The hash of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// The hash and the length of everything that `reader` yields.
    ///
    /// # Errors
    /// Whatever reading returns.
    pub fn of_reader(mut reader: impl Read) -> std::io::Result<(Self, u64)> {
        let mut hasher = sha2::Sha256::new();
        let mut buffer = vec![0_u8; 1 << 18];
        let mut total = 0_u64;
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return Ok((Self(hasher.finalize().into()), total)),
                Ok(read) => {
                    hasher.update(&buffer[..read]);
                    total += read as u64;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The hash of a file's content.
    ///
    /// # Errors
    /// [`Error::Io`] with the file's name.
    pub fn of_file(path: &Path) -> Result<Self> {
        let file = std::fs::File::open(path).map_err(Error::io("open", path))?;
        Ok(Self::of_reader(file).map_err(Error::io("read", path))?.0)
    }

    /// The hash of a value's canonical JSON.
    ///
    /// # Errors
    /// [`Error::NotCanonical`] if the value holds a number that is not finite.
    pub fn of_canonical(value: &impl Serialize) -> Result<Self> {
        Ok(Self::of(&canonical(value)?))
    }

    /// Reads 64 lowercase hex digits.
    pub fn from_hex(hex: &str) -> Option<Self> {
        let digits = hex.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let mut bytes = [0_u8; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (nibble(pair[0])? << 4) | nibble(pair[1])?;
        }
        Some(Self(bytes))
    }

    /// The first 12 hex digits: how tables and messages name a record.
    pub fn short(&self) -> String {
        let mut hex = self.to_string();
        hex.truncate(12);
        hex
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.0 == [0; 32]
    }
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut hex = String::with_capacity(64);
        for byte in self.0 {
            hex.push(char::from(DIGITS[usize::from(byte >> 4)]));
            hex.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        f.write_str(&hex)
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Sha256 {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Sha256 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let hex = Cow::<'de, str>::deserialize(deserializer)?;
        Self::from_hex(&hex).ok_or_else(|| D::Error::custom(format!("expected 64 lowercase hex digits, found {hex:?}")))
    }
}

impl JsonSchema for Sha256 {
    fn schema_name() -> Cow<'static, str> {
        "Sha256".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9a-f]{64}$" })
    }
}

/// A value's canonical JSON (RFC 8785: sorted keys, no white space, numbers as ECMAScript prints doubles).
///
/// # Errors
/// [`Error::NotCanonical`] if the value holds a number that is not finite.
pub fn canonical(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json_canonicalizer::to_vec(value).map_err(|error| Error::NotCanonical(error.to_string()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn known_answer() {
        let hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Sha256::of(b"abc").to_string(), hex);
        assert_eq!(Sha256::from_hex(hex), Some(Sha256::of(b"abc")));
        assert_eq!(Sha256::of(b"abc").short(), "ba7816bf8f01");
        assert_eq!(Sha256::of_reader(&b"abc"[..]).unwrap(), (Sha256::of(b"abc"), 3));
    }

    #[test]
    fn hex_is_strict() {
        let hex = Sha256::of(b"abc").to_string();
        for bad in [hex.to_uppercase(), hex[1..].to_owned(), format!("{hex}0"), hex.replace('b', "g")] {
            assert_eq!(Sha256::from_hex(&bad), None, "{bad}");
        }
        assert_eq!(serde_json::from_str::<Sha256>(&format!("\"{hex}\"")).unwrap(), Sha256::of(b"abc"));
        assert!(serde_json::from_str::<Sha256>("\"abc\"").is_err());
    }

    #[test]
    fn canonical_sorts_and_refuses_nan() {
        let value = serde_json::json!({"b": 1.0, "a": {"d": 1e30, "c": 0.1}});
        assert_eq!(canonical(&value).unwrap(), br#"{"a":{"c":0.1,"d":1e+30},"b":1}"#);
        assert!(matches!(canonical(&f64::NAN), Err(Error::NotCanonical(_))));
    }
}
