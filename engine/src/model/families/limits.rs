//! Limits on sizes, some ten times those of the largest public models, so that no product of them can overflow and no
//! config can make its reader allocate without end.

/// Decoder layers.
pub(super) const LAYERS: usize = 1000;
/// Width of the residual stream, and of a feed-forward network.
pub(super) const WIDTH: usize = 1 << 20;
/// Query heads.
pub(super) const HEADS: usize = 1 << 12;
/// Width of a head.
pub(super) const HEAD_DIM: usize = 1 << 12;
/// Rows of the embedding.
pub(super) const VOCAB: usize = 1 << 24;
/// Experts in one layer.
pub(super) const EXPERTS: usize = 1 << 14;
/// Experts in all layers.
pub(super) const EXPERTS_IN_ALL: usize = 1 << 18;
