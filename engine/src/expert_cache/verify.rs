//! Verifying a cache: every byte is read, every hash and every rule of the layout checked.

use std::path::Path;
use std::time::Instant;

use rayon::prelude::*;
use serde::Serialize;
use sha2::{Digest, Sha256};

use assay_kernels::layout::{ExpertLayout, LayoutError, MatrixFormat, validate_bf16, validate_int4, validate_int8};

use super::error::CacheError;
use super::header::LayerRecord;
use super::read::ExpertCache;

/// What was verified.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct VerifyReport {
    /// MoE layers.
    pub layers: usize,
    /// Experts in all of them.
    pub experts: usize,
    /// Size of the file; all of it was read.
    pub bytes: u64,
    /// Wall time.
    pub seconds: f64,
}

/// Reads all of the cache at `path`, an expert at a time in each thread. `progress` gets the number of bytes each time some
/// have been verified. What the source files are now is not looked at.
///
/// # Errors
/// The first thing that is wrong, with its place: the header, a layer's hash, a nibble, a scale, padding.
pub fn verify(path: &Path, progress: &(dyn Fn(u64) + Sync)) -> Result<VerifyReport, CacheError> {
    let start = Instant::now();
    let cache = ExpertCache::open_any(path)?;
    cache.verify_zeros("padding after the header", cache.header_end, cache.payload_start)?;
    let layers = cache.layers();
    layers.par_iter().try_for_each(|record| cache.verify_layer(record, progress))?;
    for (index, record) in layers.iter().enumerate() {
        let end = layers.get(index + 1).map_or(cache.payload_bytes(), |next| next.offset);
        let (from, to) = (record.offset + record.bytes() as u64, end);
        let name = format!("padding after layer {}", record.layer);
        cache.verify_zeros(&name, cache.payload_start + from, cache.payload_start + to)?;
    }
    Ok(VerifyReport {
        layers: layers.len(),
        experts: layers.iter().map(|record| record.num_experts).sum(),
        bytes: cache.file_bytes(),
        seconds: start.elapsed().as_secs_f64(),
    })
}

impl ExpertCache {
    /// Checks that the file's bytes `from..to` are zeros; they are less than a page.
    fn verify_zeros(&self, what: &str, from: u64, to: u64) -> Result<(), CacheError> {
        let mut bytes = vec![0; to.saturating_sub(from) as usize];
        self.read_at(&mut bytes, from)?;
        match bytes.iter().position(|byte| *byte != 0) {
            None => Ok(()),
            Some(place) => {
                let found = format!("{what}: {:#04x} at byte {}", bytes[place], from + place as u64);
                Err(CacheError::malformed(&self.path, found, "zeros"))
            }
        }
    }

    fn verify_layer(&self, record: &LayerRecord, progress: &(dyn Fn(u64) + Sync)) -> Result<(), CacheError> {
        let format = self.header.encoding.format();
        let Some(layout) = record.expert_layout(format) else {
            // A header with such a layer has been refused already.
            let found = format!("layer {}: experts without a size", record.layer);
            return Err(CacheError::malformed(&self.path, found, "a size that fits in memory"));
        };
        let mut hasher = Sha256::new();
        let mut bytes = vec![0; layout.bytes];
        let mut first_problem = None;
        for expert in 0..record.num_experts {
            let at = self.payload_start + record.offset + (expert * layout.bytes) as u64;
            self.read_at(&mut bytes, at)?;
            hasher.update(&bytes);
            if first_problem.is_none() {
                first_problem = self.validate_expert(record.layer, expert, &layout, &bytes).err();
            }
            progress(layout.bytes as u64);
        }
        // A wrong hash says that the file was damaged; bad content under a right hash, that it was written wrongly.
        self.check_hash(record, &hasher.finalize())?;
        first_problem.map_or(Ok(()), Err)
    }

    fn validate_expert(
        &self,
        layer: usize,
        expert: usize,
        layout: &ExpertLayout,
        bytes: &[u8],
    ) -> Result<(), CacheError> {
        let (hidden, intermediate) = (layout.hidden_size, layout.moe_intermediate_size);
        let matrices = [
            ("gate_proj", layout.gate(), intermediate, hidden),
            ("up_proj", layout.up(), intermediate, hidden),
            ("down_proj", layout.down(), hidden, intermediate),
        ];
        let mut end = 0;
        for (matrix, range, rows, cols) in matrices {
            self.validate_gap(layer, expert, &bytes[end..range.start])?;
            end = range.end;
            let check: fn(&[u8], usize, usize) -> Result<(), LayoutError> = match layout.format {
                MatrixFormat::Bf16 => validate_bf16,
                MatrixFormat::Int4 => validate_int4,
                MatrixFormat::Int8 => validate_int8,
            };
            check(&bytes[range], rows, cols).map_err(|source| CacheError::Content {
                path: self.path.clone(),
                layer,
                expert,
                matrix,
                source,
            })?;
        }
        let names = ["gate_proj", "up_proj", "down_proj"];
        for (name, range) in names.into_iter().zip(layout.biases().into_iter().flatten()) {
            self.validate_gap(layer, expert, &bytes[end..range.start])?;
            end = range.end;
            let values = bytes[range].as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            if let Some((row, found)) = values.enumerate().find(|(_, value)| !value.is_finite()) {
                let found = format!("layer {layer}, expert {expert}, bias of {name}: row {row} is {found}");
                return Err(CacheError::malformed(&self.path, found, "a finite number"));
            }
        }
        self.validate_gap(layer, expert, &bytes[end..])
    }

    fn validate_gap(&self, layer: usize, expert: usize, gap: &[u8]) -> Result<(), CacheError> {
        if gap.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let found = format!("layer {layer}, expert {expert}: padding between its parts that is not zero");
        Err(CacheError::malformed(&self.path, found, "zeros"))
    }
}
