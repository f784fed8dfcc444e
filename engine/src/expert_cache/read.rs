//! Reading a cache into memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::Serialize;
use sha2::{Digest, Sha256};

use assay_kernels::layout::ExpertLayout;

use super::error::CacheError;
use super::header::{Header, LayerRecord, PAGE_BYTES, hex};
use super::identity::CacheIdentity;

/// Bytes read and hashed at a time: small enough to be hashed out of the processor's cache.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

/// An open cache whose header has been checked. Experts are read with plain reads, never mapped.
#[derive(Debug)]
pub struct ExpertCache {
    pub(super) file: File,
    pub(super) path: PathBuf,
    pub(super) header: Header,
    /// Where the header ends.
    pub(super) header_end: u64,
    /// The next page: where the payload starts.
    pub(super) payload_start: u64,
}

/// What a cache says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CacheInfo {
    /// The file.
    pub path: PathBuf,
    /// Its size.
    pub file_bytes: u64,
    /// Bytes of the experts, each layer padded to a page.
    pub payload_bytes: u64,
    /// Everything else.
    pub header: Header,
}

/// Reads and checks a cache's header, whatever it is a cache of.
///
/// # Errors
/// A file that is not a cache, or a damaged one.
pub fn info(path: &Path) -> Result<CacheInfo, CacheError> {
    let cache = ExpertCache::open_any(path)?;
    Ok(CacheInfo {
        path: path.to_owned(),
        file_bytes: cache.file_bytes(),
        payload_bytes: cache.payload_bytes(),
        header: cache.header,
    })
}

impl ExpertCache {
    /// Opens the cache at `path` and checks that it is the one that `identity` describes.
    ///
    /// # Errors
    /// A file that cannot be read, is not a cache, or is a cache of something else: then with both values.
    pub fn open(path: &Path, identity: &CacheIdentity) -> Result<Self, CacheError> {
        let cache = Self::open_any(path)?;
        identity.check(&cache.header, path)?;
        Ok(cache)
    }

    /// Opens a cache of anything.
    pub(super) fn open_any(path: &Path) -> Result<Self, CacheError> {
        let file = File::open(path).map_err(CacheError::io("open", path))?;
        let (header, header_end) = Header::read(&file, path)?;
        let payload_start = header_end.next_multiple_of(PAGE_BYTES);
        Ok(Self { file, path: path.to_owned(), header, header_end, payload_start })
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The MoE layers in ascending order, with their offsets in the payload.
    pub fn layers(&self) -> &[LayerRecord] {
        &self.header.layers
    }

    /// How an expert of a layer of the model is laid out; `None` where the layer has no experts.
    pub fn expert_layout(&self, layer: usize) -> Option<ExpertLayout> {
        let record = self.header.layers.iter().find(|record| record.layer == layer)?;
        record.expert_layout(self.header.encoding.format())
    }

    /// Size of the file.
    pub fn file_bytes(&self) -> u64 {
        self.payload_start + self.payload_bytes()
    }

    /// Bytes that [`ExpertCache::read_all`] fills.
    pub fn payload_bytes(&self) -> u64 {
        self.header.payload_bytes()
    }

    /// Reads the experts of one layer of the model into `out`, which is [`LayerRecord::bytes`] long, and checks their hash.
    ///
    /// # Errors
    /// A layer without experts, a buffer of another size, a file that cannot be read, bytes with another hash; then `out`
    /// holds whatever was read.
    pub fn read_layer(&self, layer: usize, out: &mut [u8]) -> Result<(), CacheError> {
        let Some(record) = self.header.layers.iter().find(|record| record.layer == layer) else {
            let layers: Vec<usize> = self.header.layers.iter().map(|record| record.layer).collect();
            return Err(self.request(format!("layer {layer}"), format!("one of {layers:?}")));
        };
        self.read_record(record, out, &|_| ())
    }

    /// Reads the whole payload into `out`, which is [`ExpertCache::payload_bytes`] long: every layer at its
    /// [`LayerRecord::offset`], hashes checked, padding left as it is. Layers are read side by side. `progress` gets the
    /// number of bytes each time some have been read.
    ///
    /// # Errors
    /// As [`ExpertCache::read_layer`].
    pub fn read_all(&self, out: &mut [u8], progress: &(dyn Fn(u64) + Sync)) -> Result<(), CacheError> {
        if out.len() as u64 != self.payload_bytes() {
            return Err(self.request(format!("a buffer of {} bytes", out.len()), self.payload_bytes().to_string()));
        }
        let mut parts = Vec::with_capacity(self.header.layers.len());
        let (mut rest, mut at) = (out, 0);
        for record in &self.header.layers {
            // Offsets ascend and end within the payload: checked when the header was read.
            let (_, tail) = rest.split_at_mut((record.offset - at) as usize);
            let (part, tail) = tail.split_at_mut(record.bytes());
            parts.push((record, part));
            rest = tail;
            at = record.offset + record.bytes() as u64;
        }
        parts.into_par_iter().try_for_each(|(record, part)| self.read_record(record, part, progress))
    }

    fn read_record(
        &self,
        record: &LayerRecord,
        out: &mut [u8],
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), CacheError> {
        if out.len() != record.bytes() {
            return Err(self.request(format!("a buffer of {} bytes", out.len()), record.bytes().to_string()));
        }
        let mut hasher = Sha256::new();
        let mut at = self.payload_start + record.offset;
        for chunk in out.chunks_mut(CHUNK_BYTES) {
            self.read_at(chunk, at)?;
            hasher.update(&*chunk);
            at += chunk.len() as u64;
            progress(chunk.len() as u64);
        }
        self.check_hash(record, &hasher.finalize())
    }

    pub(super) fn read_at(&self, out: &mut [u8], at: u64) -> Result<(), CacheError> {
        self.file.read_exact_at(out, at).map_err(CacheError::io("read", &self.path))
    }

    pub(super) fn check_hash(&self, record: &LayerRecord, hash: &[u8]) -> Result<(), CacheError> {
        let found = hex(hash);
        if found == record.sha256 {
            return Ok(());
        }
        let expected = record.sha256.clone();
        Err(CacheError::Damaged { path: self.path.clone(), layer: record.layer, found, expected })
    }

    fn request(&self, found: String, expected: String) -> CacheError {
        CacheError::Request { path: self.path.clone(), found, expected }
    }
}
