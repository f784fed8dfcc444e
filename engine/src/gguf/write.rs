//! The file format: GGUF version 3, little-endian.
//!
//! Magic, version, number of tensors, number of keys; the keys; for each tensor its name, dimensions, type and offset; then,
//! from the next multiple of [`ALIGNMENT`] on, the tensors' bytes, each starting at such a multiple.

use std::io::{self, Write};

use assay_kernels::layout::GROUP_COLS;
use half::bf16;

use super::error::GgufError;
use crate::checkpoint::TensorView;
use crate::expert_cache::QuantizeMethod;
use crate::expert_cache::quantize::quantize_group;

const MAGIC: &[u8; 4] = b"GGUF";
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
}

impl GgufType {
    /// ggml's number for it.
    fn code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::Bf16 => 30,
        }
    }

    /// Bytes of one element.
    fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
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
    /// Tensors of the checkpoint, one after another.
    pub(super) parts: Vec<TensorView<'a>>,
    /// Written as the values that INT4 leaves of the weights.
    pub(super) quantize: Option<QuantizeMethod>,
}

impl Tensor<'_> {
    pub(super) fn bytes(&self) -> u64 {
        // Every part was checked against its file's size, so the sum cannot overflow in 64 bits.
        self.parts.iter().map(|part| part.elements() as u64 * self.dtype.bytes()).sum()
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

/// One tensor's bytes and the padding after them. `progress` is called with the number of bytes each time some are written.
pub(super) fn data(
    tensor: &Tensor<'_>,
    out: &mut impl Write,
    io_error: impl Fn(io::Error) -> GgufError,
    progress: &mut dyn FnMut(u64) -> Result<(), GgufError>,
) -> Result<(), GgufError> {
    let (mut wide, mut narrow) = (Vec::<f32>::new(), Vec::<bf16>::new());
    for part in &tensor.parts {
        let step = (BLOCK_ELEMENTS / part.cols().max(1)).max(1);
        for first in (0..part.rows()).step_by(step) {
            let rows = first..part.rows().min(first + step);
            let elements = rows.len() * part.cols();
            let bytes = match tensor.dtype {
                GgufType::F32 => {
                    wide.resize(elements, 0.0);
                    part.rows_f32(rows, &mut wide)?;
                    if let Some(method) = tensor.quantize {
                        wide.chunks_mut(part.cols().max(1)).for_each(|row| round_trip(method, row));
                    }
                    wide.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()
                }
                GgufType::Bf16 => {
                    narrow.resize(elements, bf16::ZERO);
                    part.rows_bf16(rows, &mut narrow)?;
                    narrow.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()
                }
            };
            out.write_all(&bytes).map_err(&io_error)?;
            progress(bytes.len() as u64)?;
        }
    }
    let bytes = tensor.bytes();
    let padding = bytes.next_multiple_of(ALIGNMENT) - bytes;
    out.write_all(&[0u8; ALIGNMENT as usize][..padding as usize]).map_err(&io_error)
}

/// Replaces a row's weights by what INT4 leaves of them: `q * scale`, which f32 holds exactly.
fn round_trip(method: QuantizeMethod, row: &mut [f32]) {
    let mut quantised = [0i8; GROUP_COLS];
    for group in row.chunks_mut(GROUP_COLS) {
        let q = &mut quantised[..group.len()];
        let scale = quantize_group(method, group, q).scale.to_f32();
        group.iter_mut().zip(q).for_each(|(value, q)| *value = f32::from(*q) * scale);
    }
}

fn write_string(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}
