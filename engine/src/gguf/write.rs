//! The file format: GGUF version 3, little-endian.
//!
//! Magic, version, number of tensors, number of keys; the keys; for each tensor its name, dimensions, type and offset; then,
//! from the next multiple of [`ALIGNMENT`] on, the tensors' bytes, each starting at such a multiple.

use std::io::{self, Write};

use half::bf16;
use rayon::prelude::*;

use super::error::GgufError;
use super::part::{CachedLayer, CachedMatrix, Part};
use super::values::{Problem, Q4_0_BLOCK, Q4_0_BLOCK_BYTES, Rounding, encode};
use crate::checkpoint::TensorView;

/// How a GGUF file begins.
pub const MAGIC: &[u8; 4] = b"GGUF";
const VERSION: u32 = 3;
/// The format's default; a file with another would have to say so.
const ALIGNMENT: u64 = 32;
/// Elements that are converted at a time.
const BLOCK_ELEMENTS: usize = 1 << 20;

/// Types of tensors that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufType {
    /// IEEE binary32.
    F32,
    /// Brain floating point, 16 bits.
    Bf16,
    /// Blocks of 32 four-bit integers with an F16 scale each.
    Q4_0,
}

impl GgufType {
    /// ggml's number for it.
    fn code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::Bf16 => 30,
            Self::Q4_0 => 2,
        }
    }

    /// As ggml calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::Bf16 => "BF16",
            Self::Q4_0 => "Q4_0",
        }
    }

    /// Bytes of so many elements, whole blocks of them.
    fn bytes(self, elements: u64) -> u64 {
        match self {
            Self::F32 => elements * 4,
            Self::Bf16 => elements * 2,
            Self::Q4_0 => elements / Q4_0_BLOCK as u64 * Q4_0_BLOCK_BYTES as u64,
        }
    }
}

/// A value of a key.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    /// Of one kind.
    Array(Vec<Value>),
}

impl Value {
    /// GGUF's number for the kind.
    fn code(&self) -> u32 {
        match self {
            Self::U32(_) => 4,
            Self::I32(_) => 5,
            Self::F32(_) => 6,
            Self::Bool(_) => 7,
            Self::String(_) => 8,
            Self::Array(_) => 9,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::U32(value) => out.extend_from_slice(&value.to_le_bytes()),
            Self::I32(value) => out.extend_from_slice(&value.to_le_bytes()),
            Self::F32(value) => out.extend_from_slice(&value.to_le_bytes()),
            Self::Bool(value) => out.push(u8::from(*value)),
            Self::String(value) => write_string(value, out),
            Self::Array(values) => {
                // An empty array has no kind; it is written as one of strings.
                let code = values.first().map_or(8, Value::code);
                out.extend_from_slice(&code.to_le_bytes());
                out.extend_from_slice(&(values.len() as u64).to_le_bytes());
                values.iter().for_each(|value| value.write(out));
            }
        }
    }
}

/// A tensor of the file.
#[derive(Debug)]
pub(super) struct Tensor<'a> {
    pub(super) name: String,
    /// The dimension whose elements are adjacent first: the reverse of a checkpoint's shape.
    pub(super) dims: Vec<u64>,
    pub(super) dtype: GgufType,
    /// Its values, one part after another.
    pub(super) parts: Vec<Part<'a>>,
    /// What becomes of them.
    pub(super) rounding: Rounding,
}

impl Tensor<'_> {
    pub(super) fn bytes(&self) -> u64 {
        // Every part was checked against its file's size, so the sum cannot overflow in 64 bits.
        self.parts.iter().map(|part| self.dtype.bytes(part.elements() as u64)).sum()
    }
}

/// Everything in front of the tensors' bytes, padded to where they start.
pub(super) fn header(keys: &[(String, Value)], tensors: &[Tensor<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
    out.extend_from_slice(&(keys.len() as u64).to_le_bytes());
    for (key, value) in keys {
        write_string(key, &mut out);
        out.extend_from_slice(&value.code().to_le_bytes());
        value.write(&mut out);
    }
    let mut offset = 0u64;
    for tensor in tensors {
        write_string(&tensor.name, &mut out);
        out.extend_from_slice(&(tensor.dims.len() as u32).to_le_bytes());
        tensor.dims.iter().for_each(|dim| out.extend_from_slice(&dim.to_le_bytes()));
        out.extend_from_slice(&tensor.dtype.code().to_le_bytes());
        out.extend_from_slice(&offset.to_le_bytes());
        offset += tensor.bytes().next_multiple_of(ALIGNMENT);
    }
    let padded = (out.len() as u64).next_multiple_of(ALIGNMENT);
    out.resize(padded as usize, 0);
    out
}

/// Takes the bytes of a tensor as they are made.
type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), GgufError>;

/// One tensor's bytes and the padding after them. `layer` holds the experts of the layer that was read last. `progress` is called
/// with the number of bytes each time some are written.
pub(super) fn data(
    tensor: &Tensor<'_>,
    layer: &mut CachedLayer<'_>,
    out: &mut impl Write,
    io_error: impl Fn(io::Error) -> GgufError,
    progress: &mut dyn FnMut(u64) -> Result<(), GgufError>,
) -> Result<(), GgufError> {
    let mut sink = |bytes: &[u8]| {
        out.write_all(bytes).map_err(&io_error)?;
        progress(bytes.len() as u64)
    };
    let mut cached = Vec::new();
    for part in &tensor.parts {
        match part {
            Part::View(view) => view_data(tensor, view, &mut sink)?,
            Part::Cached(matrix) => cached.push(*matrix),
        }
    }
    cached_data(tensor, &cached, layer, &mut sink)?;
    let bytes = tensor.bytes();
    let padding = bytes.next_multiple_of(ALIGNMENT) - bytes;
    out.write_all(&[0u8; ALIGNMENT as usize][..padding as usize]).map_err(&io_error)
}

/// A tensor of the checkpoint, some rows at a time.
fn view_data(tensor: &Tensor<'_>, view: &TensorView<'_>, sink: Sink<'_>) -> Result<(), GgufError> {
    let (mut wide, mut narrow, mut bytes) = (Vec::<f32>::new(), Vec::<bf16>::new(), Vec::new());
    let cols = view.cols();
    let step = (BLOCK_ELEMENTS / cols.max(1)).max(1);
    for first in (0..view.rows()).step_by(step) {
        let rows = first..view.rows().min(first + step);
        let elements = rows.len() * cols;
        bytes.clear();
        if (tensor.dtype, tensor.rounding) == (GgufType::Bf16, Rounding::None) {
            narrow.resize(elements, bf16::ZERO);
            view.rows_bf16(rows, &mut narrow)?;
            bytes.extend(narrow.iter().flat_map(|value| value.to_le_bytes()));
        } else {
            wide.resize(elements, 0.0);
            view.rows_f32(rows, &mut wide)?;
            encode(tensor.dtype, tensor.rounding, cols, &mut wide, &mut bytes)
                .map_err(|problem| in_tensor(tensor, problem))?;
        }
        sink(&bytes)?;
    }
    Ok(())
}

/// Matrices of a layer's experts, several at a time.
fn cached_data(
    tensor: &Tensor<'_>,
    matrices: &[CachedMatrix],
    layer: &mut CachedLayer<'_>,
    sink: Sink<'_>,
) -> Result<(), GgufError> {
    for matrices in matrices.chunks(rayon::current_num_threads().max(1)) {
        let Some(first) = matrices.first() else { continue };
        let experts = layer.of(first.layer)?;
        let made: Result<Vec<Vec<u8>>, Problem> = matrices
            .par_iter()
            .map(|matrix| {
                let mut values =
                    matrix.values(experts).map_err(|error| (error.to_string(), "a matrix of the cache"))?;
                let mut bytes = Vec::new();
                encode(tensor.dtype, tensor.rounding, matrix.cols(), &mut values, &mut bytes)?;
                Ok(bytes)
            })
            .collect();
        for bytes in made.map_err(|problem| in_tensor(tensor, problem))? {
            sink(&bytes)?;
        }
    }
    Ok(())
}

fn in_tensor(tensor: &Tensor<'_>, (found, expected): Problem) -> GgufError {
    let (name, dtype) = (&tensor.name, tensor.dtype.name());
    GgufError::Values { tensor: name.clone(), found, expected: format!("{expected} ({dtype})") }
}

fn write_string(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}
