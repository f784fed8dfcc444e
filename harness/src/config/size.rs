//! Sizes in bytes as people write them: `"20MiB"`, `"1.5 GiB"`, or a plain number of bytes.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// A number of bytes. Serialised as a number, so that two spellings of one size are one identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

/// A size that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a size ({reason}): expected bytes as a number, or with a unit, as \"20MiB\" or \"1.5GiB\"")]
pub struct SizeError {
    found: String,
    reason: String,
}

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        parse_size::parse_size(text)
            .map(ByteSize)
            .map_err(|error| SizeError { found: text.to_owned(), reason: error.to_string() })
    }
}

impl fmt::Display for ByteSize {
    /// Rounded for reading; the exact figure beside it wherever rounding loses any.
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "{}", indicatif::BinaryBytes(self.0))?;
        if self.0 >= 1024 { write!(formatter, " ({} bytes)", self.0) } else { Ok(()) }
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "ByteSize".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Bytes as a number, or with a unit, as \"20MiB\".",
            "anyOf": [{ "type": "integer", "minimum": 0 }, { "type": "string" }],
        })
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl de::Visitor<'_> for SizeVisitor {
    type Value = ByteSize;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("bytes as a number, or with a unit, as \"20MiB\"")
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
        Ok(ByteSize(bytes))
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
        u64::try_from(bytes).map(ByteSize).map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
        text.parse().map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        let check = |text: &str, bytes| assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        check("20971521", 20_971_521);
        check("20MiB", 20 << 20);
        check("1.5 GiB", 3 << 29);
        check("20MB", 20_000_000);
        check("0", 0);
        check("18446744073709551615", u64::MAX);
    }

    #[test]
    fn what_is_not_a_size_is_named() {
        for text in ["", "MiB", "-5MiB", "20 parsecs", "99999999999GiB"] {
            let message = text.parse::<ByteSize>().unwrap_err().to_string();
            assert!(message.contains(&format!("{text:?}")) && message.contains("20MiB"), "{message}");
        }
    }

    #[test]
    fn the_exact_figure_stands_beside_the_rounded_one() {
        assert_eq!(ByteSize(512).to_string(), "512 B");
        assert_eq!(ByteSize(20 << 20).to_string(), "20.00 MiB (20971520 bytes)");
    }
}
