//! Finds, reads and checks a config file.

use super::{Config, Device, Link, PrefillArithmetic, WeightFormat};
use crate::repository::Repository;
use assay_engine::file::{self, FileError};
use assay_ledgers::Sha256;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Where short names are looked up, under the repository's root.
const FOLDER: &str = "suites/configs";
/// The largest config that is read, in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Bandwidths from a modem's to a thousand times a card's own memory, in 10⁹ bytes a second; latencies up to a second, in
/// microseconds: beyond them, times lose their meaning.
const BANDWIDTHS: RangeInclusive<f64> = 1e-6..=1e6;
const LATENCIES: RangeInclusive<f64> = 0.0..=1e6;

/// A config with the place it came from.
#[derive(Debug, Clone)]
pub struct LoadedConfig {
    /// The file's stem, as `tiny-moe`.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// SHA-256 of the file's bytes.
    pub sha256: Sha256,
    /// What it says, with the flags applied.
    pub config: Config,
    /// What `model` and `heatmap` are relative to.
    root: PathBuf,
}

/// A config that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No config of that name.
    #[error("no config is called {name:?}: there are {} (or give a path to a .toml file)", known.join(", "))]
    UnknownName {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is no config.
    #[error("config {}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// Fields that do not go together.
    #[error("config {}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Which, and what was expected.
        reason: String,
    },
}

impl LoadedConfig {
    /// Reads a config by its short name (`tiny-moe`) or its path (anything with a `/` or ending in `.toml`), without
    /// checking it yet: flags may still change it.
    ///
    /// # Errors
    /// When there is no such file, or it is not a config.
    pub(super) fn read(name_or_path: &str, repository: &Repository) -> Result<Self, ConfigError> {
        let path = resolve(name_or_path, repository)?;
        let text = file::read_text(&path, MAX_BYTES)?;
        let absolute =
            path.canonicalize().map_err(|source| FileError::Io { action: "open", path: path.clone(), source })?;
        let config = toml::from_str(&text)
            .map_err(|source| ConfigError::Parse { path: path.clone(), source: Box::new(source) })?;
        let own = absolute.ancestors().find_map(Repository::at);
        Ok(LoadedConfig {
            name: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            sha256: Sha256::of(text.as_bytes()),
            config,
            root: own.as_ref().unwrap_or(repository).root().to_owned(),
            path,
        })
    }

    /// A config that no file holds. Relative paths in it are the repository's.
    pub fn of(name: &str, config: Config, repository: &Repository) -> Self {
        LoadedConfig {
            name: name.to_owned(),
            path: PathBuf::from(name),
            sha256: Sha256::of(b""),
            config,
            root: repository.root().to_owned(),
        }
    }

    /// The checkpoint folder.
    pub fn model_folder(&self) -> PathBuf {
        self.root.join(&self.config.model)
    }

    /// The heatmap file, where the config names one.
    pub fn heatmap_path(&self) -> Option<PathBuf> {
        self.config.residency.heatmap.as_ref().map(|path| self.root.join(path))
    }

    /// Where the hashes of large files are remembered.
    pub fn hash_cache_path(&self) -> PathBuf {
        self.root.join("cache/file-hashes.json")
    }

    /// Checks what one field cannot know of another.
    pub(super) fn check(self) -> Result<Self, ConfigError> {
        match problem(&self.config) {
            None => Ok(self),
            Some(reason) => Err(ConfigError::Invalid { path: self.path, reason }),
        }
    }
}

fn resolve(name_or_path: &str, repository: &Repository) -> Result<PathBuf, ConfigError> {
    if name_or_path.contains('/') || name_or_path.ends_with(".toml") {
        return Ok(PathBuf::from(name_or_path));
    }
    let folder = repository.path(FOLDER);
    let path = folder.join(format!("{name_or_path}.toml"));
    if path.is_file() {
        return Ok(path);
    }
    Err(ConfigError::UnknownName { name: name_or_path.to_owned(), known: names(&folder) })
}

/// Short names of the configs in `folder`, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    names
}

fn words(range: &RangeInclusive<f64>) -> String {
    format!("a number from {:?} to {:?}", range.start(), range.end())
}

/// The first thing that is wrong with a config, as a sentence.
fn problem(config: &Config) -> Option<String> {
    let Config { precision, memory, context, residency, benchmark, device, .. } = config;
    let link = config.link.clone().unwrap_or(Link { bandwidth_gb_s: 1.0, latency_us: 0.0 });
    let int4 = precision.experts == WeightFormat::Int4;
    let checks = [
        (
            precision.expert_quantization.is_some() != int4,
            "precision.expert_quantization is for int4 experts, and they need it: \"amax\" or \"search\"".to_owned(),
        ),
        (
            precision.prefill == PrefillArithmetic::Tensor && *device == Device::Host,
            "precision.prefill is \"tensor\", expected \"exact\" on the host device".to_owned(),
        ),
        (
            config.link.is_some() != (*device == Device::Host),
            "[link] models the host device's link: the host device needs it, on cuda the link is real".to_owned(),
        ),
        (
            memory.margin >= memory.vram,
            format!("memory.margin is {}, expected less than memory.vram, {}", memory.margin, memory.vram),
        ),
        (
            context.min_chunk == 0 || context.min_chunk > context.max_chunk,
            format!(
                "context.min_chunk is {}, expected 1 to context.max_chunk, {}",
                context.min_chunk, context.max_chunk
            ),
        ),
        (
            context.max_chunk > context.tokens,
            format!("context.max_chunk is {}, expected at most context.tokens, {}", context.max_chunk, context.tokens),
        ),
        (
            benchmark.max_prompt_tokens == 0 || benchmark.max_prompt_tokens >= context.tokens,
            format!(
                "benchmark.max_prompt_tokens is {}, expected 1 or more and less than context.tokens, {}",
                benchmark.max_prompt_tokens, context.tokens
            ),
        ),
        (
            !BANDWIDTHS.contains(&link.bandwidth_gb_s),
            format!("link.bandwidth_gb_s is {:?}, expected {}", link.bandwidth_gb_s, words(&BANDWIDTHS)),
        ),
        (
            !LATENCIES.contains(&link.latency_us),
            format!("link.latency_us is {:?}, expected {}", link.latency_us, words(&LATENCIES)),
        ),
        (
            !(0.0..=1.0).contains(&residency.max_resident_share),
            format!("residency.max_resident_share is {}, expected 0 to 1", residency.max_resident_share),
        ),
        (
            residency.heatmap.as_ref().is_some_and(|path| path.as_os_str().is_empty()),
            "residency.heatmap is empty: leave it out for none".to_owned(),
        ),
    ];
    checks.into_iter().find_map(|(wrong, reason)| wrong.then_some(reason))
}
