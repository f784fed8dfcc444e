//! Memory of kept rows.

use memmap2::MmapMut;

/// Memory at least this large asks for huge pages: a page fault for each 4 KiB costs more than the copy.
#[cfg(target_os = "linux")]
const HUGE: usize = 2 << 20;

/// The bytes of one split of every layer, in a mapping of its own: pages are taken when they are first written, by whichever thread does,
/// and given back at once.
#[derive(Debug)]
pub(super) struct Rows(MmapMut);

impl Rows {
    /// `len` zero bytes, at least one.
    pub(super) fn new(len: usize) -> std::io::Result<Self> {
        let memory = MmapMut::map_anon(len.max(1))?;
        #[cfg(target_os = "linux")]
        if len >= HUGE {
            // Where there are none, small ones do.
            let _ = memory.advise(memmap2::Advice::HugePage);
        }
        Ok(Self(memory))
    }
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
