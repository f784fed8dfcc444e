//! How a weight matrix lies in memory: one layout for the expert cache, the host device and CUDA.
//!
//! A matrix is `[rows, cols]` = `[outputs, inputs]`, as in a Hugging Face checkpoint. Rows are cut into tiles of
//! [`TILE_ROWS`] (the last tile is padded), so that a vector register or a warp holds one column of a tile.
//!
//! - **BF16**: `[row tile][col][16 rows]` of bf16. Columns are not padded; rows past the end are `+0.0`.
//! - **INT4**: `[row tile][group of 128 cols][run of 32: 4][16 rows][16 bytes]`, a byte holding two neighbouring columns, the lower in
//!   its low nibble, a nibble holding `q + 8` for `q` in −7..=7 (so 0 never occurs). Padding in rows and columns is `q = 0`. The scale plane
//!   `[row tile][group][16 rows]` of bf16 follows; scales of padding rows are `+0.0`.
//! - **F32**: `[rows][cols]`, for vectors and tables only.
//!
//! Multi-byte values are little-endian.

use half::bf16;

/// Rows in one tile.
pub const TILE_ROWS: usize = 16;

/// Version of the INT4 and BF16 tile layouts, written into every file that holds them.
pub const LAYOUT_VERSION: u32 = 1;

/// How the elements of a matrix are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatrixFormat {
    /// Brain floating point, 16 bits an element.
    Bf16,
    /// Symmetric 4-bit integers, one BF16 scale for each row and group of 128 columns.
    Int4,
}
