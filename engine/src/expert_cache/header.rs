//! The header of an expert cache: its types, and its reading, in which nothing is believed before it is checked.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub(super) use crate::checkpoint::hex;
use assay_kernels::layout::{ExpertLayout, GROUP_COLS, LAYOUT_VERSION, MatrixFormat};

use super::encode::Encoding;
use super::error::CacheError;
use super::quantize::{QuantizeMethod, SEARCH_PERCENTS};

/// First bytes of every expert cache.
pub(super) const MAGIC: [u8; 8] = *b"ASSAYXPT";
/// Version of the container. 2 says whether experts have biases.
pub(super) const FORMAT_VERSION: u32 = 2;
/// The payload and every layer in it start at a multiple of this.
pub(super) const PAGE_BYTES: u64 = 4096;
/// Magic, length and hash.
pub(super) const PREFIX_BYTES: u64 = 8 + 8 + 32;
/// The longest header that is read. A thousand layers and a thousand shards take some 400 kB.
const MAX_HEADER_BYTES: u64 = 16 << 20;

/// Everything a cache says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Version of the container.
    pub format_version: u32,
    /// Version of the tile layouts.
    pub layout_version: u32,
    /// How the experts are stored, and how their values were chosen.
    pub encoding: EncodingRecord,
    /// The checkpoint.
    pub source: SourceRecord,
    /// The MoE layers in ascending order.
    pub layers: Vec<LayerRecord>,
}

/// An [`Encoding`] with every parameter that decides the bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "format", rename_all = "snake_case", deny_unknown_fields)]
pub enum EncodingRecord {
    /// Rounded to BF16.
    // Braces, since serde lets unknown fields pass beside a unit variant.
    Bf16 {},
    /// Symmetric INT4.
    Int4 {
        /// Columns that share a scale.
        group_cols: usize,
        /// How scales were chosen.
        method: MethodRecord,
    },
    /// Symmetric INT8, scaled by the largest weight.
    Int8 {
        /// Columns that share a scale.
        group_cols: usize,
    },
}

/// A [`QuantizeMethod`] with its parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case", deny_unknown_fields)]
pub enum MethodRecord {
    /// The largest weight decides.
    Amax {},
    /// The smallest squared error decides.
    Search {
        /// The factors tried, in percent, in this order.
        percents: Vec<u8>,
    },
}

impl From<Encoding> for EncodingRecord {
    fn from(encoding: Encoding) -> Self {
        let method = match encoding {
            Encoding::Bf16 => return Self::Bf16 {},
            Encoding::Int8 => return Self::Int8 { group_cols: GROUP_COLS },
            Encoding::Int4(QuantizeMethod::Amax) => MethodRecord::Amax {},
            Encoding::Int4(QuantizeMethod::Search) => MethodRecord::Search { percents: SEARCH_PERCENTS.to_vec() },
        };
        Self::Int4 { group_cols: GROUP_COLS, method }
    }
}

impl EncodingRecord {
    /// How the packed bytes are laid out.
    pub fn format(&self) -> MatrixFormat {
        match self {
            Self::Bf16 {} => MatrixFormat::Bf16,
            Self::Int4 { .. } => MatrixFormat::Int4,
            Self::Int8 { .. } => MatrixFormat::Int8,
        }
    }
}

impl std::fmt::Display for EncodingRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bf16 {} => f.write_str("bf16"),
            Self::Int8 { group_cols } => write!(f, "int8 g{group_cols}"),
            Self::Int4 { group_cols, method: MethodRecord::Amax {} } => write!(f, "int4 g{group_cols} amax"),
            Self::Int4 { group_cols, method: MethodRecord::Search { percents } } => {
                write!(f, "int4 g{group_cols} search over {percents:?} %")
            }
        }
    }
}

/// The SHA-256 of every file that decides the experts, as 64 lowercase hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceRecord {
    /// Of `config.json`.
    pub config_sha256: String,
    /// Of every weight file, by its name.
    pub shards_sha256: BTreeMap<String, String>,
}

/// One MoE layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerRecord {
    /// Index among all layers of the model.
    pub layer: usize,
    /// Experts.
    pub num_experts: usize,
    /// Inputs of gate and up, outputs of down.
    pub hidden_size: usize,
    /// Outputs of gate and up, inputs of down.
    pub moe_intermediate_size: usize,
    /// Whether the projections have biases.
    pub biases: bool,
    /// Bytes of one expert.
    pub expert_bytes: usize,
    /// Where the first expert starts, from the start of the payload.
    pub offset: u64,
    /// SHA-256 of all the layer's experts.
    pub sha256: String,
}

impl LayerRecord {
    /// How an expert is laid out; `None` where a size is 0 or overflows.
    pub fn expert_layout(&self, format: MatrixFormat) -> Option<ExpertLayout> {
        ExpertLayout::new(format, self.hidden_size, self.moe_intermediate_size, self.biases)
    }

    /// Bytes of all experts; checked to be in range when a header is read or made.
    pub fn bytes(&self) -> usize {
        self.num_experts.saturating_mul(self.expert_bytes)
    }

    /// Where an expert starts, from the start of the payload; `None` past the last.
    pub fn expert_offset(&self, expert: usize) -> Option<u64> {
        (expert < self.num_experts).then(|| self.offset.saturating_add(expert as u64 * self.expert_bytes as u64))
    }
}

impl Header {
    /// Bytes of the payload: every layer, each padded to a page.
    pub fn payload_bytes(&self) -> u64 {
        self.layers
            .last()
            .map_or(0, |last| last.offset.saturating_add(last.bytes() as u64).next_multiple_of(PAGE_BYTES))
    }

    /// The file's first bytes, padded to a page: magic, length, hash, header.
    pub(super) fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let json = serde_json::to_vec(self)?;
        let mut bytes = Vec::with_capacity(json.len() + PAGE_BYTES as usize);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&(json.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&Sha256::digest(&json));
        bytes.extend_from_slice(&json);
        bytes.resize(bytes.len().next_multiple_of(PAGE_BYTES as usize), 0);
        Ok(bytes)
    }

    /// Reads and checks the header of an open cache; returns it and where it ends. The file is exactly as
    /// long as the header says, so that later reads cannot end early.
    pub(super) fn read(file: &File, path: &Path) -> Result<(Self, u64), CacheError> {
        let metadata = file.metadata().map_err(CacheError::io("read", path))?;
        if !metadata.is_file() {
            return Err(CacheError::malformed(path, "not an ordinary file", "an expert cache"));
        }
        let file_bytes = metadata.len();
        let mut prefix = [0; PREFIX_BYTES as usize];
        if file_bytes < PREFIX_BYTES {
            return Err(CacheError::malformed(path, format!("{file_bytes} bytes"), "an expert cache"));
        }
        file.read_exact_at(&mut prefix, 0).map_err(CacheError::io("read", path))?;
        let (magic, rest) = prefix.split_at(8);
        let (length, hash) = rest.split_at(8);
        if magic != MAGIC {
            let found = format!("first bytes {:?}", magic.escape_ascii().to_string());
            return Err(CacheError::malformed(path, found, format!("{:?}", MAGIC.escape_ascii().to_string())));
        }
        let length = length.iter().rev().fold(0_u64, |length, byte| length << 8 | u64::from(*byte));
        let limit = MAX_HEADER_BYTES.min(file_bytes - PREFIX_BYTES);
        if length > limit {
            return Err(CacheError::malformed(path, format!("a header of {length} bytes"), format!("at most {limit}")));
        }
        // At most 16 MiB, and the file has them.
        let mut json = vec![0; length as usize];
        file.read_exact_at(&mut json, PREFIX_BYTES).map_err(CacheError::io("read", path))?;
        let found = Sha256::digest(&json);
        if found[..] != *hash {
            return Err(CacheError::malformed(path, format!("header with sha256 {}", hex(&found)), hex(hash)));
        }
        let header = Self::parse(&json, path)?;
        let end = PREFIX_BYTES + length;
        let expected = end.next_multiple_of(PAGE_BYTES).saturating_add(header.payload_bytes());
        if file_bytes != expected {
            let found = format!("{file_bytes} bytes, cut off or extended");
            return Err(CacheError::malformed(path, found, format!("{expected} bytes as the header says")));
        }
        Ok((header, end))
    }

    fn parse(json: &[u8], path: &Path) -> Result<Self, CacheError> {
        /// What every version has: it is read first, so that a newer file is called newer and not malformed.
        #[derive(Deserialize)]
        struct Version {
            format_version: u32,
            layout_version: u32,
        }
        let bad = |error: serde_json::Error| {
            CacheError::malformed(
                path,
                format!("header: {error}"),
                format!("a header of format version {FORMAT_VERSION}"),
            )
        };
        let version: Version = serde_json::from_slice(json).map_err(bad)?;
        for (field, found, expected) in [
            ("format version", version.format_version, FORMAT_VERSION),
            ("layout version", version.layout_version, LAYOUT_VERSION),
        ] {
            if found != expected {
                return Err(CacheError::Mismatch {
                    path: path.to_owned(),
                    field: field.to_owned(),
                    found: found.to_string(),
                    expected: expected.to_string(),
                });
            }
        }
        let header: Self = serde_json::from_slice(json).map_err(bad)?;
        header.check(path)?;
        Ok(header)
    }

    /// Sizes that agree with each other and fit into memory, layers in order and side by side, hashes that are hashes.
    fn check(&self, path: &Path) -> Result<(), CacheError> {
        let shards = self.source.shards_sha256.iter().map(|(name, hash)| (name.as_str(), hash));
        let hashes = [("config.json", &self.source.config_sha256)].into_iter().chain(shards);
        for (name, hash) in hashes {
            check_hash(path, name, hash)?;
        }
        let mut end = 0_u64;
        let mut previous = None;
        for record in &self.layers {
            let name = format!("layer {}", record.layer);
            let bad = |found: String, expected: String| {
                Err(CacheError::malformed(path, format!("{name}: {found}"), expected))
            };
            if previous.is_some_and(|previous| record.layer <= previous) {
                return bad(format!("it follows layer {}", previous.unwrap_or(0)), "ascending layers".to_owned());
            }
            previous = Some(record.layer);
            let layout = record.expert_layout(self.encoding.format());
            let shape = format!("experts of {} x {}", record.moe_intermediate_size, record.hidden_size);
            let Some(layout) = layout else {
                return bad(shape, "a size that fits in memory".to_owned());
            };
            if layout.bytes != record.expert_bytes {
                return bad(format!("{} bytes for {shape}", record.expert_bytes), layout.bytes.to_string());
            }
            if record.offset != end {
                return bad(format!("offset {}", record.offset), end.to_string());
            }
            let bytes = record.num_experts.checked_mul(layout.bytes).filter(|bytes| *bytes > 0);
            let next = bytes
                .filter(|bytes| isize::try_from(*bytes).is_ok())
                .and_then(|bytes| end.checked_add(bytes as u64)?.checked_next_multiple_of(PAGE_BYTES))
                .filter(|next| i64::try_from(*next).is_ok());
            let Some(next) = next else {
                let found = format!("{} experts of {} bytes", record.num_experts, layout.bytes);
                return bad(found, "at least one expert, and a size that fits in memory".to_owned());
            };
            end = next;
            check_hash(path, &name, &record.sha256)?;
        }
        Ok(())
    }
}

fn check_hash(path: &Path, name: &str, hash: &str) -> Result<(), CacheError> {
    if hash.len() == 64 && hash.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return Ok(());
    }
    Err(CacheError::malformed(path, format!("sha256 of {name} {hash:?}"), "64 lowercase hexadecimal digits"))
}
