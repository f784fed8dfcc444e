//! A device that does what it is told, except where a fault is planted: no hook in the engine is needed.
#![allow(unreachable_pub)]

use std::ops::Range;
use std::sync::Arc;

use assay_engine::bank::HostBank;
use assay_engine::device::host::HostDevice;
use assay_engine::device::{
    Buffer, Device, DeviceError, DeviceKind, Event, Kernel, Launch, LinkCounters, Span, Stream,
};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Single tokens are rotated for the position after their own; prompts are not.
    RopeOffByOne,
    /// The first layer's key and value row at this position keep what they had.
    StaleRow {
        position: usize,
    },
}

pub struct Faulty {
    pub inner: HostDevice,
    pub fault: Fault,
}

impl Faulty {
    /// A launch as the fault makes it; none where it does not happen.
    fn planted(&mut self, mut kernel: Kernel) -> Result<Vec<Kernel>, DeviceError> {
        match (self.fault, &mut kernel) {
            (Fault::RopeOffByOne, Kernel::HeadNormRope { x, heads, head_dim, first_position, .. })
                if x.len() == *heads * *head_dim =>
            {
                *first_position += 1;
                Ok(vec![kernel])
            }
            (Fault::StaleRow { position }, &mut Kernel::KvAppend { k, v, cache, first_position, position_at }) => {
                let row = cache.layout.kv_heads * cache.layout.head_dim;
                let tokens = k.len() / row;
                let mut launches = Vec::new();
                let before = position.saturating_sub(first_position).min(tokens);
                let after = (position + 1).saturating_sub(first_position).min(tokens);
                for (start, end) in [(0, before), (after, tokens)] {
                    if start < end {
                        let part = |span: Span<f32>| span.part(start * row, (end - start) * row);
                        let first_position = first_position + start;
                        launches.push(Kernel::KvAppend {
                            k: part(k)?,
                            v: part(v)?,
                            cache,
                            first_position,
                            position_at,
                        });
                    }
                }
                Ok(launches)
            }
            _ => Ok(vec![kernel]),
        }
    }
}

impl Device for Faulty {
    fn launch(&mut self, kernel: Kernel, how: Launch) -> Result<(), DeviceError> {
        self.planted(kernel)?.into_iter().try_for_each(|kernel| self.inner.launch(kernel, how))
    }

    fn kind(&self) -> DeviceKind {
        self.inner.kind()
    }
    fn budget(&self) -> u64 {
        self.inner.budget()
    }
    fn free_bytes(&self) -> u64 {
        self.inner.free_bytes()
    }
    fn take_low_water(&mut self) -> u64 {
        self.inner.take_low_water()
    }
    fn allocate(&mut self, bytes: u64, label: &'static str) -> Result<Buffer, DeviceError> {
        self.inner.allocate(bytes, label)
    }
    fn free(&mut self, buffer: Buffer) {
        self.inner.free(buffer);
    }
    fn adopt_bank(&mut self, bank: &Arc<HostBank>) -> Result<(), DeviceError> {
        self.inner.adopt_bank(bank)
    }
    fn copy_from_bank(&mut self, bank: &Arc<HostBank>, source: Range<usize>, to: Span<u8>) -> Result<(), DeviceError> {
        self.inner.copy_from_bank(bank, source, to)
    }
    fn upload(&mut self, bytes: &[u8], to: Span<u8>) -> Result<(), DeviceError> {
        self.inner.upload(bytes, to)
    }
    fn download(&mut self, from: Span<u8>, to: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.download(from, to)
    }
    fn record(&mut self, stream: Stream) -> Result<Event, DeviceError> {
        self.inner.record(stream)
    }
    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        self.inner.wait(stream, event)
    }
    fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.inner.synchronize()
    }
    fn abandon(&mut self) {
        self.inner.abandon();
    }
    fn link(&self) -> LinkCounters {
        self.inner.link()
    }
}
