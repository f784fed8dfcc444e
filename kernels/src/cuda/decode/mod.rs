//! Launchers of the fused kernels of decode (`cu/decode_*.cu`): for one token, what several kernels do, to the bit, in one launch.
//!
//! Each is a composition of twins, which its documentation names. Each returns whether it has a form for its operands: `false` means that
//! nothing was launched, and that the kernels it is composed of are to be launched apart. The rule depends on shapes, formats and
//! the device's shared memory alone.
//!
//! A fused kernel starts while the one before it still runs and waits for it inside. Tickets lie in the modules: one stream at a time.

mod attention;
mod experts;
mod linear;
mod router;

pub use attention::{AttendForm, HeadNorms, Rope};
pub use experts::RoutedExperts;
pub use linear::Projected;
pub use router::route_workspace_bytes;

use super::DeviceSlice;
use crate::contract::{GROUP, RUN, RUNS};
use crate::layout::TILE_ROWS;

/// Floats of a run of activations in shared memory; `RUN_WORDS` of `cu/dot.cuh`.
const RUN_WORDS: usize = RUN + 4;

/// Bytes of a group of an INT4 tile and its scales; `STAGED_GROUP` of `cu/decode.cuh`.
const STAGED_GROUP: usize = 16 * GROUP / 2 + 16 * 2;

/// Pairs of tiles that a block copies ahead at most; `MAX_DEPTH` of `cu/decode.cuh`.
const MAX_DEPTH: usize = 5;

/// Pairs of tiles whose sums meet at a barrier at most; `BATCH` of `cu/decode.cuh`.
const BATCH: usize = 4;

/// Warps of a block at most.
const WARPS: usize = 16;

/// Floats of a group of activations in padded runs.
const GROUP_WORDS: usize = RUNS * RUN_WORDS;

/// Dynamic shared memory, as `Carve` of `cu/decode.cuh` divides it.
#[derive(Debug, Clone, Copy, Default)]
struct Carve(usize);

impl Carve {
    fn take<T>(self, count: usize) -> Self {
        let bytes = count.saturating_mul(size_of::<T>()).checked_next_multiple_of(16).unwrap_or(usize::MAX);
        Self(self.0.saturating_add(bytes))
    }

    /// As a launch takes it, where a block may have so much.
    fn within(self, limit: u32) -> Option<u32> {
        u32::try_from(self.0).ok().filter(|&bytes| bytes <= limit)
    }
}

/// What a block needs for its products with `pairs` pairs of tiles of `groups` groups (`Tiles` of `cu/decode.cuh`) besides `base`: how many
/// pairs are copied ahead, as many as fit; and the bytes of shared memory in all. `None` where not one fits.
fn depth(base: Carve, groups: usize, pairs: usize, limit: u32) -> Option<(u32, u32)> {
    let batches = if pairs > BATCH { 2 } else { 1 };
    let base = base.take::<[f32; 2]>(batches * pairs.min(BATCH) * 2 * groups * TILE_ROWS);
    let most = u32::try_from(pairs.min(MAX_DEPTH)).ok()?;
    (1..=most)
        .rev()
        .find_map(|depth| Some((depth, base.take::<u8>(depth as usize * 2 * groups * STAGED_GROUP).within(limit)?)))
}

/// Threads of a block whose warps share `groups` groups; at least as many as there are rows in a batch of tiles.
fn threads(groups: usize) -> u32 {
    32 * groups.clamp(BATCH * 2 * TILE_ROWS / 32, WARPS) as u32
}

/// The kernel for whole groups of columns, or the one for a last group that is short.
fn of_columns(cols: usize, whole: &'static str, part: &'static str) -> &'static str {
    if cols.is_multiple_of(GROUP) { whole } else { part }
}

/// Whether copies of 16 bytes reach all of a vector.
fn in_sixteens(x: DeviceSlice<f32>) -> bool {
    x.address().is_multiple_of(16) && x.len().is_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_pairs_as_fit() {
        let groups = 23;
        let base = Carve::default().take::<f32>(groups * GROUP_WORDS);
        let bytes = |depth: usize, tiles: usize| {
            base.take::<[f32; 2]>(tiles * groups * TILE_ROWS).take::<u8>(2 * depth * groups * STAGED_GROUP).0 as u32
        };
        assert_eq!(depth(base, groups, 3, bytes(3, 6)), Some((3, bytes(3, 6))));
        assert_eq!(depth(base, groups, 3, bytes(3, 6) - 1), Some((2, bytes(2, 6))));
        // Sums of two batches of four pairs.
        assert_eq!(depth(base, groups, 36, u32::MAX), Some((5, bytes(5, 16))));
        assert_eq!(depth(base, groups, 36, bytes(1, 16) - 1), None);
    }
}
