//! Which tensors a kernel reads and writes. Weights, tables of addresses and scratch memory are no part of it: the first are
//! the contract's, the others say where bytes lie and not what they are.

use std::ops::Range;

use crate::device::kernel::KvSpan;
use crate::device::{DeviceError, Kernel, Span};

/// A tensor on the device.
pub(super) struct Operand {
    pub(super) name: &'static str,
    pub(super) shape: Vec<u64>,
    pub(super) stored: Stored,
}

/// How it lies there.
pub(super) enum Stored {
    F32(Span<f32>),
    U32(Span<u32>),
    /// Keys and values of some positions.
    Kv {
        cache: KvSpan,
        positions: Range<usize>,
    },
}

#[derive(Default)]
pub(super) struct Operands {
    pub(super) inputs: Vec<Operand>,
    pub(super) outputs: Vec<Operand>,
}

impl Operands {
    fn reads(mut self, operand: Operand) -> Self {
        self.inputs.push(operand);
        self
    }
    fn writes(mut self, operand: Operand) -> Self {
        self.outputs.push(operand);
        self
    }
}

/// The operands of a kernel over `tokens` tokens.
pub(super) fn of(kernel: &Kernel, tokens: usize) -> Result<Operands, DeviceError> {
    let floats = |name, span: Span<f32>| Operand { name, shape: shape(span.len(), tokens), stored: Stored::F32(span) };
    let indices = |name, span: Span<u32>| Operand { name, shape: shape(span.len(), tokens), stored: Stored::U32(span) };
    let with = Operands::default();
    Ok(match *kernel {
        Kernel::Embed { ids, table: _, out } => with.reads(indices("ids", ids)).writes(floats("out", out)),
        Kernel::RmsNorm { x, out, .. } | Kernel::Linear { x, out, .. } => {
            with.reads(floats("x", x)).writes(floats("out", out))
        }
        Kernel::HeadNormRope { x, .. } | Kernel::Scale { x, .. } => with.reads(floats("x", x)).writes(floats("x", x)),
        Kernel::KvAppend { k, v, cache, first_position, .. } => {
            let written = first_position..first_position + row_count(k, cache);
            with.reads(floats("k", k)).reads(floats("v", v)).writes(rows("rows", cache, written))
        }
        Kernel::Attention { q, heads, cache, first_position, window, out, .. } => {
            let end = first_position + q.len() / (heads * cache.layout.head_dim).max(1);
            let start = window.map_or(0, |window| (first_position + 1).saturating_sub(window));
            with.reads(floats("q", q)).reads(rows("cache", cache, start..end)).writes(floats("out", out))
        }
        Kernel::RouterTopK { logits, ids, weights, .. } => {
            with.reads(floats("logits", logits)).writes(indices("ids", ids)).writes(floats("weights", weights))
        }
        Kernel::FetchExperts { ids, .. } => with.reads(indices("ids", ids)),
        Kernel::Permute { ids, order, offsets } => {
            let offsets = Operand { name: "offsets", shape: vec![offsets.len() as u64], stored: Stored::U32(offsets) };
            with.reads(indices("ids", ids)).writes(indices("order", order)).writes(offsets)
        }
        // The order in which a device takes slots is not what it makes of them: traces of two devices are alike.
        Kernel::GroupedGateUp { x, ids, out, .. } => {
            with.reads(floats("x", x)).reads(indices("ids", ids)).writes(floats("out", out))
        }
        Kernel::GroupedDown { act, ids, out, .. } => {
            with.reads(floats("act", act)).reads(indices("ids", ids)).writes(floats("out", out))
        }
        Kernel::Combine { slots, weights, out, .. } => {
            with.reads(floats("slots", slots)).reads(floats("weights", weights)).writes(floats("out", out))
        }
        Kernel::AddAssign { x, y, .. } => with.reads(floats("x", x)).reads(floats("y", y)).writes(floats("x", x)),
        Kernel::AddGated { x, y, gates } => {
            with.reads(floats("x", x)).reads(floats("y", y)).reads(floats("gates", gates)).writes(floats("x", x))
        }
        Kernel::SwiGlu { gate, up, out, .. } => {
            with.reads(floats("gate", gate)).reads(floats("up", up)).writes(floats("out", out))
        }
        Kernel::Argmax { logits, out, .. } | Kernel::Sample { logits, out, .. } => {
            with.reads(floats("logits", logits)).writes(indices("out", out))
        }
    })
}

/// `[tokens, width]`, or `[len]` where tokens do not divide it.
fn shape(len: usize, tokens: usize) -> Vec<u64> {
    match len.checked_div(tokens) {
        Some(width) if width * tokens == len => vec![tokens as u64, width as u64],
        _ => vec![len as u64],
    }
}

fn row_count(k: Span<f32>, cache: KvSpan) -> usize {
    k.len() / (cache.layout.kv_heads * cache.layout.head_dim).max(1)
}

/// `[positions, 2, kv_heads, head_dim]`: keys, then values.
fn rows(name: &'static str, cache: KvSpan, positions: Range<usize>) -> Operand {
    let layout = cache.layout;
    let shape = vec![positions.len() as u64, 2, layout.kv_heads as u64, layout.head_dim as u64];
    Operand { name, shape, stored: Stored::Kv { cache, positions } }
}
