//! Launcher of `cu/sample.cu`.

use super::launch::{Grid, Stream, arguments, size};
use super::module::Function;
use super::{Cuda, CudaError, DeviceSlice};
use crate::error::expect_len;
use crate::{Choice, check};

/// `THREADS` and `MAX_BLOCKS` of `cu/sample.cu`.
const THREADS: u32 = 512;
const MAX_BLOCKS: u32 = 128;

impl Cuda {
    /// [`crate::twin::sample`] on the device, into the one element of `out`. A NaN is a fault. The kernel has memory of its own for one
    /// launch at a time: launches of one device follow each other in a stream.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn sample(
        &self,
        stream: Stream,
        logits: DeviceSlice<f32>,
        choice: &Choice,
        out: DeviceSlice<u32>,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "sample";
        check::sample(&logits)?;
        expect_len(KERNEL, "out", out.len(), 1)?;
        let (from, n, to) = (logits.address(), size(KERNEL, logits.len())?, out.address());
        let (choice, status) = (*choice, self.status_address());
        // A block a multiprocessor, so that there is room for all of them.
        let blocks = n.div_ceil(THREADS).min(MAX_BLOCKS).min(self.properties().multiprocessors);
        // SAFETY: argument types are those of the kernel, `Choice` being laid out as C does; shapes were checked.
        unsafe {
            let mut arguments = arguments![from, n, choice, to, status];
            self.launch_together(stream, Function(KERNEL, KERNEL), Grid::new((blocks, 1, 1), THREADS), &mut arguments)
        }
    }
}
