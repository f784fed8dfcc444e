//! From a checkpoint folder to a file.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use super::error::GgufError;
use super::metadata::{self, ConfigExtras};
use super::write::{self, GgufType};
use super::{tensors, vocabulary};
use crate::checkpoint::Checkpoint;
use crate::expert_cache::Encoding;
use crate::model::spec::ModelSpec;

/// In which form weights are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportOptions {
    /// Type of the matrices.
    pub matrices: GgufType,
    /// INT4 leaves of the experts what the expert cache holds of them, so that another program computes with the very
    /// weights of a quantised config. That needs matrices in F32: BF16 has too few bits for `q * scale`.
    pub experts: Encoding,
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

/// Writes a checkpoint and its tokenizer as GGUF to `path`. `name` is the model's name for readers. The file appears under its name only when it is complete. `progress` is called with bytes written and bytes in
/// all; `false` from it stops the export.
///
/// # Errors
/// A family, rope or tokenizer that GGUF or llama.cpp has no place for, a tensor that is not what the config says, a disk
/// that is full.
pub fn export(
    checkpoint: &Checkpoint,
    spec: &ModelSpec,
    options: ExportOptions,
    name: &str,
    path: &Path,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<ExportReport, GgufError> {
    if options.experts != Encoding::Bf16 && options.matrices != GgufType::F32 {
        return Err(GgufError::Unsupported {
            what: "the type of the matrices",
            found: "BF16".to_owned(),
            expected: format!("F32 for experts in {}", options.experts),
        });
    }
    let extras = ConfigExtras::read(checkpoint.config_bytes(), &checkpoint.config_path())?;
    let mut keys = metadata::keys(spec, &extras, name, options.matrices)?;
    keys.extend(vocabulary::keys(checkpoint.dir(), spec.vocab_size, &extras)?);
    let tensors = tensors::tensors(checkpoint, spec, options)?;
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
    for tensor in &tensors {
        write::data(tensor, &mut out, io_error, &mut advance)?;
        checkpoint.release()?;
    }
    out.flush().map_err(io_error)?;
    drop(out);
    let bytes = temporary.keep(path)?;
    Ok(ExportReport { tensors: tensors.len(), keys: keys.len(), bytes })
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
