//! The host bank: every expert's packed weights in one anonymous mapping, read once from the expert cache.

use std::ops::Range;

use memmap2::MmapMut;

/// All experts of a model in host memory, layers one after another, each layer's experts contiguous.
///
/// Anonymous memory rather than a mapped file: a GPU driver can register it, and its pages never have to be read again.
#[derive(Debug)]
pub struct HostBank {
    memory: MmapMut,
    len: usize,
}

impl HostBank {
    /// Maps `len` zero bytes, to be filled through [`HostBank::bytes_mut`].
    pub fn zeroed(len: usize) -> std::io::Result<Self> {
        let memory = MmapMut::map_anon(len.max(1))?;
        // Advice: where it is not taken, reading is slower, by a few per cent where the host computes experts.
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::HugePage);
        Ok(Self { memory, len })
    }
    /// The bytes, before the bank is shared.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.len]
    }
    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether the model has no routed experts.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The bytes of a range, or `None` past the end.
    pub fn bytes(&self, range: Range<usize>) -> Option<&[u8]> {
        self.memory[..self.len].get(range)
    }
    /// Where the mapping starts, for tests that take its pages away while kernels run.
    pub fn as_ptr(&self) -> *const u8 {
        self.memory.as_ptr()
    }
}
