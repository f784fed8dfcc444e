//! Writing the folder of a synthetic model: config, tokenizer, weights, and the experts straight as an expert cache.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use half::bf16;
use rayon::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::View;

use super::error::SynthError;
use super::random::{Name, Stream};
use super::recipe::Recipe;
use super::shape::Shape;
use super::tokenizer::tokenizer;
use super::weights::{Gains, Made, fill_vector, tensors};
use crate::expert_cache::{
    BuildOptions, CacheError, EncodeError, ExpertPlace, ExpertSource, SquaredError, build_from, encode_rows, write_bias,
};
use crate::model::load_spec;
use crate::model::spec::{MlpSpec, ModelSpec};
use crate::model_folder::ModelFolder;

const CONFIG_FILE: &str = "config.json";
/// Elements that one thread makes at a time.
const BLOCK_ELEMENTS: usize = 1 << 16;

/// Called with what is written, bytes of it so far and in all.
pub type Progress<'a> = &'a mut dyn FnMut(&'static str, u64, u64);

/// What was written.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct SynthReport {
    /// Tensors of the checkpoint, routed experts apart.
    pub tensors: usize,
    /// Their bytes.
    pub tensor_bytes: u64,
    /// The expert cache.
    pub cache: PathBuf,
    /// Its bytes.
    pub cache_bytes: u64,
    /// Wall time of the tensors.
    pub tensor_seconds: f64,
    /// Wall time of the expert cache.
    pub cache_seconds: f64,
}

/// Writes a model folder that opens like any other. `dir` may not exist yet, or be empty. `cancel` stops it between tensors and
/// batches of experts.
///
/// # Errors
/// A recipe or shape that makes no model, a folder that is not empty, a file system that refuses.
pub fn write_model(
    shape: &Shape,
    recipe: &Recipe,
    dir: &Path,
    cancel: &AtomicBool,
    progress: Progress<'_>,
) -> Result<SynthReport, SynthError> {
    recipe.check()?;
    let config = shape.config(recipe).map_err(|error| SynthError::Malformed {
        path: dir.join(CONFIG_FILE),
        found: error.to_string(),
        expected: "a config that can be written".to_owned(),
    })?;
    let spec = load_spec(&config, Path::new(&shape.name))?;
    let made = tensors(&spec, recipe)?;
    make_folder(dir)?;
    write_file(&dir.join(CONFIG_FILE), &config)?;
    write_file(&dir.join("tokenizer.json"), tokenizer(spec.vocab_size).to_string().as_bytes())?;

    let start = Instant::now();
    let tensor_bytes = write_tensors(&made, &dir.join("model.safetensors"), cancel, progress)?;
    let tensor_seconds = start.elapsed().as_secs_f64();
    let (cache, cache_bytes, cache_seconds) = write_experts(&spec, recipe, dir, cancel, progress)?;
    Ok(SynthReport { tensors: made.len(), tensor_bytes, cache, cache_bytes, tensor_seconds, cache_seconds })
}

fn make_folder(dir: &Path) -> Result<(), SynthError> {
    fs::create_dir_all(dir).map_err(SynthError::io("create the folder", dir))?;
    let mut entries = fs::read_dir(dir).map_err(SynthError::io("read the folder", dir))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(SynthError::Malformed {
            path: dir.to_owned(),
            found: "the folder is not empty".to_owned(),
            expected: "a new one".to_owned(),
        }),
    }
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), SynthError> {
    let mut file = File::create_new(path).map_err(SynthError::io("create", path))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(SynthError::io("write", path))
}

/// A tensor that is made when it is written.
struct Lazy<'a> {
    made: &'a Made,
    cancel: &'a AtomicBool,
    /// Told once the bytes are made.
    done: &'a dyn Fn(u64),
}

impl View for Lazy<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::BF16
    }
    fn shape(&self) -> &[usize] {
        &self.made.shape
    }
    fn data_len(&self) -> usize {
        self.made.shape.iter().product::<usize>() * size_of::<bf16>()
    }
    fn data(&self) -> Cow<'_, [u8]> {
        let mut bytes = vec![0u8; self.data_len()];
        if self.cancel.load(Ordering::Relaxed) {
            // The file is removed as soon as it has been written.
            return Cow::Owned(bytes);
        }
        let cols = self.made.shape.last().copied().unwrap_or(1).max(1);
        let rows_at_once = (BLOCK_ELEMENTS / cols).max(1);
        let blocks = bytes.par_chunks_mut(rows_at_once * cols * size_of::<bf16>()).enumerate();
        blocks.for_each_init(Vec::new, |values, (block, bytes)| {
            let rows = bytes.len() / (cols * size_of::<bf16>());
            values.resize(rows * cols, 0f32);
            let first = block * rows_at_once;
            self.made.fill(first..first + rows, values);
            for (out, value) in bytes.as_chunks_mut().0.iter_mut().zip(values.iter()) {
                *out = bf16::from_f32(*value).to_le_bytes();
            }
        });
        (self.done)(bytes.len() as u64);
        Cow::Owned(bytes)
    }
}

/// Writes `model.safetensors`, one tensor in memory at a time; its tensors' bytes.
fn write_tensors(made: &[Made], path: &Path, cancel: &AtomicBool, progress: Progress<'_>) -> Result<u64, SynthError> {
    let total: u64 = made.iter().map(|made| made.shape.iter().product::<usize>() as u64 * 2).sum();
    let state = std::cell::RefCell::new((0u64, progress));
    let done = |bytes: u64| {
        let (written, progress) = &mut *state.borrow_mut();
        *written += bytes;
        progress("weights", *written, total);
    };
    let views = made.iter().map(|made| (made.name.as_str(), Lazy { made, cancel, done: &done }));
    safetensors::serialize_to_file(views, None, path).map_err(|error| SynthError::Io {
        action: "write",
        path: path.to_owned(),
        source: std::io::Error::other(error),
    })?;
    if cancel.load(Ordering::Relaxed) {
        fs::remove_file(path).map_err(SynthError::io("remove", path))?;
        return Err(SynthError::Interrupted);
    }
    // The crate writes a temporary file, which others may not read.
    let readable = || fs::set_permissions(path, fs::metadata(path.with_file_name(CONFIG_FILE))?.permissions());
    File::open(path)
        .and_then(|file| file.sync_all())
        .and_then(|()| readable())
        .map_err(SynthError::io("sync", path))?;
    Ok(total)
}

/// Writes the expert cache; its path, its bytes and the wall time.
fn write_experts(
    spec: &ModelSpec,
    recipe: &Recipe,
    dir: &Path,
    cancel: &AtomicBool,
    progress: Progress<'_>,
) -> Result<(PathBuf, u64, f64), SynthError> {
    let folder = ModelFolder::open(dir, &|_| {}).map_err(Box::new)?;
    let identity = folder.cache_identity(recipe.experts).map_err(Box::new)?;
    let path = folder.own_cache(recipe.experts).ok_or_else(|| SynthError::Malformed {
        path: dir.join(CONFIG_FILE),
        found: "no recipe".to_owned(),
        expected: "that of the model that is written".to_owned(),
    })?;
    let source = MadeExperts { seed: recipe.seed, gains: Gains::new(recipe, spec), spec };
    let options = BuildOptions { cancel: Some(cancel), ..BuildOptions::default() };
    let report = build_from(&source, spec, &identity, &path, &options, |done, total| progress("experts", done, total));
    match report {
        Ok(report) => Ok((path, report.bytes, report.seconds)),
        Err(CacheError::Cancelled { .. }) => Err(SynthError::Interrupted),
        Err(error) => Err(error.into()),
    }
}

/// Experts that are made as they are packed.
struct MadeExperts<'a> {
    seed: u64,
    gains: Gains,
    spec: &'a ModelSpec,
}

impl ExpertSource for MadeExperts<'_> {
    fn check(&self, _: &[MlpSpec]) -> Result<(), CacheError> {
        Ok(())
    }

    fn pack(&self, place: &ExpertPlace<'_>, packed: &mut [u8]) -> Result<SquaredError, CacheError> {
        let layer = place.geometry.layer;
        let residual_multiplier = self.spec.layers.get(layer).map_or(1.0, |layer| layer.residual_multiplier);
        let down = self.gains.down(place.spec.activation, residual_multiplier);
        let parts = [(Name::Gate, 1.0), (Name::Up, 1.0), (Name::Down, down)];
        let grid = |name: Name, std: f64, cols: usize| match name {
            Name::Down => self.gains.grid(std, cols),
            _ => self.gains.reader(std, cols),
        };
        let streams = parts.map(|(name, _)| Stream::of_expert(self.seed, layer, place.expert, name));
        let mut error = SquaredError::default();
        for (((linear, rows, cols, range), (name, std)), stream) in place.matrices().into_iter().zip(parts).zip(streams)
        {
            let grid = grid(name, std, cols);
            let fill = |rows: std::ops::Range<usize>, values: &mut [f32]| {
                grid.fill(stream, rows, cols, values);
                Ok::<_, EncodeError>(())
            };
            let encoded = encode_rows(place.encoding, rows, cols, fill, &mut packed[range]);
            let tensor = || linear.weight.name.clone();
            error = error.and(encoded.map_err(|source| CacheError::Encode { tensor: tensor(), source })?);
        }
        let biases = place.geometry.expert.biases().into_iter().flatten();
        for ((range, (_, std)), stream) in biases.zip(parts).zip(streams) {
            let mut values = vec![0f32; range.len() / size_of::<f32>()];
            fill_vector(stream.inner(0), Gains::bias(std), &mut values);
            write_bias(&values, &mut packed[range]);
        }
        Ok(error)
    }

    fn layer_done(&self) -> Result<(), CacheError> {
        Ok(())
    }
}
