//! Where a tensor's values come from: the checkpoint's tensors, or experts that an expert cache holds.

use assay_kernels::layout::{ExpertLayout, LayoutError, MatrixFormat, unpack_bf16, unpack_int4, unpack_int8};

use super::error::GgufError;
use crate::checkpoint::TensorView;
use crate::expert_cache::ExpertCache;

/// One matrix of an expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Projection {
    Gate,
    Up,
    Down,
}

/// A part of a tensor; parts are written one after another.
#[derive(Debug)]
pub(super) enum Part<'a> {
    View(TensorView<'a>),
    Cached(CachedMatrix),
}

/// A matrix of an expert in a cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct CachedMatrix {
    /// Layer of the model.
    pub(super) layer: usize,
    pub(super) expert: usize,
    pub(super) projection: Projection,
    pub(super) layout: ExpertLayout,
}

impl Part<'_> {
    pub(super) fn elements(&self) -> usize {
        match self {
            Self::View(view) => view.elements(),
            Self::Cached(matrix) => matrix.rows() * matrix.cols(),
        }
    }
}

impl CachedMatrix {
    pub(super) fn rows(&self) -> usize {
        match self.projection {
            Projection::Gate | Projection::Up => self.layout.moe_intermediate_size,
            Projection::Down => self.layout.hidden_size,
        }
    }

    pub(super) fn cols(&self) -> usize {
        match self.projection {
            Projection::Gate | Projection::Up => self.layout.hidden_size,
            Projection::Down => self.layout.moe_intermediate_size,
        }
    }

    /// The values, row-major, out of the bytes of the layer's experts.
    pub(super) fn values(&self, layer: &[u8]) -> Result<Vec<f32>, LayoutError> {
        let range = match self.projection {
            Projection::Gate => self.layout.gate(),
            Projection::Up => self.layout.up(),
            Projection::Down => self.layout.down(),
        };
        let (rows, cols) = (self.rows(), self.cols());
        let start = self.expert * self.layout.bytes;
        // An empty slice is refused as one of the wrong length.
        let bytes = layer.get(start + range.start..start + range.end).unwrap_or(&[]);
        let mut values = vec![0f32; rows * cols];
        match self.layout.format {
            MatrixFormat::Bf16 => unpack_bf16(bytes, rows, cols, &mut values)?,
            MatrixFormat::Int4 => unpack_int4(bytes, rows, cols, &mut values)?,
            MatrixFormat::Int8 => unpack_int8(bytes, rows, cols, &mut values)?,
        }
        Ok(values)
    }
}

/// One layer of a cache in memory: its three tensors follow each other.
#[derive(Debug)]
pub(super) struct CachedLayer<'a> {
    cache: Option<&'a ExpertCache>,
    layer: Option<usize>,
    bytes: Vec<u8>,
}

impl<'a> CachedLayer<'a> {
    pub(super) fn new(cache: Option<&'a ExpertCache>) -> Self {
        Self { cache, layer: None, bytes: Vec::new() }
    }

    /// The bytes of a layer's experts, their hash checked.
    pub(super) fn of(&mut self, layer: usize) -> Result<&[u8], GgufError> {
        if self.layer != Some(layer)
            && let Some(cache) = self.cache
        {
            let bytes = cache.layers().iter().find(|record| record.layer == layer).map_or(0, |record| record.bytes());
            self.bytes.resize(bytes, 0);
            self.layer = None;
            cache.read_layer(layer, &mut self.bytes)?;
            self.layer = Some(layer);
        }
        Ok(&self.bytes)
    }
}
