//! Memory that a device's kernels use while they run: partial results, operands in another form.

use super::Sizes;
use crate::device::{Arithmetic, DeviceKind};

/// Most bytes that one kernel of a pass over `tokens` tokens needs, in a context of at most `context_tokens`.
pub(super) fn scratch_bytes(
    device: DeviceKind,
    _arithmetic: Arithmetic,
    _sizes: &Sizes,
    _context_tokens: usize,
    _tokens: usize,
) -> usize {
    match device {
        DeviceKind::Host => 0,
        DeviceKind::Cuda => 0,
    }
}
