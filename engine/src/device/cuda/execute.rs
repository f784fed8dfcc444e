//! From a kernel description to the CUDA launchers.

use assay_kernels::cuda::{
    Cuda, DeviceImage, DeviceMatrix, DevicePlan, DeviceSlice, FetchTeam, GemmProduct, Stream, grouped_workspace_bytes,
    image_bytes, prefill_attention_supports,
};
use assay_kernels::layout::ExpertLayout;
use assay_kernels::{Activation, KernelError, KvFormat, KvLayout};

use super::super::kernel::{KvSpan, MatrixSpan};
use super::super::{Arithmetic, DeviceError, Kernel, Span};

/// Launches on one stream.
pub(super) struct Launcher<'a> {
    pub(super) cuda: &'a Cuda,
    pub(super) stream: Stream,
    pub(super) scratch: Span<u8>,
    /// Where kernels see the adopted bank, and its length.
    pub(super) bank: Option<(u64, usize)>,
    /// Where they see the host's team: its requests, its answers.
    pub(super) team: Option<(u64, u64)>,
}

/// The routed experts of a launch.
#[derive(Clone, Copy)]
struct Routed {
    ids: Span<u32>,
    order: Span<u32>,
    offsets: Span<u32>,
    table: Span<u64>,
    expert: ExpertLayout,
}

impl Launcher<'_> {
    /// Queues one kernel.
    pub(super) fn launch(&self, kernel: &Kernel, arithmetic: Arithmetic) -> Result<(), DeviceError> {
        let (cuda, stream) = (self.cuda, self.stream);
        let tensor = arithmetic == Arithmetic::Tensor;
        match *kernel {
            Kernel::Embed { ids, table, out } => cuda.embed(stream, slice(ids), matrix(table)?, slice(out))?,
            Kernel::RmsNorm { x, weight, eps, out } => {
                cuda.rms_norm(stream, slice(x), slice(weight), eps, slice(out))?;
            }
            Kernel::Linear { x, weight, bias, out } if tensor => {
                let product = GemmProduct { w: matrix(weight)?, bias: bias.map(slice), out: slice(out) };
                self.tensor_linear(x, weight.cols, &[product])?;
            }
            Kernel::Linear { x, weight, bias, out } => {
                cuda.linear(stream, slice(x), matrix(weight)?, bias.map(slice), slice(out))?;
            }
            Kernel::HeadNormRope {
                x,
                heads,
                head_dim,
                rotary_dim,
                norm,
                eps,
                cos,
                sin,
                first_position,
                position_at,
            } => {
                let (norm, cos, sin) = (norm.map(slice), slice(cos), slice(sin));
                let position = (first_position, position_at.map(slice));
                let x = slice(x);
                cuda.head_norm_rope(stream, x, heads, head_dim, rotary_dim, norm, eps, cos, sin, position)?;
            }
            Kernel::KvAppend { k, v, cache: KvSpan { layout, bytes }, first_position, position_at } => {
                let position = (first_position, position_at.map(slice));
                cuda.kv_append(stream, slice(k), slice(v), position, layout, slice(bytes))?;
            }
            Kernel::Attention { q, heads, cache, first_position, position_at, scale, window, sinks, out } => {
                let (q, out, sinks) = (slice(q), slice(out), sinks.map(slice));
                let (cache, scratch) =
                    self.numbers(cache, first_position + q.len() / (heads * cache.layout.head_dim).max(1))?;
                let (KvSpan { layout, bytes }, form) = (cache, (scale, window));
                let cache = slice(bytes);
                // Widths that the tensor-core kernel does not have are computed exactly; ARCHITECTURE.md says which.
                // So is attention whose position is read on the device.
                if tensor && position_at.is_none() && prefill_attention_supports(layout.head_dim) {
                    cuda.prefill_attention(stream, q, heads, first_position, layout, cache, form, sinks, out)?;
                } else {
                    let (scratch, position) = (slice(scratch), (first_position, position_at.map(slice)));
                    cuda.attention(stream, q, heads, position, layout, cache, form, sinks, scratch, out)?;
                }
            }
            Kernel::RouterTopK { logits, bias, num_experts, top_k, routing, ids, weights } => {
                let (logits, bias) = (slice(logits), bias.map(slice));
                let (ids, weights) = (slice(ids), slice(weights));
                cuda.router_topk(stream, logits, bias, num_experts, top_k, &routing, ids, weights)?;
            }
            Kernel::FetchExperts { ids, resident, bank_start, expert_bytes, landing, table, team } => {
                let (bank, length) = self.bank.ok_or(DeviceError::Unsupported { kernel: kernel.name() })?;
                let end = resident.len().checked_mul(expert_bytes).and_then(|bytes| bytes.checked_add(bank_start));
                if end.is_none_or(|end| end > length) {
                    let found = end.map_or(u64::MAX, |end| end as u64);
                    let what = "end of a layer's experts in the registered host bank";
                    return Err(DeviceError::Length { what, expected: length as u64, found });
                }
                let bank = bank + bank_start as u64;
                let (ids, resident, landing) = (slice(ids), slice(resident), slice(landing));
                let team = match (team, self.team) {
                    (None, _) => None,
                    (Some(_), None) => return Err(DeviceError::Unsupported { kernel: "a fetch without its team" }),
                    (Some(share), Some((request, answer))) => Some(FetchTeam {
                        request,
                        answer,
                        sequence: slice(share.sequence),
                        by_host: slice(share.by_host),
                        x: slice(share.x),
                        out: slice(share.out),
                        layer: share.layer,
                    }),
                };
                // SAFETY: the layer's experts lie inside the adopted bank, the engine's landing slots are of an expert's size, and the
                // team's memory is mapped.
                unsafe { cuda.fetch(stream, ids, resident, (bank, expert_bytes), landing, slice(table), team)? };
            }
            Kernel::Permute { ids, order, offsets } => {
                cuda.permute(stream, slice(ids), slice(order), slice(offsets))?
            }
            Kernel::GroupedGateUp { x, top_k, ids, order, offsets, table, expert, activation, out } => {
                let routed = Routed { ids, order, offsets, table, expert };
                if tensor {
                    self.tensor_gate_up(x, top_k, routed, activation)?;
                } else {
                    let (ids, table) = (slice(ids), slice(table));
                    cuda.grouped_gate_up(stream, slice(x), top_k, ids, table, &expert, activation, slice(out))?;
                }
            }
            Kernel::GroupedDown { act, ids, order, offsets, table, expert, out } => {
                let routed = Routed { ids, order, offsets, table, expert };
                if tensor {
                    self.tensor_down(routed, out)?;
                } else {
                    cuda.grouped_down(stream, slice(act), slice(ids), slice(table), &expert, slice(out))?;
                }
            }
            Kernel::Combine { slots, weights, top_k, out } => {
                cuda.combine(stream, slice(slots), slice(weights), top_k, slice(out))?;
            }
            Kernel::AddAssign { x, y, factor } => cuda.add_assign(stream, slice(x), slice(y), factor)?,
            Kernel::AddGated { x, y, gates } => cuda.add_gated(stream, slice(x), slice(y), slice(gates))?,
            Kernel::Scale { x, factor } => cuda.scale(stream, slice(x), factor)?,
            Kernel::SwiGlu { gate, up, activation, out } => {
                cuda.swiglu(stream, slice(gate), slice(up), activation, slice(out))?;
            }
            Kernel::Argmax { logits, out, next } => {
                cuda.argmax_next(stream, slice(logits), slice(out), next.map(slice))?;
            }
            Kernel::Sample { logits, choice, out } => cuda.sample(stream, slice(logits), &choice, slice(out))?,
        }
        Ok(())
    }

    /// A cache that attention can read, and the scratch memory that is left: codes become the numbers that they stand for.
    fn numbers(&self, cache: KvSpan, positions: usize) -> Result<(KvSpan, Span<u8>), DeviceError> {
        if matches!(cache.layout.format, KvFormat::F32 | KvFormat::Bf16) {
            return Ok((cache, self.scratch));
        }
        let numbers = KvLayout { format: KvFormat::F32, ..cache.layout };
        let bytes = numbers.bytes().ok_or_else(|| too_large("kv_unpack"))?;
        let to = self.scratch("kv_unpack", 0, bytes)?;
        let layout = self.cuda.kv_unpack(self.stream, cache.layout, slice(cache.bytes), positions, to)?;
        let rest = self.scratch.part(bytes, self.scratch.len() - bytes)?;
        Ok((KvSpan { layout, bytes: self.scratch.first(bytes)? }, rest))
    }

    /// Activations `[tokens, cols]` to BF16 in the order that tensor cores take, then the products.
    pub(super) fn tensor_linear(&self, x: Span<f32>, cols: usize, products: &[GemmProduct]) -> Result<(), DeviceError> {
        if x.is_empty() {
            return Ok(());
        }
        let tokens = x.len() / cols.max(1);
        let bytes = image_bytes(tokens, cols).ok_or_else(|| too_large("linear"))?;
        let image = DeviceImage::new(cols, self.scratch("linear", 0, bytes)?)?;
        self.cuda.pack_rows(self.stream, slice(x), image)?;
        Ok(self.cuda.gemm_many(self.stream, self.cuda.instruction(), image, products)?)
    }

    /// The first half of the experts. Their activations stay in the scratch memory, for [`Launcher::tensor_down`], which comes
    /// next.
    fn tensor_gate_up(
        &self,
        x: Span<f32>,
        top_k: usize,
        routed: Routed,
        activation: Activation,
    ) -> Result<(), DeviceError> {
        let (cuda, stream) = (self.cuda, self.stream);
        let (plan, input, middle) = self.grouped(routed)?;
        cuda.grouped_plan(stream, slice(routed.offsets), plan)?;
        cuda.pack_slots(stream, slice(x), top_k, slice(routed.order), plan, input)?;
        let (instruction, table) = (cuda.instruction(), slice(routed.table));
        Ok(cuda.grouped_gemm_gate_up(stream, instruction, table, &routed.expert, plan, input, activation, middle)?)
    }

    fn tensor_down(&self, routed: Routed, out: Span<f32>) -> Result<(), DeviceError> {
        let (plan, _, middle) = self.grouped(routed)?;
        let (instruction, table, order) = (self.cuda.instruction(), slice(routed.table), slice(routed.order));
        let (cuda, expert) = (self.cuda, &routed.expert);
        Ok(cuda.grouped_gemm_down(self.stream, instruction, table, expert, plan, order, middle, slice(out))?)
    }

    /// Where plan, input and activations of the experts lie in the scratch memory.
    fn grouped(&self, routed: Routed) -> Result<(DevicePlan, DeviceImage, DeviceImage), DeviceError> {
        const KERNEL: &str = "experts";
        let (slots, experts, expert) = (routed.ids.len(), routed.table.len(), routed.expert);
        let (hidden, inner) = (expert.hidden_size, expert.moe_intermediate_size);
        let parts = grouped_workspace_bytes(slots, experts, hidden, inner).ok_or_else(|| too_large(KERNEL))?;
        let words = assay_kernels::cuda::plan_words(slots, experts).ok_or_else(|| too_large(KERNEL))?;
        let bytes = |cols| {
            assay_kernels::cuda::slot_image_bytes(slots, experts, cols)
                .ok_or_else(|| DeviceError::from(too_large(KERNEL)))
        };
        let plan = self.scratch(KERNEL, parts.plan, words * size_of::<u32>())?;
        // SAFETY: the same memory as words; the scratch memory starts at a multiple of 256 bytes.
        let plan = DevicePlan::new(slots, experts, unsafe { DeviceSlice::new(plan.address(), words) })?;
        let input = DeviceImage::new(hidden, self.scratch(KERNEL, parts.input, bytes(hidden)?)?)?;
        let middle = DeviceImage::new(inner, self.scratch(KERNEL, parts.middle, bytes(inner)?)?)?;
        Ok((plan, input, middle))
    }

    /// Bytes `start .. start + len` of the scratch memory.
    fn scratch(&self, kernel: &'static str, start: usize, len: usize) -> Result<DeviceSlice<u8>, DeviceError> {
        let found = self.scratch.size();
        let part = self.scratch.part(start, len).map_err(|_| DeviceError::Scratch {
            kernel,
            expected: (start + len) as u64,
            found,
        })?;
        Ok(slice(part))
    }
}

fn too_large(kernel: &'static str) -> KernelError {
    KernelError::TooLarge { kernel, what: "the scratch memory" }
}

/// A span as an operand.
pub(super) fn slice<T>(span: Span<T>) -> DeviceSlice<T> {
    // SAFETY: the engine's spans lie in the device's arena; it waits for kernels before it frees what they use.
    unsafe { DeviceSlice::new(span.address(), span.len()) }
}

pub(super) fn matrix(span: MatrixSpan) -> Result<DeviceMatrix, KernelError> {
    DeviceMatrix::new(span.format, span.rows, span.cols, slice(span.bytes))
}
