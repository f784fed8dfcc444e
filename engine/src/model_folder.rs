//! A checkpoint's folder: the files mapped, the model described, every file fingerprinted.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::bank::HostBank;
use crate::checkpoint::{Checkpoint, FileHash, HashCache, hex};
use crate::error::EngineError;
use crate::expert_cache::{CacheIdentity, Encoding, ExpertCache};
use crate::model::load_spec;
use crate::model::spec::ModelSpec;
use crate::synth::SyntheticRecord;

/// What is needed to build an engine, except the experts.
#[derive(Debug)]
pub struct ModelFolder {
    /// Weight files and config.
    pub checkpoint: Checkpoint,
    /// The model they describe.
    pub spec: Arc<ModelSpec>,
    /// SHA-256 of config, tokenizer and weight files.
    pub hashes: Vec<FileHash>,
    /// How the weights were made up, where they were.
    pub synthetic: Option<SyntheticRecord>,
}

impl ModelFolder {
    /// Opens a folder, finds every tensor that the model needs, with its type and shape, and hashes the files. `progress` is called
    /// with the number of bytes each time some have been hashed.
    pub fn open(dir: &Path, progress: &(dyn Fn(u64) + Sync)) -> Result<Self, EngineError> {
        Self::open_cached(dir, None, progress)
    }

    /// [`ModelFolder::open`], without reading files that `cache` knows the hashes of.
    pub fn open_cached(
        dir: &Path,
        cache: Option<&HashCache>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Self, EngineError> {
        let checkpoint = Checkpoint::open(dir)?;
        let spec = Arc::new(load_spec(checkpoint.config_bytes(), &checkpoint.config_path())?);
        let synthetic = SyntheticRecord::read(checkpoint.config_bytes(), &checkpoint.config_path())?;
        // Before anything is hashed, built or allocated: a config that asks for more than the files hold fails at once.
        // The experts of a model that was made up are in no checkpoint.
        spec.for_each_source(synthetic.is_none(), &mut |source| checkpoint.tensor(source).map(drop))?;
        let hashes = checkpoint.file_hashes(cache, progress)?;
        Ok(Self { checkpoint, spec, hashes, synthetic })
    }

    /// One SHA-256 for all files, by name.
    pub fn sha256(&self) -> String {
        let mut hasher = Sha256::new();
        for file in &self.hashes {
            hasher.update(format!("{} {}\n", file.name, file.sha256));
        }
        hex(&hasher.finalize())
    }

    /// What an expert cache of this folder must be of.
    pub fn cache_identity(&self, encoding: Encoding) -> Result<CacheIdentity, EngineError> {
        Ok(CacheIdentity::new(&self.checkpoint, &self.spec, encoding, &self.hashes)?)
    }

    /// Where a synthetic model has its experts: in its own folder, since no checkpoint holds them. `None` for any other.
    pub fn own_cache(&self, encoding: Encoding) -> Option<PathBuf> {
        self.synthetic.as_ref().map(|_| self.checkpoint.dir().join(format!("{encoding}.experts")))
    }

    /// Reads a whole expert cache into memory, checking its hashes. `progress` is called with bytes read.
    pub fn read_bank(
        &self,
        cache: &Path,
        encoding: Encoding,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Arc<HostBank>, EngineError> {
        let cache = ExpertCache::open(cache, &self.cache_identity(encoding)?)?;
        let bytes =
            usize::try_from(cache.payload_bytes()).map_err(|_| EngineError::TooLarge { what: "the experts" })?;
        let mut bank = HostBank::zeroed(bytes).map_err(|source| EngineError::HostMemory { bytes, source })?;
        cache.read_all(bank.bytes_mut(), progress)?;
        Ok(Arc::new(bank))
    }
}
