//! The header of one safetensors file: `u64` length, JSON, then the tensors' bytes back to back.
//!
//! The crate `safetensors` parses an entry. The ranges are checked here rather than by the crate, because its errors name
//! neither the numbers that were found nor, mostly, the tensor.

use std::fmt;
use std::path::Path;

use safetensors::tensor::TensorInfo;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::error::CheckpointError;

/// Bytes in front of the JSON: its length.
const LENGTH_BYTES: usize = 8;
/// The longest JSON that is read, in bytes; the format's own limit.
pub(super) const MAX_HEADER_BYTES: u64 = 100_000_000;
/// The most tensors that a checkpoint may have, and so one of its files. The largest public ones have some 200,000.
pub(super) const MAX_TENSORS: usize = 1 << 19;

/// Reads a header and checks that the tensors cover the rest of the file exactly: no gap, no overlap, nothing past the
/// end. Returns name, type, shape and byte range within `file` of every tensor, in file order.
pub(super) fn read(path: &Path, file: &[u8]) -> Result<Vec<(String, TensorInfo)>, CheckpointError> {
    let malformed =
        |found: String, expected: String| CheckpointError::Malformed { path: path.to_owned(), found, expected };
    let Some((length, rest)) = file.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(malformed(
            if file.is_empty() { "the file is empty".into() } else { format!("the file has {} bytes", file.len()) },
            format!("at least the {LENGTH_BYTES} bytes of a safetensors header length"),
        ));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return Err(CheckpointError::TooLarge {
            path: path.to_owned(),
            what: "header length in bytes",
            found: length,
            limit: MAX_HEADER_BYTES,
        });
    }
    // At most 100,000,000 now, so it fits any usize.
    let header_bytes = length as usize;
    let Some(json) = rest.get(..header_bytes) else {
        return Err(malformed(
            format!("a header of {length} bytes is announced and {} bytes follow", rest.len()),
            "a header that ends within the file".into(),
        ));
    };
    let mut json_reader = serde_json::Deserializer::from_slice(json);
    let mut tensors =
        json_reader.deserialize_map(HeaderVisitor).and_then(|tensors| json_reader.end().map(|()| tensors)).map_err(
            |error| malformed(format!("the header cannot be read ({error})"), "a safetensors header in JSON".into()),
        )?;
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    check_ranges(&tensors, rest.len() - header_bytes).map_err(|(found, expected)| malformed(found, expected))?;
    let data_start = LENGTH_BYTES + header_bytes;
    for (_, info) in &mut tensors {
        // Within the file, as checked, so neither sum can overflow.
        info.data_offsets.0 += data_start;
        info.data_offsets.1 += data_start;
    }
    Ok(tensors)
}

/// Checks ranges that are sorted by start against `data_bytes`, the size of the part behind the header.
/// The error is what was found and what was expected.
fn check_ranges(tensors: &[(String, TensorInfo)], data_bytes: usize) -> Result<(), (String, String)> {
    let mut end_of_previous = 0usize;
    for (name, info) in tensors {
        let (start, end) = info.data_offsets;
        let bytes = byte_size(info).ok_or_else(|| {
            (
                format!("tensor {name} has shape {:?} of {}", info.shape, info.dtype),
                "a size that is a whole number of bytes below 2^64".to_owned(),
            )
        })?;
        if end > data_bytes {
            return Err((
                format!("tensor {name} lies at bytes {start}..{end} of the data"),
                format!("a range within the {data_bytes} bytes that the file holds behind its header"),
            ));
        }
        if start > end || end - start != bytes {
            return Err((
                format!("tensor {name} lies at bytes {start}..{end} of the data"),
                format!("{bytes} bytes for shape {:?} of {}", info.shape, info.dtype),
            ));
        }
        if start != end_of_previous {
            let trouble =
                if start < end_of_previous { "overlaps the tensor before it" } else { "leaves a gap before it" };
            return Err((
                format!("tensor {name} starts at byte {start} of the data and {trouble}"),
                format!("byte {end_of_previous}"),
            ));
        }
        end_of_previous = end;
    }
    if end_of_previous != data_bytes {
        return Err((
            format!("the tensors end at byte {end_of_previous} of the data"),
            format!("{data_bytes}, the end of the file"),
        ));
    }
    Ok(())
}

/// Bytes of a tensor; `None` when that overflows or is no whole number (types below a byte).
fn byte_size(info: &TensorInfo) -> Option<usize> {
    let bits = info.shape.iter().try_fold(info.dtype.bitsize(), |product, &dim| product.checked_mul(dim))?;
    (bits % 8 == 0).then_some(bits / 8)
}

/// Collects the entries of a header, at most [`MAX_TENSORS`]. A name that occurs twice is noticed by the caller, who has a map.
struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Vec<(String, TensorInfo)>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut tensors = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if tensors.len() == MAX_TENSORS {
                return Err(de::Error::custom(format!("more than {MAX_TENSORS} tensors")));
            }
            let info =
                map.next_value::<TensorInfo>().map_err(|error| de::Error::custom(format!("tensor {name}: {error}")))?;
            tensors.push((name, info));
        }
        Ok(tensors)
    }
}
