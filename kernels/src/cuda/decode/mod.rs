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

/// Tiles that a block copies ahead at most; `MAX_STAGES` of `cu/decode.cuh`.
const MAX_STAGES: usize = 8;

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

/// What a block needs for its products with `count` tiles of `groups` groups (`Tiles` of `cu/decode.cuh`) besides `base`: how many tiles
/// are copied ahead, as many as fit, in steps of `step`; and the bytes of shared memory in all. Where there are more tiles than places, the kernel
/// sums half of the places in a batch, which are whole steps too. `None` where that does not fit.
fn stages(base: Carve, groups: usize, count: usize, step: usize, limit: u32) -> Option<(u32, u32)> {
    let base = base.take::<[f32; 2]>(count.min(MAX_STAGES) * groups * TILE_ROWS).take::<u64>(MAX_STAGES);
    (1..=count.min(MAX_STAGES) / step)
        .rev()
        .map(|steps| steps * step)
        .filter(|stages| count <= *stages || (stages / 2).is_multiple_of(step))
        .find_map(|stages| Some((stages as u32, base.take::<u8>(stages * groups * STAGED_GROUP).within(limit)?)))
}

/// Threads of a block whose warps share `groups` groups; at least as many as there are rows of `MAX_STAGES` tiles.
fn threads(groups: usize) -> u32 {
    32 * groups.clamp(MAX_STAGES * TILE_ROWS / 32, WARPS) as u32
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
    fn a_batch_never_parts_gate_and_up() {
        // 23 groups, 12 tiles: six places would fit, and batches of three.
        let groups = 23;
        let base = Carve::default().take::<f32>(groups * GROUP_WORDS);
        let bytes = |stages: usize, count: usize| {
            base.take::<[f32; 2]>(count.min(MAX_STAGES) * groups * TILE_ROWS)
                .take::<u64>(MAX_STAGES)
                .take::<u8>(stages * groups * STAGED_GROUP)
                .0 as u32
        };
        let places = |count, step, limit| stages(base, groups, count, step, limit).map(|(stages, _)| stages);
        assert_eq!(places(12, 2, bytes(8, 12)), Some(8));
        assert_eq!([places(12, 2, bytes(8, 12) - 1), places(12, 1, bytes(8, 12) - 1)], [Some(4), Some(7)]);
        assert_eq!(places(6, 2, bytes(6, 6)), Some(6));
        assert_eq!([places(12, 2, bytes(2, 12)), places(2, 2, bytes(2, 2))], [None, Some(2)]);
    }
}
