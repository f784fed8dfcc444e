//! From a checkpoint folder to a file.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use super::error::GgufError;
use super::metadata::{self, ConfigExtras};
use super::part::CachedLayer;
use super::write::{self, GgufType};
use super::{tensors, vocabulary};
use crate::checkpoint::Checkpoint;
use crate::expert_cache::{Encoding, ExpertCache};
use crate::model::spec::ModelSpec;

/// In which form weights are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportOptions {
    /// Type of the matrices. Q4_0 holds what INT4 by the largest magnitude leaves of them.
    pub matrices: GgufType,
    /// Type of the experts' matrices.
    pub expert_matrices: GgufType,
    /// INT4 leaves of the experts what the expert cache holds of them, so that another program computes with the very
    /// weights of a quantised config. That needs F32 or Q4_0: BF16 has too few bits for `q * scale`. Experts that come out
    /// of a cache are left as they are.
    pub experts: Encoding,
}

/// What is written.
#[derive(Debug, Clone, Copy)]
pub struct ExportSource<'a> {
    /// The checkpoint.
    pub checkpoint: &'a Checkpoint,
    /// The model that it is.
    pub spec: &'a ModelSpec,
    /// Experts that the checkpoint does not hold.
    pub experts: Option<&'a ExpertCache>,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ExportReport {
    /// Tensors in the file.
    pub tensors: usize,
    /// Keys in the file.
    pub keys: usize,
    /// Size of the file, in bytes.
    pub bytes: u64,
}

/// Writes a checkpoint and its tokenizer as GGUF to `path`. `name` is the model's name for readers. The file appears under its
/// name only when it is complete. `progress` is called with bytes written and bytes in all; `false` from it stops the export.
/// At most one layer of a cache is in memory.
///
/// # Errors
/// A family, rope or tokenizer that GGUF or llama.cpp has no place for, a tensor that is not what the config says, values that
/// a type does not hold, a disk that is full.
pub fn export(
    source: ExportSource<'_>,
    options: ExportOptions,
    name: &str,
    path: &Path,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<ExportReport, GgufError> {
    let ExportSource { checkpoint, spec, experts } = source;
    check_experts(experts.is_some(), options)?;
    let extras = ConfigExtras::read(checkpoint.config_bytes(), &checkpoint.config_path())?;
    let mut keys = metadata::keys(spec, &extras, name, options.expert_matrices)?;
    keys.extend(vocabulary::keys(checkpoint.dir(), spec.vocab_size, &extras)?);
    let tensors = tensors::tensors(source, options)?;
    let total: u64 = tensors.iter().map(write::Tensor::bytes).sum();
    let mut done = 0;
    let mut advance = |bytes: u64| {
        done += bytes;
        if progress(done, total) { Ok(()) } else { Err(GgufError::Interrupted) }
    };
    let header = write::header(&keys, &tensors);

    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Removed by its destructor unless it gets its name.
    let temporary = Temporary::create(folder, path)?;
    let mut out = BufWriter::new(&temporary.file);
    let io_error = |error| GgufError::io("write", path)(error);
    out.write_all(&header).map_err(io_error)?;
    let mut layer = CachedLayer::new(experts);
    for tensor in &tensors {
        write::data(tensor, &mut layer, &mut out, io_error, &mut advance)?;
        checkpoint.release()?;
    }
    out.flush().map_err(io_error)?;
    drop(out);
    let bytes = temporary.keep(path)?;
    Ok(ExportReport { tensors: tensors.len(), keys: keys.len(), bytes })
}

/// Refuses a type that does not hold experts of the encoding asked for.
fn check_experts(cached: bool, options: ExportOptions) -> Result<(), GgufError> {
    let fits = match (cached, options.experts, options.expert_matrices) {
        // Each value is looked at.
        (true, _, _) => true,
        (false, Encoding::Bf16, dtype) => dtype != GgufType::Q4_0,
        (false, Encoding::Int4(_), dtype) => dtype != GgufType::Bf16,
        (false, Encoding::Int8, dtype) => dtype == GgufType::F32,
    };
    if fits {
        return Ok(());
    }
    let expected = match options.experts {
        Encoding::Bf16 => "BF16 or F32 for experts as they are".to_owned(),
        Encoding::Int4(_) => format!("F32 or Q4_0 for experts in {}", options.experts),
        Encoding::Int8 => "F32 for experts in int8".to_owned(),
    };
    let found = options.expert_matrices.name().to_owned();
    Err(GgufError::Unsupported { what: "the type of the experts' matrices", found, expected })
}

/// A file beside its final place.
struct Temporary {
    file: File,
    path: std::path::PathBuf,
    kept: bool,
}

impl Temporary {
    fn create(folder: &Path, target: &Path) -> Result<Self, GgufError> {
        let name = target.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let path = folder.join(format!(".{name}.{}.tmp", std::process::id()));
        let file = File::create(&path).map_err(GgufError::io("create", &path))?;
        Ok(Self { file, path, kept: false })
    }

    /// Gives the file its name; its size.
    fn keep(mut self, target: &Path) -> Result<u64, GgufError> {
        self.file.sync_all().map_err(GgufError::io("write", target))?;
        std::fs::rename(&self.path, target).map_err(GgufError::io("rename to", target))?;
        self.kept = true;
        Ok(self.file.metadata().map_err(GgufError::io("read", target))?.len())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.kept {
            // Nothing can be done about a file that cannot be removed; it has a name that nobody mistakes.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
