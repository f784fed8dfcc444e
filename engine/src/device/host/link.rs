//! A declared link between host and device, on a virtual clock.

/// Bandwidth and latency of the modelled link. Kernels take no time on its clock: only what the link carries is modelled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkModel {
    /// Bytes a second once a copy is under way.
    pub bytes_per_s: f64,
    /// Seconds before the first byte of each copy.
    pub latency_s: f64,
}

impl Default for LinkModel {
    /// PCIe 5.0 x16 as measured on an H200's copy engine.
    fn default() -> Self {
        Self { bytes_per_s: 55.0e9, latency_s: 2.5e-6 }
    }
}

impl LinkModel {
    /// Seconds that one copy occupies the link.
    pub fn copy_s(&self, bytes: u64) -> f64 {
        self.latency_s + bytes as f64 / self.bytes_per_s
    }
}
