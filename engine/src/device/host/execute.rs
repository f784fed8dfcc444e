//! From a kernel description to the vectorised host kernels.

use assay_kernels::layout::ExpertLayout;
use assay_kernels::{AttentionForm, GateUp, Matrix, Projection, simd};

use super::super::kernel::{EXPERT_ABSENT, KvSpan, MatrixSpan};
use super::super::{DeviceError, Kernel, Span};
use super::arena::{Arena, Operands};

/// Runs one kernel over the arena.
pub(super) fn execute(arena: &mut Arena, kernel: &Kernel) -> Result<(), DeviceError> {
    let on = arena.operands(kernel.name());
    match *kernel {
        Kernel::Embed { ids, table, out } => simd::embed(on.read(ids)?, matrix(&on, table)?, on.write(out)?)?,
        Kernel::RmsNorm { x, weight, eps, out } => {
            simd::rms_norm(on.read(x)?, on.read(weight)?, eps, on.write(out)?)?;
        }
        Kernel::Linear { x, weight, bias, out } => {
            let bias = bias.map(|bias| on.read(bias)).transpose()?;
            simd::linear(on.read(x)?, matrix(&on, weight)?, bias, on.write(out)?)?;
        }
        Kernel::HeadNormRope { x, heads, head_dim, rotary_dim, norm, eps, cos, sin, first_position, position_at } => {
            let first_position = position(&on, first_position, position_at)?;
            let norm = norm.map(|norm| on.read(norm)).transpose()?;
            let (cos, sin) = (on.read(cos)?, on.read(sin)?);
            simd::head_norm_rope(on.write(x)?, heads, head_dim, rotary_dim, norm, eps, cos, sin, first_position)?;
        }
        Kernel::KvAppend { k, v, cache, first_position, position_at } => {
            let first_position = position(&on, first_position, position_at)?;
            let KvSpan { layout, bytes } = cache;
            simd::kv_append(on.read(k)?, on.read(v)?, first_position, layout, on.write(bytes)?)?;
        }
        Kernel::Attention { q, heads, cache, first_position, position_at, scale, window, sinks, out } => {
            let first_position = position(&on, first_position, position_at)?;
            let KvSpan { layout, bytes } = cache;
            let form = AttentionForm { scale, window, sinks: sinks.map(|sinks| on.read(sinks)).transpose()? };
            simd::attention(on.read(q)?, heads, first_position, layout, on.read(bytes)?, form, on.write(out)?)?;
        }
        Kernel::RouterTopK { logits, bias, num_experts, top_k, routing, ids, weights } => {
            let (ids, weights) = (on.write(ids)?, on.write(weights)?);
            let bias = bias.map(|bias| on.read(bias)).transpose()?;
            simd::router_topk(on.read(logits)?, bias, num_experts, top_k, &routing, ids, weights)?;
        }
        // Its kernels address nothing outside the arena.
        Kernel::FetchExperts { .. } => return Err(DeviceError::Unsupported { kernel: kernel.name() }),
        Kernel::Permute { ids, order, offsets } => {
            let experts = offsets.len().saturating_sub(1);
            simd::permute(on.read(ids)?, experts, on.write(order)?, on.write(offsets)?)?;
        }
        Kernel::GroupedGateUp { x, top_k, ids: _, order, offsets, table, expert, activation, out } => {
            let (order, offsets) = (on.read(order)?, on.read(offsets)?);
            let experts = experts(&on, table, offsets, |address| {
                let part = |part| projection(&on, address, &expert, part);
                Ok(GateUp { gate: part(0)?, up: part(1)? })
            })?;
            simd::grouped_gate_up(on.read(x)?, top_k, order, offsets, &experts, activation, on.write(out)?)?;
        }
        Kernel::GroupedDown { act, ids: _, order, offsets, table, expert, out } => {
            let (order, offsets) = (on.read(order)?, on.read(offsets)?);
            let experts = experts(&on, table, offsets, |address| projection(&on, address, &expert, 2))?;
            simd::grouped_down(on.read(act)?, order, offsets, &experts, on.write(out)?)?;
        }
        Kernel::Combine { slots, weights, top_k, out } => {
            simd::combine(on.read(slots)?, on.read(weights)?, top_k, on.write(out)?)?;
        }
        Kernel::AddAssign { x, y, factor } => simd::add_assign(on.write(x)?, on.read(y)?, factor)?,
        Kernel::AddGated { x, y, gates } => simd::add_gated(on.write(x)?, on.read(y)?, on.read(gates)?)?,
        Kernel::Scale { x, factor } => simd::scale(on.write(x)?, factor)?,
        Kernel::SwiGlu { gate, up, activation, out } => {
            simd::swiglu(on.read(gate)?, on.read(up)?, activation, on.write(out)?)?;
        }
        Kernel::Argmax { logits, out, next } => {
            let choice = simd::argmax(on.read(logits)?)?;
            on.write(out)?.iter_mut().take(1).for_each(|chosen| *chosen = choice);
            if let Some(next) = next
                && let [token, position] = on.write(next)?
            {
                (*token, *position) = (choice, position.saturating_add(1));
            }
        }
        Kernel::Sample { logits, choice, out } => {
            if let Some(chosen) = on.write(out)?.first_mut() {
                *chosen = simd::sample(on.read(logits)?, &choice)?;
            }
        }
    }
    Ok(())
}

/// A position that is stored, or the one that the launch says.
fn position(on: &Operands<'_>, given: usize, stored: Option<Span<u32>>) -> Result<usize, DeviceError> {
    let stored = stored.map(|at| on.read(at)).transpose()?;
    Ok(stored.and_then(|values| values.first()).map_or(given, |&position| position as usize))
}

fn matrix<'a>(on: &Operands<'a>, span: MatrixSpan) -> Result<Matrix<'a>, DeviceError> {
    Ok(Matrix::new(span.format, span.rows, span.cols, on.read(span.bytes)?)?)
}

/// An expert's gate (0), up (1) or down (2), by the expert's address.
fn projection<'a>(
    on: &Operands<'a>,
    address: u64,
    expert: &ExpertLayout,
    part: usize,
) -> Result<Projection<'a>, DeviceError> {
    let (hidden, inner) = (expert.hidden_size, expert.moe_intermediate_size);
    let (rows, cols) = if part == 2 { (hidden, inner) } else { (inner, hidden) };
    let range = [expert.gate(), expert.up(), expert.down()][part].clone();
    let bytes = Span::new(address.saturating_add(range.start as u64), range.len());
    let weight = Matrix::new(expert.format, rows, cols, on.read(bytes)?)?;
    let bias = expert.biases().map(|biases| {
        let start = address.saturating_add(biases[part].start as u64);
        on.read(Span::<f32>::new(start, biases[part].len() / size_of::<f32>()))
    });
    Ok(Projection { weight, bias: bias.transpose()? })
}

/// Looks up, in the table on the device, every expert that some slot was routed to.
fn experts<T>(
    on: &Operands<'_>,
    table: Span<u64>,
    offsets: &[u32],
    view: impl Fn(u64) -> Result<T, DeviceError>,
) -> Result<Vec<Option<T>>, DeviceError> {
    let table = on.read(table)?;
    table
        .iter()
        .zip(offsets.windows(2))
        .enumerate()
        .map(|(expert, (&address, window))| match (window[0] == window[1], address) {
            (true, _) => Ok(None),
            (false, EXPERT_ABSENT) => Err(DeviceError::ExpertAbsent { expert }),
            (false, address) => view(address).map(Some),
        })
        .collect()
}
