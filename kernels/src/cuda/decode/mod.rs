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

/// Floats of a run of activations in shared memory; `RUN_WORDS` of `cu/dot.cuh`.
const RUN_WORDS: usize = RUN + 4;

/// Bytes of a group of an INT4 tile; `GROUP_BYTES` of `cu/decode.cuh`.
const GROUP_BYTES: usize = 16 * GROUP / 2;

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

/// Whether copies of 16 bytes reach all of a vector.
fn in_sixteens(x: DeviceSlice<f32>) -> bool {
    x.address().is_multiple_of(16) && x.len().is_multiple_of(4)
}
