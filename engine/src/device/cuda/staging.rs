//! Small uploads: bytes are taken at once into pinned blocks, and the copy engine fetches them in stream order.

use assay_kernels::cuda::CudaError;

use super::driver::{Pinned, Queue, Signal, copy_in};

/// Bytes of a block.
const BLOCK: usize = 4 << 20;

/// Blocks: while the device still reads one, the next is filled.
const BLOCKS: usize = 4;

/// Sources of copies start at multiples of this.
const SOURCE_ALIGN: usize = 64;

/// A ring of pinned blocks. A block is written again only after every copy out of it is done.
#[derive(Debug)]
pub(super) struct Staging {
    memory: Pinned,
    /// After the last copy out of each block.
    emptied: Vec<Signal>,
    block: usize,
    used: usize,
}

impl Staging {
    pub(super) fn new() -> Result<Self, CudaError> {
        let emptied = (0..BLOCKS).map(|_| Signal::new()).collect::<Result<_, _>>()?;
        Ok(Self { memory: Pinned::new(BLOCK * BLOCKS)?, emptied, block: 0, used: 0 })
    }

    /// Queues a copy of `bytes` to device memory at `to`.
    pub(super) fn upload(&mut self, queue: &Queue, bytes: &[u8], to: u64) -> Result<(), CudaError> {
        let mut to = to;
        for piece in bytes.chunks(BLOCK) {
            if self.used + piece.len() > BLOCK {
                self.next_block(queue)?;
            }
            let start = self.block * BLOCK + self.used;
            if let Some(part) = self.memory.part_mut(start, piece.len()) {
                part.copy_from_slice(piece);
            }
            // SAFETY: pinned, and not written again before the block's event; the device checked `to`.
            unsafe { copy_in(queue, self.memory.as_ptr().add(start), to, piece.len())? };
            self.used += piece.len().next_multiple_of(SOURCE_ALIGN);
            to += piece.len() as u64;
        }
        Ok(())
    }

    fn next_block(&mut self, queue: &Queue) -> Result<(), CudaError> {
        self.emptied[self.block].record(queue)?;
        self.block = (self.block + 1) % BLOCKS;
        self.used = 0;
        // An event that was never recorded is done.
        self.emptied[self.block].synchronize()
    }
}
