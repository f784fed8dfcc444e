//! Where the experts of a cache come from: a checkpoint, or anything else that can pack one expert at a time.

use std::ops::Range;

use super::encode::{EncodeError, Encoding, SquaredError, encode_rows};
use super::error::CacheError;
use super::identity::LayerGeometry;
use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::model::spec::{LinearSource, MlpSpec};

/// Packs experts, several at a time.
pub trait ExpertSource: Sync {
    /// Refuses a layer's experts where they cannot be had, before memory for the layer is taken.
    ///
    /// # Errors
    /// A tensor that is missing or not of the model's shape.
    fn check(&self, experts: &[MlpSpec]) -> Result<(), CacheError>;

    /// Packs one expert into `packed`: zeros, as many as its layout has bytes. How far it is from its source.
    ///
    /// # Errors
    /// Weights that cannot be read or packed.
    fn pack(&self, expert: &ExpertPlace<'_>, packed: &mut [u8]) -> Result<SquaredError, CacheError>;

    /// After a layer has been written: what was read for it may go.
    ///
    /// # Errors
    /// The system's.
    fn layer_done(&self) -> Result<(), CacheError>;
}

/// One expert that is to be packed.
#[derive(Debug, Clone, Copy)]
pub struct ExpertPlace<'a> {
    /// The model's layer and the shape of its experts.
    pub geometry: &'a LayerGeometry,
    /// Index in the layer.
    pub expert: usize,
    /// Its tensors.
    pub spec: &'a MlpSpec,
    /// How it is stored.
    pub encoding: Encoding,
}

impl<'a> ExpertPlace<'a> {
    /// Gate, up and down: the tensor, its rows and columns, and where it lies in the expert's bytes.
    pub fn matrices(&self) -> [(&'a LinearSource, usize, usize, Range<usize>); 3] {
        let layout = &self.geometry.expert;
        let (hidden, intermediate) = (layout.hidden_size, layout.moe_intermediate_size);
        [
            (&self.spec.gate_proj, intermediate, hidden, layout.gate()),
            (&self.spec.up_proj, intermediate, hidden, layout.up()),
            (&self.spec.down_proj, hidden, intermediate, layout.down()),
        ]
    }
}

/// Writes an expert's bias where its layout has it.
pub(crate) fn write_bias(values: &[f32], out: &mut [u8]) {
    for (out, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
        *out = value.to_le_bytes();
    }
}

/// The tensors that a checkpoint has.
pub(super) struct CheckpointExperts<'a>(pub(super) &'a Checkpoint);

/// An error while rows are read or packed, before the tensor's name is added.
enum RowsError {
    Checkpoint(CheckpointError),
    Encode(EncodeError),
}

impl From<EncodeError> for RowsError {
    fn from(error: EncodeError) -> Self {
        Self::Encode(error)
    }
}

impl ExpertSource for CheckpointExperts<'_> {
    fn check(&self, experts: &[MlpSpec]) -> Result<(), CacheError> {
        for expert in experts {
            for linear in [&expert.gate_proj, &expert.up_proj, &expert.down_proj] {
                self.0.tensor(&linear.weight)?;
                linear.bias.as_ref().map(|bias| self.0.tensor(bias)).transpose()?;
            }
        }
        Ok(())
    }

    fn pack(&self, expert: &ExpertPlace<'_>, packed: &mut [u8]) -> Result<SquaredError, CacheError> {
        let mut error = SquaredError::default();
        for (linear, rows, cols, range) in expert.matrices() {
            error = error.and(self.matrix(expert.encoding, linear, rows, cols, &mut packed[range])?);
        }
        let biases = expert.geometry.expert.biases().into_iter().flatten();
        for ((linear, ..), range) in expert.matrices().into_iter().zip(biases) {
            // The geometry has seen to it that there is one for each.
            let Some(bias) = &linear.bias else { continue };
            write_bias(&self.0.tensor(bias)?.to_f32_vec()?, &mut packed[range]);
        }
        Ok(error)
    }

    fn layer_done(&self) -> Result<(), CacheError> {
        Ok(self.0.release()?)
    }
}

impl CheckpointExperts<'_> {
    fn matrix(
        &self,
        encoding: Encoding,
        source: &LinearSource,
        rows: usize,
        cols: usize,
        out: &mut [u8],
    ) -> Result<SquaredError, CacheError> {
        let view = self.0.tensor(&source.weight)?;
        let fill = |rows: Range<usize>, values: &mut [f32]| view.rows_f32(rows, values).map_err(RowsError::Checkpoint);
        encode_rows(encoding, rows, cols, fill, out).map_err(|error| match error {
            RowsError::Checkpoint(error) => error.into(),
            RowsError::Encode(source_error) => {
                CacheError::Encode { tensor: source.weight.name.clone(), source: source_error }
            }
        })
    }
}
