//! What a cache must be of, and where it lies by default.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use assay_kernels::layout::{ExpertLayout, LAYOUT_VERSION};

use super::encode::Encoding;
use super::error::CacheError;
use super::header::{EncodingRecord, FORMAT_VERSION, Header, LayerRecord, PAGE_BYTES, SourceRecord, hex};
use crate::checkpoint::{Checkpoint, FileHash};
use crate::model::spec::{FfnSpec, ModelSpec, MoeSpec};

/// Hex digits of the source's digest in a file name.
const DIGEST_DIGITS: usize = 16;

/// The cache of one checkpoint in one encoding: what [`build`](super::build) writes and
/// [`ExpertCache::open`](super::ExpertCache::open) insists on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheIdentity {
    /// How the experts are stored.
    pub encoding: Encoding,
    /// The checkpoint's files.
    pub source: SourceRecord,
    /// The MoE layers in ascending order.
    pub layers: Vec<LayerGeometry>,
}

/// Shape of one MoE layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerGeometry {
    /// Index among all layers of the model.
    pub layer: usize,
    /// Experts.
    pub num_experts: usize,
    /// One expert.
    pub expert: ExpertLayout,
}

impl CacheIdentity {
    /// The cache of `spec`'s experts; `hashes` are [`Checkpoint::file_hashes`], computed once and used here and in evidence.
    ///
    /// # Errors
    /// Experts that a cache cannot hold; a file of the checkpoint without a hash.
    pub fn new(
        checkpoint: &Checkpoint,
        spec: &ModelSpec,
        encoding: Encoding,
        hashes: &[FileHash],
    ) -> Result<Self, CacheError> {
        let hash_of = |path: &Path| {
            let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            match hashes.iter().find(|hash| hash.name == name) {
                Some(hash) => Ok((name, hash.sha256.clone())),
                None => Err(CacheError::malformed(path, "no hash of it was given", "one for every file")),
            }
        };
        let (_, config_sha256) = hash_of(&checkpoint.config_path())?;
        let shards_sha256 =
            checkpoint.shards().iter().map(|shard| hash_of(shard.path())).collect::<Result<BTreeMap<_, _>, _>>()?;
        let layers = geometries(spec, encoding)?;
        Ok(Self { encoding, source: SourceRecord { config_sha256, shards_sha256 }, layers })
    }

    /// Refuses a model of another shape than the identity was made of.
    pub(super) fn check_spec(&self, spec: &ModelSpec, path: &Path) -> Result<(), CacheError> {
        let found = geometries(spec, self.encoding)?;
        if found == self.layers {
            return Ok(());
        }
        Err(CacheError::Request {
            path: path.to_owned(),
            found: format!("a model with the MoE layers {found:?}"),
            expected: format!("{:?} as in the cache's identity", self.layers),
        })
    }

    /// SHA-256 of the names and hashes of the source files, as hexadecimal digits.
    pub fn source_digest(&self) -> String {
        let mut hasher = Sha256::new();
        hasher.update(format!("config.json {}\n", self.source.config_sha256));
        for (name, hash) in &self.source.shards_sha256 {
            hasher.update(format!("{name} {hash}\n"));
        }
        hex(&hasher.finalize())
    }

    /// The header of such a cache, without the hashes of the layers.
    pub(super) fn header(&self) -> Result<Header, CacheError> {
        let mut offset = 0_u64;
        let mut layers = Vec::with_capacity(self.layers.len());
        for geometry in &self.layers {
            let record = LayerRecord {
                layer: geometry.layer,
                num_experts: geometry.num_experts,
                hidden_size: geometry.expert.hidden_size,
                moe_intermediate_size: geometry.expert.moe_intermediate_size,
                biases: geometry.expert.bias_offsets.is_some(),
                expert_bytes: geometry.expert.bytes,
                offset,
                sha256: "0".repeat(64),
            };
            offset = offset
                .checked_add(record.bytes() as u64)
                .and_then(|end| end.checked_next_multiple_of(PAGE_BYTES))
                .ok_or_else(|| too_large(geometry.layer, geometry.num_experts, geometry.expert.bytes))?;
            layers.push(record);
        }
        Ok(Header {
            format_version: FORMAT_VERSION,
            layout_version: LAYOUT_VERSION,
            encoding: EncodingRecord::from(self.encoding),
            source: self.source.clone(),
            layers,
        })
    }

    /// Refuses a header of another cache, with both values.
    pub(super) fn check(&self, header: &Header, path: &Path) -> Result<(), CacheError> {
        let same = |field: &str, found: String, expected: String| {
            if found == expected {
                return Ok(());
            }
            Err(CacheError::Mismatch { path: path.to_owned(), field: field.to_owned(), found, expected })
        };
        let expected = self.header()?;
        same("the expert format", header.encoding.to_string(), expected.encoding.to_string())?;
        let (found_source, source) = (&header.source, &self.source);
        same("the sha256 of config.json", found_source.config_sha256.clone(), source.config_sha256.clone())?;
        let names = found_source.shards_sha256.keys().chain(source.shards_sha256.keys());
        for name in names {
            let hash = |source: &SourceRecord| {
                source.shards_sha256.get(name).cloned().unwrap_or_else(|| "none (no such file)".to_owned())
            };
            same(&format!("the sha256 of {name}"), hash(found_source), hash(source))?;
        }
        same("the number of MoE layers", header.layers.len().to_string(), expected.layers.len().to_string())?;
        for (found, expected) in header.layers.iter().zip(&expected.layers) {
            let show = |record: &LayerRecord| {
                let (rows, cols) = (record.moe_intermediate_size, record.hidden_size);
                let biases = if record.biases { " with biases" } else { "" };
                format!("layer {} with {} experts of {rows} x {cols}{biases}", record.layer, record.num_experts)
            };
            same("the geometry", show(found), show(expected))?;
        }
        Ok(())
    }
}

fn geometries(spec: &ModelSpec, encoding: Encoding) -> Result<Vec<LayerGeometry>, CacheError> {
    moe_layers(spec).map(|(layer, moe)| geometry(layer, moe, spec.hidden_size, encoding)).collect()
}

/// The MoE layers of a model with their indices.
pub(super) fn moe_layers(spec: &ModelSpec) -> impl Iterator<Item = (usize, &MoeSpec)> {
    spec.layers.iter().enumerate().filter_map(|(layer, spec)| match &spec.ffn {
        FfnSpec::Moe(moe) => Some((layer, moe)),
        FfnSpec::Dense(_) => None,
    })
}

fn too_large(layer: usize, num_experts: usize, expert_bytes: usize) -> CacheError {
    let found = format!("{num_experts} experts of {expert_bytes} bytes");
    CacheError::Model { layer, found, expected: "at least one expert, and a size that fits in memory" }
}

/// Shape of a layer, after checking that all its experts are alike.
fn geometry(layer: usize, moe: &MoeSpec, hidden: usize, encoding: Encoding) -> Result<LayerGeometry, CacheError> {
    let intermediate = moe.moe_intermediate_size();
    let biases = moe.expert_biases();
    let wanted = [[intermediate, hidden], [intermediate, hidden], [hidden, intermediate]];
    for (index, expert) in moe.experts.iter().enumerate() {
        for (linear, shape) in [&expert.gate_proj, &expert.up_proj, &expert.down_proj].into_iter().zip(&wanted) {
            if linear.bias.is_some() != biases {
                let found =
                    format!("expert {index} with {}", if biases { "a projection without bias" } else { "a bias" });
                return Err(CacheError::Model { layer, found, expected: "biases on every projection or on none" });
            }
            for (source, shape) in [(Some(&linear.weight), &shape[..]), (linear.bias.as_ref(), &shape[..1])] {
                if let Some(source) = source.filter(|source| source.shape != shape) {
                    let found = format!("tensor {} of shape {:?}", source.name, source.shape);
                    return Err(CacheError::Model { layer, found, expected: "experts of one shape within a layer" });
                }
            }
        }
    }
    let shape_error = || CacheError::Model {
        layer,
        found: format!("experts of {intermediate} x {hidden}"),
        expected: "at least one expert, and a size that fits in memory",
    };
    let expert = ExpertLayout::new(encoding.format(), hidden, intermediate, biases).ok_or_else(shape_error)?;
    let num_experts = moe.num_experts();
    let bytes = num_experts.checked_mul(expert.bytes).filter(|bytes| *bytes > 0 && isize::try_from(*bytes).is_ok());
    if bytes.is_none() {
        return Err(too_large(layer, num_experts, expert.bytes));
    }
    Ok(LayerGeometry { layer, num_experts, expert })
}

/// `ROOT/cache/MODEL-ENCODING-DIGEST-lLAYOUT.experts`: the first 16 hexadecimal digits of [`CacheIdentity::source_digest`] keep
/// checkpoints of one name apart, the layout's version those of builds whose bytes differ. Characters of `model_name` that a
/// file name had better not have become `-`.
pub fn default_path(root: &Path, model_name: &str, identity: &CacheIdentity) -> PathBuf {
    root.join("cache").join(format!("{}-l{LAYOUT_VERSION}.experts", stem(model_name, identity)))
}

/// Files in `ROOT/cache` that are caches of the same weights in a layout of another version: no use to this build.
pub fn stale_paths(root: &Path, model_name: &str, identity: &CacheIdentity) -> Vec<PathBuf> {
    let (stem, current) = (stem(model_name, identity), default_path(root, model_name, identity));
    let is_stale = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let rest = name.and_then(|name| name.strip_prefix(&stem)?.strip_suffix(".experts"));
        // Builds before versions had names of their own left it out.
        *path != current && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("-l"))
    };
    let Ok(files) = std::fs::read_dir(root.join("cache")) else { return Vec::new() };
    let mut stale: Vec<PathBuf> = files.flatten().map(|file| file.path()).filter(is_stale).collect();
    stale.sort();
    stale
}

fn stem(model_name: &str, identity: &CacheIdentity) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
    let name: String = model_name.chars().map(plain).collect();
    let name = name.trim_start_matches(['.', '-']);
    let name = if name.is_empty() { "model" } else { name };
    let digest = identity.source_digest();
    let digest = digest.get(..DIGEST_DIGITS).unwrap_or(&digest);
    format!("{name}-{}-{digest}", identity.encoding)
}
