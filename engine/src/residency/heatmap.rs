//! The heatmap: how often each expert was routed to on text that no benchmark prompt contains.
//!
//! A prior for residency, nothing more: a wrong one costs speed. It is bound to what decides routes, so that a heatmap of another
//! checkpoint or precision is refused rather than silently used (white paper §6.2).

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::checkpoint::hex;
use crate::file::{self, FileError};

/// The version this code writes and reads.
const FORMAT_VERSION: u32 = 1;

/// No heatmap of a real model comes near this (1,000 layers of 1,000 experts are 10 MB).
const MAX_BYTES: u64 = 64 << 20;

/// Everything that decides routes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeatmapIdentity {
    /// SHA-256 over the checkpoint's files.
    pub checkpoint_sha256: String,
    /// Expert format and, for INT4, how it was quantised.
    pub experts: String,
    /// Format of the attention projections.
    pub attention: String,
    /// Format of dense layers.
    pub dense: String,
    /// Format of the KV cache.
    pub kv: String,
}

/// A heatmap file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heatmap {
    /// Version of this format.
    pub format_version: u32,
    /// What it was made with.
    pub identity: HeatmapIdentity,
    /// The texts it was made from: name and the bytes that were read.
    pub texts: Vec<HeatmapText>,
    /// Tokens routed.
    pub tokens: u64,
    /// Routes, `[moe layer][expert]`.
    pub counts: Vec<Vec<u64>>,
    /// SHA-256 of this object's JSON with this field empty.
    pub sha256: String,
}

/// One text of a heatmap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeatmapText {
    /// Its name in the corpus manifest.
    pub name: String,
    /// SHA-256 of the whole canonical text.
    pub text_sha256: String,
    /// First byte that was read.
    pub from_byte: u64,
    /// One past the last.
    pub to_byte: u64,
}

/// Why a heatmap cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HeatmapError {
    /// The file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The system's words.
    #[error("heatmap {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not a heatmap.
    #[error("heatmap {}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Of another checkpoint or precision.
    #[error("heatmap {} is of another configuration: {field} is {found}, expected {expected}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The first field that differs.
        field: &'static str,
        /// Its value in the file.
        found: String,
        /// Its value here.
        expected: String,
    },
}

impl Heatmap {
    /// A heatmap of these counts, checksummed.
    pub fn new(identity: HeatmapIdentity, texts: Vec<HeatmapText>, tokens: u64, counts: Vec<Vec<u64>>) -> Self {
        let mut heatmap =
            Self { format_version: FORMAT_VERSION, identity, texts, tokens, counts, sha256: String::new() };
        heatmap.sha256 = heatmap.checksum();
        heatmap
    }

    fn checksum(&self) -> String {
        let body = Self { sha256: String::new(), ..self.clone() };
        // A struct of strings and integers always serialises; an empty body would only fail the comparison.
        let json = serde_json::to_vec(&body).unwrap_or_default();
        hex(&Sha256::digest(json))
    }

    /// Writes the file through a temporary one, so that it is whole or absent.
    pub fn save(&self, path: &Path) -> Result<(), HeatmapError> {
        let io = |source| HeatmapError::Io { path: path.into(), source };
        let json = serde_json::to_vec(self)
            .map_err(|error| HeatmapError::Malformed { path: path.into(), reason: error.to_string() })?;
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(io)?;
        }
        let temporary = path.with_extension("tmp");
        let mut file = fs::File::create(&temporary).map_err(io)?;
        file.write_all(&json).and_then(|()| file.sync_all()).map_err(io)?;
        fs::rename(&temporary, path).map_err(io)
    }

    /// Reads and checks a file: version, checksum, a rectangle of `moe_layers` × `num_experts` counts, and in each layer as
    /// many of them as `top_k` for every token.
    pub fn load(path: &Path, moe_layers: usize, num_experts: usize, top_k: usize) -> Result<Self, HeatmapError> {
        let malformed = |reason: String| HeatmapError::Malformed { path: path.into(), reason };
        let bytes = file::read(path, MAX_BYTES)?;
        let heatmap: Heatmap =
            serde_json::from_slice(&bytes).map_err(|error| malformed(format!("not a heatmap: {error}")))?;
        if heatmap.format_version != FORMAT_VERSION {
            return Err(malformed(format!(
                "format version {}, expected {FORMAT_VERSION}: build it again with `assay heatmap build`",
                heatmap.format_version
            )));
        }
        let checksum = heatmap.checksum();
        if checksum != heatmap.sha256 {
            return Err(malformed(format!("its sha256 is {checksum}, it says {}", heatmap.sha256)));
        }
        if heatmap.counts.len() != moe_layers || heatmap.counts.iter().any(|layer| layer.len() != num_experts) {
            let widths: Vec<usize> = heatmap.counts.iter().map(Vec::len).take(4).collect();
            return Err(malformed(format!(
                "{} layers of {widths:?} experts, expected {moe_layers} layers of {num_experts}",
                heatmap.counts.len()
            )));
        }
        let routes = heatmap.tokens.checked_mul(top_k as u64);
        for (layer, counts) in heatmap.counts.iter().enumerate() {
            let sum = counts.iter().try_fold(0u64, |sum, &count| sum.checked_add(count));
            if sum.is_none() || sum != routes {
                let found = sum.map_or_else(|| "more than 2^64".to_owned(), |sum| sum.to_string());
                return Err(malformed(format!(
                    "layer {layer} counts {found} routes, expected {top_k} for each of {} tokens",
                    heatmap.tokens
                )));
            }
        }
        if let Some(text) = heatmap.texts.iter().find(|text| text.from_byte >= text.to_byte) {
            return Err(malformed(format!(
                "bytes {}..{} of {}, expected a start before the end",
                text.from_byte, text.to_byte, text.name
            )));
        }
        Ok(heatmap)
    }

    /// Refuses a heatmap that was made with something else, naming the first field that differs.
    pub fn check_identity(&self, path: &Path, expected: &HeatmapIdentity) -> Result<(), HeatmapError> {
        let found = &self.identity;
        let fields: [(&'static str, &str, &str); 5] = [
            ("checkpoint_sha256", &found.checkpoint_sha256, &expected.checkpoint_sha256),
            ("experts", &found.experts, &expected.experts),
            ("attention", &found.attention, &expected.attention),
            ("dense", &found.dense, &expected.dense),
            ("kv", &found.kv, &expected.kv),
        ];
        match fields.into_iter().find(|(_, found, expected)| found != expected) {
            None => Ok(()),
            Some((field, found, expected)) => {
                Err(HeatmapError::Foreign { path: path.into(), field, found: found.into(), expected: expected.into() })
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn identity(experts: &str) -> HeatmapIdentity {
        HeatmapIdentity {
            checkpoint_sha256: "ab".into(),
            experts: experts.into(),
            attention: "bf16".into(),
            dense: "bf16".into(),
            kv: "bf16".into(),
        }
    }

    #[test]
    fn a_heatmap_is_read_as_written_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("heat.json");
        let heatmap = Heatmap::new(identity("int4"), vec![], 2, vec![vec![1, 3], vec![3, 1]]);
        heatmap.save(&path).unwrap();
        assert_eq!(Heatmap::load(&path, 2, 2, 2).unwrap(), heatmap);

        let error = |text: &str, layers, experts| {
            fs::write(&path, text).unwrap();
            Heatmap::load(&path, layers, experts, 2).unwrap_err().to_string()
        };
        let json = serde_json::to_string(&heatmap).unwrap();
        assert!(error(&json, 3, 2).contains("2 layers of [2, 2] experts, expected 3 layers of 2"));
        assert!(error(&json.replace("[3,1]", "[1,3]"), 2, 2).contains("its sha256 is"));
        assert!(error(&json[..json.len() / 2], 2, 2).contains("not a heatmap"));
        assert!(
            error(&json.replace("\"format_version\":1", "\"format_version\":9"), 2, 2).contains("format version 9")
        );
        let foreign = heatmap.check_identity(&path, &identity("bf16")).unwrap_err().to_string();
        assert!(foreign.contains("experts is int4, expected bf16"), "{foreign}");
    }
}
