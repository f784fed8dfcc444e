//! A checkpoint folder: which shards it has and which tensor lies where.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use memmap2::{Mmap, UncheckedAdvice};
use safetensors::tensor::TensorInfo;

use super::error::CheckpointError;
use super::header;
use super::mxfp4::MXFP4_BLOCK;
use super::tensor::{TensorView, WeightDtype};
use crate::file;
use crate::json::UniqueMap;
use crate::model::spec::TensorSource;

const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";
pub(super) const CONFIG_FILE: &str = "config.json";
pub(super) const TOKENIZER_FILE: &str = "tokenizer.json";

/// The most shards that an index may name. The largest public checkpoints have some 200.
const MAX_SHARDS: usize = 4096;
/// The longest `config.json` that is read, in bytes.
pub const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// An open checkpoint: its config in memory, its weights mapped.
///
/// A map shows the file as it is *now*: nobody may shorten or rewrite a checkpoint while it is open, as with any program
/// that maps its weights (a shortened file ends the process with SIGBUS). [`Checkpoint::file_hashes`] says what was read.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    config: Vec<u8>,
    shards: Vec<Shard>,
    tensors: HashMap<String, Located>,
}

/// One safetensors file.
#[derive(Debug)]
pub struct Shard {
    path: PathBuf,
    map: Mmap,
}

/// Where a tensor lies.
#[derive(Debug)]
struct Located {
    shard: usize,
    /// `data_offsets` are within the shard's file here.
    info: TensorInfo,
}

impl Shard {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Size of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.map.len() as u64
    }
}

impl Checkpoint {
    /// Opens the checkpoint in `dir`: `config.json`, and `model.safetensors` or, where that does not exist, the shards
    /// that `model.safetensors.index.json` names (transformers' order). Headers are read and checked, weights are not.
    ///
    /// # Errors
    /// Whatever is missing, malformed or too large; see [`CheckpointError`].
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        if !dir.is_dir() {
            let found = if dir.exists() { "something else" } else { "nothing" };
            return Err(CheckpointError::NotAFolder { path: dir.to_owned(), found });
        }
        let config = file::read(&dir.join(CONFIG_FILE), MAX_CONFIG_BYTES)?;
        let mut checkpoint = Self { dir: dir.to_owned(), config, shards: Vec::new(), tensors: HashMap::new() };
        let single = dir.join(SINGLE_FILE);
        let index = dir.join(INDEX_FILE);
        if single.exists() {
            checkpoint.add_shard(single)?;
        } else if index.exists() {
            checkpoint.add_indexed_shards(&index)?;
        } else {
            return Err(CheckpointError::NoWeights { dir: dir.to_owned() });
        }
        Ok(checkpoint)
    }

    /// The folder, as it was given.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// `config.json`, as it was when the checkpoint was opened.
    pub fn config_bytes(&self) -> &[u8] {
        &self.config
    }

    /// Path of `config.json`, for errors about its content.
    pub fn config_path(&self) -> PathBuf {
        self.dir.join(CONFIG_FILE)
    }

    /// The weight files: one, or the index's in the order of their names.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Whether some shard has a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Number of tensors in all shards.
    pub fn num_tensors(&self) -> usize {
        self.tensors.len()
    }

    /// A tensor of the model, or the part of one, with its type and its shape checked. Its bytes are not read yet.
    ///
    /// # Errors
    /// No such tensor, another shape than `source` says, a type other than BF16, F16 and F32, or U8 where MXFP4 is expected.
    pub fn tensor(&self, source: &TensorSource) -> Result<TensorView<'_>, CheckpointError> {
        let Some(part) = &source.part else {
            return self.find(&source.name, &source.shape, WeightDtype::FLOATS);
        };
        let view = match &part.mxfp4_scales {
            None => self.find(&source.name, &part.file_shape, WeightDtype::FLOATS)?,
            Some(scales) => {
                let [blocks_shape, scales_shape] = mxfp4_shapes(&part.file_shape);
                let blocks = self.find(&source.name, &blocks_shape, WeightDtype::MXFP4)?;
                blocks.with_scales(self.find(scales, &scales_shape, WeightDtype::MXFP4)?.bytes)
            }
        };
        view.part(&source.shape, part)
    }

    /// A whole tensor.
    fn find(
        &self,
        name: &str,
        shape: &[usize],
        (accepted, expected): (&[WeightDtype], &'static str),
    ) -> Result<TensorView<'_>, CheckpointError> {
        let Some((name, located)) = self.tensors.get_key_value(name) else {
            return Err(CheckpointError::MissingTensor {
                dir: self.dir.clone(),
                tensor: name.to_owned(),
                expected: shape.to_vec(),
                tensors: self.tensors.len(),
            });
        };
        // `located` comes from `add_shard`, which pushes the shard with it and has checked the range against the file.
        let shard = &self.shards[located.shard];
        let info = &located.info;
        if info.shape != shape {
            return Err(CheckpointError::Shape {
                path: shard.path.clone(),
                tensor: name.clone(),
                found: info.shape.clone(),
                expected: shape.to_vec(),
            });
        }
        let dtype = WeightDtype::from_safetensors(info.dtype).filter(|dtype| accepted.contains(dtype));
        let dtype = dtype.ok_or_else(|| CheckpointError::Dtype {
            path: shard.path.clone(),
            tensor: name.clone(),
            found: info.dtype.to_string(),
            expected,
        })?;
        let bytes = &shard.map[info.data_offsets.0..info.data_offsets.1];
        Ok(TensorView::whole(name, dtype, &info.shape, bytes, &shard.path))
    }

    /// Lets the kernel drop the pages that reading has mapped, so that the process's resident memory does not grow to the
    /// checkpoint's size. Views stay valid: what they read comes from the page cache or from disk again.
    ///
    /// # Errors
    /// The system's, when it refuses the advice.
    pub fn release(&self) -> Result<(), CheckpointError> {
        for shard in &self.shards {
            // SAFETY: the map is shared, read-only and backed by a file, so dropped pages come back with the same content.
            unsafe { shard.map.unchecked_advise(UncheckedAdvice::DontNeed) }
                .map_err(CheckpointError::io("release the map of", &shard.path))?;
        }
        Ok(())
    }

    /// Maps one file and enters its tensors.
    fn add_shard(&mut self, path: PathBuf) -> Result<(), CheckpointError> {
        let file = file::open(&path)?;
        // SAFETY: nobody may change a checkpoint while it is open; that is documented on `Checkpoint`.
        let map = unsafe { Mmap::map(&file) }.map_err(CheckpointError::io("map", &path))?;
        let tensors = header::read(&path, &map)?;
        let total = self.tensors.len() + tensors.len();
        if total > header::MAX_TENSORS {
            let (found, limit) = (total as u64, header::MAX_TENSORS as u64);
            return Err(CheckpointError::TooLarge { path, what: "number of tensors up to this file", found, limit });
        }
        let shard = self.shards.len();
        for (name, info) in tensors {
            if let Some(earlier) = self.tensors.get(&name) {
                // A tensor of this very file, if its shard is not in the list yet.
                let first = self.shards.get(earlier.shard).map_or(&path, |shard| &shard.path).clone();
                return Err(CheckpointError::Duplicate { tensor: name, first, second: path });
            }
            self.tensors.insert(name, Located { shard, info });
        }
        self.shards.push(Shard { path, map });
        Ok(())
    }

    /// Maps every file that the index names and checks that each tensor is where the index says.
    fn add_indexed_shards(&mut self, index: &Path) -> Result<(), CheckpointError> {
        /// The part of the index that decides anything; `metadata` holds totals that nobody needs.
        #[derive(serde::Deserialize)]
        struct Index {
            weight_map: UniqueMap<String>,
        }
        let bytes = file::read(index, header::MAX_HEADER_BYTES)?;
        let malformed = |found: String, expected: &str| CheckpointError::Malformed {
            path: index.to_owned(),
            found,
            expected: expected.to_owned(),
        };
        let Index { weight_map: UniqueMap(weight_map) } = serde_json::from_slice(&bytes).map_err(|error| {
            malformed(
                format!("the index cannot be read ({error})"),
                "an object with weight_map: tensor name to file name",
            )
        })?;
        let names: BTreeSet<&str> = weight_map.values().map(String::as_str).collect();
        if names.is_empty() {
            return Err(malformed("weight_map is empty".into(), "at least one tensor"));
        }
        if names.len() > MAX_SHARDS {
            return Err(CheckpointError::TooLarge {
                path: index.to_owned(),
                what: "number of shards",
                found: names.len() as u64,
                limit: MAX_SHARDS as u64,
            });
        }
        if let Some(name) = names.iter().find(|name| !is_plain_file_name(name)) {
            return Err(malformed(
                format!("weight_map names the file {name:?}"),
                "a plain file name in the same folder",
            ));
        }
        for name in names {
            self.add_shard(self.dir.join(name))?;
        }
        for (tensor, file) in &weight_map {
            let path = self.dir.join(file);
            if self.tensors.get(tensor).is_none_or(|located| self.shards[located.shard].path != path) {
                return Err(CheckpointError::NotInShard { path, tensor: tensor.clone(), index: index.to_owned() });
            }
        }
        Ok(())
    }
}

/// Shapes of the blocks and of the scales that hold MXFP4 values of `shape`.
fn mxfp4_shapes(shape: &[usize]) -> [Vec<usize>; 2] {
    let (last, rest) = shape.split_last().map_or((0, shape), |(last, rest)| (*last, rest));
    let scales = [rest, &[last / MXFP4_BLOCK]].concat();
    [[scales.as_slice(), &[MXFP4_BLOCK / 2]].concat(), scales]
}

/// Whether a name stays within its folder on every system.
fn is_plain_file_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', ':', '\0'])
}
