//! A device that does what it is told, except where a fault is planted: no hook in the engine is needed.
#![allow(unreachable_pub, dead_code)]

use std::ops::Range;
use std::sync::Arc;

use assay_engine::bank::HostBank;
use assay_engine::device::host::HostDevice;
use assay_engine::device::{
    Buffer, Device, DeviceError, DeviceKind, Event, Kernel, Launch, LinkCounters, Span, Stream, Upload,
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
    /// What this launch wrote, counted from 0 since the fault was planted, is changed in one place by as little as can be.
    Spoiled {
        launch: u64,
    },
}

pub struct Faulty {
    pub inner: HostDevice,
    fault: Fault,
    launches: u64,
}

impl Faulty {
    pub fn new(inner: HostDevice) -> Self {
        Self { inner, fault: Fault::None, launches: 0 }
    }

    /// Plants a fault, and counts launches from here.
    pub fn plant(&mut self, fault: Fault) {
        (self.fault, self.launches) = (fault, 0);
    }

    /// The last bit of a value in the middle.
    fn flip(&mut self, span: Span<f32>) -> Result<(), DeviceError> {
        let value = span.part(span.len() / 2, 1)?.as_bytes();
        let mut bytes = [0u8; 4];
        self.inner.download(value, &mut bytes)?;
        bytes[0] ^= 1;
        self.inner.upload(&bytes, value)
    }

    fn indices(&mut self, span: Span<u32>, change: impl FnOnce(&mut [u32])) -> Result<(), DeviceError> {
        let mut bytes = vec![0u8; span.len() * 4];
        self.inner.download(span.as_bytes(), &mut bytes)?;
        let word = |word: &[u8]| u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        let mut indices: Vec<u32> = bytes.chunks(4).map(word).collect();
        change(&mut indices);
        let bytes: Vec<u8> = indices.iter().flat_map(|index| index.to_le_bytes()).collect();
        self.inner.upload(&bytes, span.as_bytes())
    }

    /// Changes what a launch wrote; what comes later still works.
    fn spoil(&mut self, kernel: Kernel, how: Launch) -> Result<(), DeviceError> {
        match kernel {
            Kernel::Embed { out, .. }
            | Kernel::RmsNorm { out, .. }
            | Kernel::Linear { out, .. }
            | Kernel::Attention { out, .. }
            | Kernel::GroupedGateUp { out, .. }
            | Kernel::GroupedDown { out, .. }
            | Kernel::Combine { out, .. }
            | Kernel::SwiGlu { out, .. } => self.flip(out),
            Kernel::HeadNormRope { x, .. }
            | Kernel::AddAssign { x, .. }
            | Kernel::AddGated { x, .. }
            | Kernel::Scale { x, .. } => self.flip(x),
            // Keys for values.
            Kernel::KvAppend { k, v, cache, first_position, position_at } => {
                self.inner.launch(Kernel::KvAppend { k: v, v: k, cache, first_position, position_at }, how)
            }
            // The last token's last choice becomes an expert that it has not chosen.
            Kernel::RouterTopK { top_k, num_experts, ids, .. } => self.indices(ids, |ids| {
                let last = ids.len() - top_k;
                let absent = (0..num_experts as u32).find(|expert| !ids[last..].contains(expert));
                if let (Some(absent), Some(id)) = (absent, ids.last_mut()) {
                    *id = absent;
                }
            }),
            Kernel::Permute { order, .. } => self.indices(order, |order| order.swap(0, order.len() - 1)),
            Kernel::Argmax { logits, out, .. } | Kernel::Sample { logits, out, .. } => {
                self.indices(out, |out| out[0] = (out[0] + 1) % logits.len() as u32)
            }
            Kernel::FetchExperts { .. } => Ok(()),
        }
    }

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
        self.planted(kernel)?.into_iter().try_for_each(|kernel| self.inner.launch(kernel, how))?;
        let number = self.launches;
        self.launches += 1;
        if self.fault == (Fault::Spoiled { launch: number }) { self.spoil(kernel, how) } else { Ok(()) }
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
    fn begin_uploads(&mut self, groups: Vec<Vec<Upload>>) -> Result<(), DeviceError> {
        self.inner.begin_uploads(groups)
    }
    fn await_upload(&mut self, group: usize) -> Result<(), DeviceError> {
        self.inner.await_upload(group)
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
