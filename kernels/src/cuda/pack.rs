//! Launchers of `cu/pack.cu`: activations as tensor cores read them, and the plan of a grouped GEMM.

use super::launch::{Grid, Stream, arguments, size};
use super::module::Function;
use super::{Cuda, CudaError, DeviceSlice};
use crate::contract::GROUP;
use crate::error::{KernelError, expect_len, rows_of};

/// Rows in one block of an image.
const BLOCK_ROWS: usize = 8;

/// Bytes of one block's group of columns.
const BLOCK_BYTES: usize = BLOCK_ROWS * GROUP * 2;

/// Rows of an image that one thread block of a GEMM takes.
pub(super) const TILE_TOKENS: usize = 128;

/// Most slots of a tile where experts have few.
pub(super) const SHORT_TILE: usize = 32;

/// Words of a plan before its tiles, and words of a tile.
const PLAN_HEADER: usize = 4;
const PLAN_TILE: usize = 4;

const THREADS: u32 = 256;

/// Bytes of the image of `rows` rows of `cols` columns, in whole panels of 128 rows; `None` where a size is 0 or overflows.
pub fn image_bytes(rows: usize, cols: usize) -> Option<usize> {
    blocks_bytes(image_rows(rows) / BLOCK_ROWS, cols)
}

/// Rows for which the image of `rows` rows has room.
pub(super) fn image_rows(rows: usize) -> usize {
    rows.div_ceil(TILE_TOKENS).saturating_mul(TILE_TOKENS)
}

/// Bytes that hold the image of `slots` rows of `cols` columns however they are spread over the experts, each of which
/// starts a block of 8 rows; `None` where a size is 0 or overflows.
pub fn slot_image_bytes(slots: usize, num_experts: usize, cols: usize) -> Option<usize> {
    let padding = slots.min(num_experts).checked_mul(BLOCK_ROWS - 1)?;
    blocks_bytes(slots.checked_add(padding)? / BLOCK_ROWS, cols)
}

/// Words of the plan of a grouped GEMM; `None` where a size is 0 or overflows.
pub fn plan_words(slots: usize, num_experts: usize) -> Option<usize> {
    tile_bound(slots, num_experts)?.checked_mul(PLAN_TILE)?.checked_add(PLAN_HEADER)
}

/// Slots of an expert, on average, that are few.
const FEW: usize = 16;

/// Most slots of a tile of the plan. Where experts have few on average, narrow tiles leave room for more blocks on a multiprocessor, which
/// then read the experts' weights as fast as the memory gives them.
fn tile_slots(slots: usize, num_experts: usize) -> usize {
    if slots / FEW <= num_experts { SHORT_TILE } else { TILE_TOKENS }
}

/// The largest number of tiles of one expert's slots that `slots`, or fewer, can need: memory for a chunk must do for a shorter one.
fn tile_bound(slots: usize, num_experts: usize) -> Option<usize> {
    let most_short = num_experts.checked_mul(FEW)?.checked_add(FEW - 1)?;
    Some(tiles(slots, num_experts)?.max(tiles(slots.min(most_short), num_experts)?))
}

fn tiles(slots: usize, num_experts: usize) -> Option<usize> {
    let tile = tile_slots(slots, num_experts);
    let padding = slots.min(num_experts).checked_mul(tile - 1)?;
    let tiles = slots.checked_add(padding)? / tile;
    (tiles > 0).then_some(tiles)
}

fn blocks_bytes(blocks: usize, cols: usize) -> Option<usize> {
    let bytes = blocks.checked_mul(cols.div_ceil(GROUP))?.checked_mul(BLOCK_BYTES)?;
    (bytes > 0).then_some(bytes)
}

/// BF16 activations `[rows, cols]` in the order in which tensor cores take them: panels of up to 128 rows, each
/// `[group of 128 columns][block of 8 rows][16 chunks][8 rows][8 positions]`, see `cu/tensor.cuh`.
#[derive(Debug, Clone, Copy)]
pub struct DeviceImage {
    rows: usize,
    cols: usize,
    bytes: DeviceSlice<u8>,
}

impl DeviceImage {
    /// A view of `bytes`, [`image_bytes`] or [`slot_image_bytes`] long or any other whole number of blocks. The address must
    /// be a multiple of 16.
    ///
    /// # Errors
    /// `Shape` where the bytes are no whole number of blocks, `Geometry` where the address is not aligned.
    pub fn new(cols: usize, bytes: DeviceSlice<u8>) -> Result<Self, KernelError> {
        const KERNEL: &str = "image";
        aligned(KERNEL, "the address of an image", bytes.address())?;
        let width = blocks_bytes(1, cols).unwrap_or(0);
        let blocks = rows_of(KERNEL, "bytes [blocks, groups, 2048]", bytes.len(), width)?;
        Ok(Self { rows: blocks * BLOCK_ROWS, cols, bytes })
    }
    /// Rows that it can hold.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// First byte.
    pub fn address(&self) -> u64 {
        self.bytes.address()
    }

    /// Refuses an image that has other columns or fewer rows.
    pub(super) fn check(&self, kernel: &'static str, rows: usize, cols: usize) -> Result<(), KernelError> {
        expect_len(kernel, "columns of the image", self.cols, cols)?;
        if self.rows < rows {
            return Err(KernelError::Shape { kernel, what: "rows of the image", expected: rows, found: self.rows });
        }
        Ok(())
    }
}

/// Which slots each thread block of a grouped GEMM takes, made on the device from the experts' offsets.
#[derive(Debug, Clone, Copy)]
pub struct DevicePlan {
    slots: usize,
    num_experts: usize,
    words: DeviceSlice<u32>,
}

impl DevicePlan {
    /// A view of `words`, which must be exactly [`plan_words`] long.
    ///
    /// # Errors
    /// `TooLarge` where the sizes have no plan, `Shape` where the length is another.
    pub fn new(slots: usize, num_experts: usize, words: DeviceSlice<u32>) -> Result<Self, KernelError> {
        const KERNEL: &str = "plan";
        let expected = plan_words(slots, num_experts)
            .filter(|_| size(KERNEL, slots).is_ok() && size(KERNEL, num_experts).is_ok())
            .ok_or(KernelError::TooLarge { kernel: KERNEL, what: "a plan of no slots or of more than 2^31 - 1" })?;
        expect_len(KERNEL, "words", words.len(), expected)?;
        Ok(Self { slots, num_experts, words })
    }
    /// Slots, tokens times experts a token.
    pub fn slots(&self) -> usize {
        self.slots
    }
    /// Experts of the layer.
    pub fn num_experts(&self) -> usize {
        self.num_experts
    }
    pub(super) fn address(&self) -> u64 {
        self.words.address()
    }
    /// Whether no tile has more than [`SHORT_TILE`] slots.
    pub(super) fn is_short(&self) -> bool {
        tile_slots(self.slots, self.num_experts) == SHORT_TILE
    }
    /// Tiles that the plan may have.
    pub(super) fn tiles(&self) -> usize {
        (self.words.len() - PLAN_HEADER) / PLAN_TILE
    }
    /// Rows that an image of all slots may need.
    pub(super) fn image_rows(&self) -> usize {
        (self.slots + self.slots.min(self.num_experts) * (BLOCK_ROWS - 1)) / BLOCK_ROWS * BLOCK_ROWS
    }
}

impl Cuda {
    /// Rounds rows of `x` `[rows, cols]` to BF16 (nearest, ties to even) and lays them out as `image`.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn pack_rows(&self, stream: Stream, x: DeviceSlice<f32>, image: DeviceImage) -> Result<(), CudaError> {
        const KERNEL: &str = "pack_rows";
        let rows = rows_of(KERNEL, "x [rows, cols]", x.len(), image.cols)?;
        image.check(KERNEL, image_rows(rows), image.cols)?;
        let grid = tile_grid(KERNEL, image.cols.div_ceil(GROUP), rows.div_ceil(TILE_TOKENS), THREADS)?;
        let (x, rows, cols, to) = (x.address(), rows as u64, image.cols as u64, image.address());
        // SAFETY: argument types are those of the kernel; the image holds all rows.
        unsafe {
            let mut arguments = arguments![x, rows, cols, to];
            self.launch(stream, Function("pack", KERNEL), grid, &mut arguments)
        }
    }

    /// Makes the plan of a grouped GEMM from `offsets` `[num_experts + 1]`, those of [`crate::twin::permute`]. Experts without
    /// slots have no part in it.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn grouped_plan(&self, stream: Stream, offsets: DeviceSlice<u32>, plan: DevicePlan) -> Result<(), CudaError> {
        const KERNEL: &str = "grouped_plan";
        expect_len(KERNEL, "offsets [num_experts + 1]", offsets.len(), plan.num_experts + 1)?;
        let (offsets, experts, to) = (offsets.address(), size(KERNEL, plan.num_experts)?, plan.address());
        let tile_slots = tile_slots(plan.slots, plan.num_experts) as u32;
        // SAFETY: as in `pack_rows`; offsets end at the plan's slots, which bounds its tiles.
        unsafe {
            let mut arguments = arguments![offsets, experts, tile_slots, to];
            self.launch(stream, Function("pack", KERNEL), Grid::new((1, 1, 1), THREADS), &mut arguments)
        }
    }

    /// As [`Cuda::pack_rows`] for a grouped GEMM: slot s takes row `s / top_k` of `x` `[tokens, cols]`, and slots lie in the plan's
    /// order, each expert's from a new block of 8 rows on. `order` is `[slots]`, that of [`crate::twin::permute`].
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn pack_slots(
        &self,
        stream: Stream,
        x: DeviceSlice<f32>,
        top_k: usize,
        order: DeviceSlice<u32>,
        plan: DevicePlan,
        image: DeviceImage,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "pack_slots";
        let tokens = rows_of(KERNEL, "slots [tokens, top_k]", plan.slots, top_k)?;
        expect_len(KERNEL, "order [slots]", order.len(), plan.slots)?;
        expect_len(KERNEL, "rows of x [tokens, cols]", rows_of(KERNEL, "x", x.len(), image.cols)?, tokens)?;
        image.check(KERNEL, plan.image_rows(), image.cols)?;
        let grid = tile_grid(KERNEL, image.cols.div_ceil(GROUP), plan.tiles(), THREADS)?;
        let (x, cols, top_k, order) = (x.address(), image.cols as u64, size(KERNEL, top_k)?, order.address());
        let (plan, to) = (plan.address(), image.address());
        // SAFETY: as in `pack_rows`; the plan's slots are those of `order`.
        unsafe {
            let mut arguments = arguments![x, cols, top_k, order, plan, to];
            self.launch(stream, Function("pack", KERNEL), grid, &mut arguments)
        }
    }
}

/// A grid whose second dimension counts tiles.
pub(super) fn tile_grid(kernel: &'static str, x: usize, tiles: usize, threads: u32) -> Result<Grid, KernelError> {
    const MOST: usize = 65_535;
    if tiles > MOST {
        return Err(KernelError::TooLarge { kernel, what: "a grid of more than 65,535 tiles" });
    }
    Ok(Grid::new((size(kernel, x)?, tiles as u32, 1), threads))
}

/// Refuses an address that 16-byte accesses cannot use.
pub(super) fn aligned(kernel: &'static str, what: &'static str, address: u64) -> Result<(), KernelError> {
    if address.is_multiple_of(16) {
        return Ok(());
    }
    Err(KernelError::Geometry { kernel, what, expected: "a multiple of 16", found: address as usize })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_the_worst_spread_of_slots_over_experts() {
        for num_experts in [1usize, 2, 5] {
            for slots in 1usize..300 {
                // All experts but one have one slot; the last has the rest: most padding for the slots that there are.
                let small = num_experts.min(slots) - 1;
                let rest = slots - small;
                let blocks = small + rest.div_ceil(BLOCK_ROWS);
                let tiles = small + rest.div_ceil(tile_slots(slots, num_experts));
                assert!(slot_image_bytes(slots, num_experts, 1).unwrap_or(0) >= blocks * BLOCK_BYTES);
                assert!(tile_bound(slots, num_experts).unwrap_or(0) >= tiles);
            }
        }
        for num_experts in [1usize, 8, 12, 60, 128] {
            let words = |slots| plan_words(slots, num_experts).unwrap_or(0);
            assert!((1..40 * num_experts).all(|slots| words(slots) <= words(slots + 1)), "{num_experts}");
        }
        assert_eq!(image_bytes(129, 129), Some(32 * 2 * BLOCK_BYTES));
        assert_eq!((image_bytes(0, 1), plan_words(0, 3), plan_words(1, 3)), (None, None, Some(8)));
    }
}
