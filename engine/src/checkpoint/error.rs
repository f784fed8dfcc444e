//! What can be wrong with a checkpoint folder.

use std::path::PathBuf;

use crate::file::FileError;

/// Why a checkpoint, or one of its tensors, could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The operating system refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was attempted: `open`, `read`, `map`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// There is no such folder, or it is not a folder.
    #[error("{path}: expected a checkpoint folder, found {found}")]
    NotAFolder {
        /// The path that was given.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// The folder holds no weights.
    #[error("{dir}: found neither model.safetensors nor model.safetensors.index.json")]
    NoWeights {
        /// The folder.
        dir: PathBuf,
    },
    /// A file is larger than anything sensible.
    #[error("{path}: {what} of {found}, expected at most {limit}")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// What was counted, with its unit.
        what: &'static str,
        /// How much there is.
        found: u64,
        /// How much is allowed.
        limit: u64,
    },
    /// The file is not what its name says.
    #[error("{path}: {found}, expected {expected}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What was found.
        found: String,
        /// What was expected in its place.
        expected: String,
    },
    /// Two shards hold a tensor of the same name.
    #[error("tensor {tensor} is in {first} and again in {second}, expected it once")]
    Duplicate {
        /// The tensor.
        tensor: String,
        /// The shard that was read first.
        first: PathBuf,
        /// The shard that repeats it.
        second: PathBuf,
    },
    /// The index says where a tensor is, and it is not there.
    #[error("{path}: tensor {tensor} is not in it, although {index} says so")]
    NotInShard {
        /// The shard.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The index file.
        index: PathBuf,
    },
    /// The model needs a tensor that no shard has.
    #[error("{dir}: no tensor {tensor} (expected shape {expected:?}) among {tensors} tensors")]
    MissingTensor {
        /// The folder.
        dir: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shape that the config asks for.
        expected: Vec<usize>,
        /// How many tensors the checkpoint has.
        tensors: usize,
    },
    /// The tensor's shape is not the one that the config asks for.
    #[error("{path}: tensor {tensor} has shape {found:?}, expected {expected:?}")]
    Shape {
        /// The shard.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape in the file.
        found: Vec<usize>,
        /// The shape that the config asks for.
        expected: Vec<usize>,
    },
    /// The tensor's elements are of a type that is not a weight's.
    #[error("{path}: tensor {tensor} is {found}, expected {expected}")]
    Dtype {
        /// The shard.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type in the file.
        found: String,
        /// The types that would do.
        expected: &'static str,
    },
    /// A part that reaches past the tensor it is a part of.
    #[error("tensor {tensor}: a part up to element {last:?}, expected less than {elements}")]
    Part {
        /// The tensor.
        tensor: String,
        /// Index of the part's last element; `None` where it overflows.
        last: Option<usize>,
        /// Elements of the tensor.
        elements: usize,
    },
    /// A weight is NaN or infinite, or becomes infinite when it is rounded to BF16.
    #[error("{path}: tensor {tensor} has {found} at element {element}, expected a finite number{within}")]
    NotFinite {
        /// The shard.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Index of the element in the flattened tensor.
        element: usize,
        /// The value.
        found: f32,
        /// `" that BF16 can hold"`, or nothing.
        within: &'static str,
    },
    /// A caller asked for rows that the tensor does not have, or gave a buffer of another size.
    #[error(
        "tensor {tensor}: rows {start}..{end} into {buffer} elements, expected rows within 0..{rows} of {cols} elements"
    )]
    Rows {
        /// The tensor.
        tensor: String,
        /// First row asked for.
        start: usize,
        /// Row after the last one asked for.
        end: usize,
        /// Elements in the caller's buffer.
        buffer: usize,
        /// Rows of the tensor.
        rows: usize,
        /// Elements in a row.
        cols: usize,
    },
}

impl CheckpointError {
    /// An [`CheckpointError::Io`] for `map_err`.
    pub(super) fn io(action: &'static str, path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
