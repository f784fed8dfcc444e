//! Launchers of `cu/roofline.cu`: what the card allows.

use super::launch::{Grid, Stream, arguments};
use super::module::Function;
use super::{Cuda, CudaError, DeviceSlice};
use crate::error::expect_len;

/// Bytes that a thread moves at once.
const WORD: usize = 16;

impl Cuda {
    /// Reads all of `from`, whose length is a multiple of 16; `out` holds one element.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn read_words(&self, stream: Stream, from: DeviceSlice<u8>, out: DeviceSlice<u32>) -> Result<(), CudaError> {
        expect_len("read_words", "out", out.len(), 1)?;
        let (address, n, out) = (from.address(), (from.len() / WORD) as u64, out.address());
        let grid = Grid::new((8 * self.properties().multiprocessors, 1, 1), 512);
        // SAFETY: argument types are those of the kernel; it reads `from` alone.
        unsafe { self.launch(stream, Function("roofline", "read_words"), grid, &mut arguments![address, n, out]) }
    }

    /// Copies `from`, which may be mapped host memory, to `to` by `blocks` blocks of 512 threads.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn copy_words(
        &self,
        stream: Stream,
        from: DeviceSlice<u8>,
        to: DeviceSlice<u8>,
        blocks: u32,
    ) -> Result<(), CudaError> {
        expect_len("copy_words", "to", to.len(), from.len())?;
        let (from_address, to_address, n) = (from.address(), to.address(), (from.len() / WORD) as u64);
        let mut arguments = arguments![from_address, to_address, n];
        let grid = Grid::new((blocks, 1, 1), 512);
        // SAFETY: argument types are those of the kernel; both slices are as long.
        unsafe { self.launch(stream, Function("roofline", "copy_words"), grid, &mut arguments) }
    }

    /// A kernel that does nothing.
    ///
    /// # Errors
    /// `Call`.
    pub fn nothing(&self, stream: Stream) -> Result<(), CudaError> {
        // SAFETY: no arguments.
        unsafe { self.launch(stream, Function("roofline", "nothing"), Grid::new((1, 1, 1), 32), &mut []) }
    }

    /// A kernel of one block a multiprocessor that only waits for the kernel before it.
    ///
    /// # Errors
    /// `Call`.
    pub fn hand_over(&self, stream: Stream) -> Result<(), CudaError> {
        let grid = Grid::new((self.properties().multiprocessors, 1, 1), 256);
        // SAFETY: no arguments, and nothing is read.
        unsafe { self.launch_early(stream, Function("roofline", "hand_over"), grid, &mut []) }
    }

    /// A kernel of one block a multiprocessor whose blocks wait `count` times for each other; `counter` holds one element, 0 at first.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn barriers(&self, stream: Stream, counter: DeviceSlice<u32>, count: u32) -> Result<(), CudaError> {
        expect_len("barriers", "counter", counter.len(), 1)?;
        let (counter, grid) = (counter.address(), Grid::new((self.properties().multiprocessors, 1, 1), 512));
        // SAFETY: argument types are those of the kernel; a block a multiprocessor is on the card at once where nothing else runs.
        unsafe { self.launch(stream, Function("roofline", "barriers"), grid, &mut arguments![counter, count]) }
    }
}
