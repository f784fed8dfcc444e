//! What each family demands of its operands; the twin and the vectorised version of a family ask the same function.
//!
//! After a check has passed, every index that the family computes is in range.

use crate::contract::MAX_WEIGHTS;
use crate::cuda::{DeviceMatrix, DeviceSlice};
use crate::error::{KernelError, expect_len, product, rows_of};
use crate::forms::{AttentionForm, GateUp, Projection, Routing};
use crate::kv::KvLayout;
use crate::matrix::Matrix;

/// An operand of which only the length is looked at: a slice, on the host or on a device.
pub(crate) trait Operand {
    /// Elements.
    fn len(&self) -> usize;
}

impl<T> Operand for [T] {
    fn len(&self) -> usize {
        <[T]>::len(self)
    }
}

impl<T> Operand for DeviceSlice<T> {
    fn len(&self) -> usize {
        DeviceSlice::len(*self)
    }
}

/// The shape of a weight matrix, on the host or on a device.
pub(crate) trait Shaped {
    /// Outputs.
    fn rows(&self) -> usize;
    /// Inputs.
    fn cols(&self) -> usize;
}

impl Shaped for Matrix<'_> {
    fn rows(&self) -> usize {
        Matrix::rows(self)
    }
    fn cols(&self) -> usize {
        Matrix::cols(self)
    }
}

impl Shaped for DeviceMatrix {
    fn rows(&self) -> usize {
        DeviceMatrix::rows(self)
    }
    fn cols(&self) -> usize {
        DeviceMatrix::cols(self)
    }
}

/// Shapes alone: ids are checked where they can be read.
pub(crate) fn embed_shapes<I: Operand + ?Sized, S: Operand + ?Sized>(
    ids: &I,
    table: &impl Shaped,
    out: &S,
) -> Result<(), KernelError> {
    const KERNEL: &str = "embed";
    let expected = product(KERNEL, "out", &[ids.len(), table.cols()])?;
    expect_len(KERNEL, "out [tokens, hidden]", out.len(), expected)
}

pub(crate) fn embed(ids: &[u32], table: &Matrix<'_>, out: &[f32]) -> Result<(), KernelError> {
    embed_shapes(ids, table, out)?;
    below("embed", "token id", ids, table.rows())
}

/// Returns tokens.
pub(crate) fn rms_norm<S: Operand + ?Sized>(x: &S, weight: &S, out: &S) -> Result<usize, KernelError> {
    const KERNEL: &str = "rms_norm";
    let tokens = rows_of(KERNEL, "x [tokens, width]", x.len(), weight.len())?;
    expect_len(KERNEL, "out [tokens, width]", out.len(), x.len())?;
    Ok(tokens)
}

/// Returns tokens.
#[allow(clippy::too_many_arguments)]
pub(crate) fn head_norm_rope<S: Operand + ?Sized>(
    x: &S,
    heads: usize,
    head_dim: usize,
    rotary_dim: usize,
    norm: Option<&S>,
    cos: &S,
    sin: &S,
    first_position: usize,
) -> Result<usize, KernelError> {
    const KERNEL: &str = "head_norm_rope";
    even_head_dim(KERNEL, head_dim)?;
    if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) || rotary_dim > head_dim {
        return Err(KernelError::Geometry {
            kernel: KERNEL,
            what: "rotary_dim",
            expected: "a positive multiple of 2, at most head_dim",
            found: rotary_dim,
        });
    }
    let width = product(KERNEL, "a row of x", &[heads, head_dim])?;
    let tokens = rows_of(KERNEL, "x [tokens, heads * head_dim]", x.len(), width)?;
    if let Some(norm) = norm
        && norm.len() != width
    {
        expect_len(KERNEL, "norm [head_dim] or [heads * head_dim]", norm.len(), head_dim)?;
    }
    let positions = rows_of(KERNEL, "cos [positions, rotary_dim / 2]", cos.len(), rotary_dim / 2)?;
    expect_len(KERNEL, "sin [positions, rotary_dim / 2]", sin.len(), cos.len())?;
    positions_fit(KERNEL, first_position, tokens, positions)?;
    Ok(tokens)
}

/// Returns tokens.
pub(crate) fn linear<S: Operand + ?Sized>(
    x: &S,
    w: &impl Shaped,
    bias: Option<&S>,
    out: &S,
) -> Result<usize, KernelError> {
    const KERNEL: &str = "linear";
    let tokens = rows_of(KERNEL, "x [tokens, cols]", x.len(), w.cols())?;
    let expected = product(KERNEL, "out", &[tokens, w.rows()])?;
    expect_len(KERNEL, "out [tokens, rows]", out.len(), expected)?;
    if let Some(bias) = bias {
        expect_len(KERNEL, "bias [rows]", bias.len(), w.rows())?;
    }
    Ok(tokens)
}

pub(crate) fn swiglu<S: Operand + ?Sized>(gate: &S, up: &S, out: &S) -> Result<(), KernelError> {
    expect_len("swiglu", "up", up.len(), gate.len())?;
    expect_len("swiglu", "out", out.len(), gate.len())
}

pub(crate) fn add_assign<S: Operand + ?Sized>(x: &S, y: &S) -> Result<(), KernelError> {
    expect_len("add_assign", "y", y.len(), x.len())
}

/// Returns the width of a row.
pub(crate) fn add_gated<S: Operand + ?Sized>(x: &S, y: &S, gates: &S) -> Result<usize, KernelError> {
    expect_len("add_gated", "y", y.len(), x.len())?;
    let width = x.len().checked_div(gates.len()).unwrap_or(0);
    expect_len("add_gated", "x [tokens, width]", x.len(), gates.len() * width)?;
    Ok(width.max(1))
}

/// Returns tokens.
pub(crate) fn kv_append<S: Operand + ?Sized, B: Operand + ?Sized>(
    k: &S,
    v: &S,
    first_position: usize,
    layout: &KvLayout,
    cache: &B,
) -> Result<usize, KernelError> {
    const KERNEL: &str = "kv_append";
    layout.check(KERNEL, cache.len())?;
    let width = layout.kv_heads * layout.head_dim;
    let tokens = rows_of(KERNEL, "k [tokens, kv_heads * head_dim]", k.len(), width)?;
    expect_len(KERNEL, "v [tokens, kv_heads * head_dim]", v.len(), k.len())?;
    positions_fit(KERNEL, first_position, tokens, layout.capacity_tokens)?;
    Ok(tokens)
}

/// Returns tokens.
pub(crate) fn attention<S: Operand + ?Sized, B: Operand + ?Sized>(
    q: &S,
    heads: usize,
    first_position: usize,
    layout: &KvLayout,
    cache: &B,
    form: &AttentionForm<'_>,
    out: &S,
) -> Result<usize, KernelError> {
    const KERNEL: &str = "attention";
    layout.check(KERNEL, cache.len())?;
    if form.window == Some(0) {
        return Err(KernelError::Geometry { kernel: KERNEL, what: "window", expected: "at least 1", found: 0 });
    }
    if let Some(sinks) = form.sinks {
        expect_len(KERNEL, "sinks [heads]", sinks.len(), heads)?;
    }
    if heads == 0 || !heads.is_multiple_of(layout.kv_heads) {
        return Err(KernelError::Geometry {
            kernel: KERNEL,
            what: "heads",
            expected: "a positive multiple of kv_heads",
            found: heads,
        });
    }
    let width = product(KERNEL, "a row of q", &[heads, layout.head_dim])?;
    let tokens = rows_of(KERNEL, "q [tokens, heads * head_dim]", q.len(), width)?;
    expect_len(KERNEL, "out [tokens, heads * head_dim]", out.len(), q.len())?;
    positions_fit(KERNEL, first_position, tokens, layout.capacity_tokens)?;
    Ok(tokens)
}

/// Returns tokens.
pub(crate) fn router_topk<S: Operand + ?Sized, I: Operand + ?Sized>(
    logits: &S,
    bias: Option<&S>,
    num_experts: usize,
    top_k: usize,
    routing: &Routing,
    ids: &I,
    weights: &S,
) -> Result<usize, KernelError> {
    const KERNEL: &str = "router_topk";
    let tokens = rows_of(KERNEL, "logits [tokens, num_experts]", logits.len(), num_experts)?;
    if let Some(bias) = bias {
        expect_len(KERNEL, "bias [num_experts]", bias.len(), num_experts)?;
    }
    groups(KERNEL, num_experts, top_k, routing)?;
    if top_k == 0 || top_k > num_experts || u32::try_from(num_experts).is_err() {
        return Err(KernelError::Geometry {
            kernel: KERNEL,
            what: "top_k",
            expected: "1 to num_experts, itself at most u32::MAX",
            found: top_k,
        });
    }
    let slots = product(KERNEL, "ids", &[tokens, top_k])?;
    expect_len(KERNEL, "ids [tokens, top_k]", ids.len(), slots)?;
    expect_len(KERNEL, "weights [tokens, top_k]", weights.len(), slots)?;
    Ok(tokens)
}

/// Groups are equal, none has a single expert unless it is the only one, and the chosen ones have `top_k` experts.
fn groups(kernel: &'static str, num_experts: usize, top_k: usize, routing: &Routing) -> Result<(), KernelError> {
    let Routing { n_group, topk_group, .. } = *routing;
    let wrong = |what, expected, found| Err(KernelError::Geometry { kernel, what, expected, found });
    if n_group == 0 || !num_experts.is_multiple_of(n_group) || (n_group > 1 && num_experts / n_group < 2) {
        return wrong("n_group", "1, or a divisor of num_experts that leaves two experts a group", n_group);
    }
    if topk_group == 0 || topk_group > n_group || num_experts / n_group * topk_group < top_k {
        return wrong("topk_group", "1 to n_group, enough for top_k experts", topk_group);
    }
    Ok(())
}

pub(crate) fn permute_shapes<I: Operand + ?Sized>(
    ids: &I,
    num_experts: usize,
    order: &I,
    offsets: &I,
) -> Result<(), KernelError> {
    const KERNEL: &str = "permute";
    if u32::try_from(ids.len()).is_err() {
        return Err(KernelError::TooLarge { kernel: KERNEL, what: "ids" });
    }
    expect_len(KERNEL, "order [slots]", order.len(), ids.len())?;
    let expected = num_experts.checked_add(1).ok_or(KernelError::TooLarge { kernel: KERNEL, what: "offsets" })?;
    expect_len(KERNEL, "offsets [num_experts + 1]", offsets.len(), expected)
}

pub(crate) fn permute(ids: &[u32], num_experts: usize, order: &[u32], offsets: &[u32]) -> Result<(), KernelError> {
    permute_shapes(ids, num_experts, order, offsets)?;
    below("permute", "expert id", ids, num_experts)
}

/// Sizes of a grouped product: rows of `x` have `cols` elements, `out` has `slots` rows of `rows` elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grouped {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

/// Checks a routed product; `projections(expert)` are an expert's, `None` where it has no weights.
fn grouped<'a>(
    kernel: &'static str,
    (x, slots_per_row): (&[f32], usize),
    (order, offsets): (&[u32], &[u32]),
    num_experts: usize,
    projections: impl Fn(usize) -> Option<[Projection<'a>; 2]>,
    out: &[f32],
) -> Result<Grouped, KernelError> {
    routed(kernel, order, offsets, num_experts)?;
    let slots = order.len();
    if slots == 0 {
        expect_len(kernel, "x without slots", x.len(), 0)?;
        expect_len(kernel, "out without slots", out.len(), 0)?;
        return Ok(Grouped { rows: 1, cols: 1 });
    }
    let tokens = rows_of(kernel, "slots [tokens, top_k]", slots, slots_per_row)?;
    let cols = x.len() / tokens;
    let rows = out.len() / slots;
    expect_len(kernel, "x [rows, cols]", x.len(), product(kernel, "x", &[tokens, cols])?)?;
    expect_len(kernel, "out [slots, rows]", out.len(), product(kernel, "out", &[slots, rows])?)?;
    for expert in 0..num_experts {
        let used = (offsets[expert + 1] - offsets[expert]) as usize;
        if used == 0 {
            continue;
        }
        let found = projections(expert).ok_or(KernelError::MissingExpert { kernel, expert, slots: used })?;
        for Projection { weight, bias } in found {
            expect_len(kernel, "rows of an expert", weight.rows(), rows)?;
            expect_len(kernel, "cols of an expert", weight.cols(), cols)?;
            expect_len(kernel, "bias of an expert", bias.map_or(rows, <[f32]>::len), rows)?;
        }
    }
    Ok(Grouped { rows, cols })
}

pub(crate) fn grouped_gate_up(
    x: &[f32],
    top_k: usize,
    order: &[u32],
    offsets: &[u32],
    experts: &[Option<GateUp<'_>>],
    out: &[f32],
) -> Result<Grouped, KernelError> {
    let projections = |expert: usize| experts[expert].map(|e| [e.gate, e.up]);
    grouped("grouped_gate_up", (x, top_k), (order, offsets), experts.len(), projections, out)
}

pub(crate) fn grouped_down(
    act: &[f32],
    order: &[u32],
    offsets: &[u32],
    experts: &[Option<Projection<'_>>],
    out: &[f32],
) -> Result<Grouped, KernelError> {
    let projections = |expert: usize| experts[expert].map(|down| [down; 2]);
    grouped("grouped_down", (act, 1), (order, offsets), experts.len(), projections, out)
}

/// `offsets` ascend from 0 to the number of slots, and `order` names every slot once.
fn routed(kernel: &'static str, order: &[u32], offsets: &[u32], num_experts: usize) -> Result<(), KernelError> {
    let expected = num_experts.checked_add(1).ok_or(KernelError::TooLarge { kernel, what: "offsets" })?;
    expect_len(kernel, "offsets [num_experts + 1]", offsets.len(), expected)?;
    expect_len(kernel, "the first offset", offsets[0] as usize, 0)?;
    expect_len(kernel, "the last offset", offsets[num_experts] as usize, order.len())?;
    for pair in offsets.windows(2) {
        if pair[0] > pair[1] {
            return Err(KernelError::Index {
                kernel,
                what: "an offset, which must not descend:",
                index: pair[0] as usize,
                limit: pair[1] as usize + 1,
            });
        }
    }
    below(kernel, "slot", order, order.len())?;
    let mut seen = vec![false; order.len()];
    for &slot in order {
        if std::mem::replace(&mut seen[slot as usize], true) {
            return Err(KernelError::Geometry {
                kernel,
                what: "a slot in order",
                expected: "named once",
                found: slot as usize,
            });
        }
    }
    Ok(())
}

/// Returns tokens and hidden size.
pub(crate) fn combine<S: Operand + ?Sized>(
    slots: &S,
    weights: &S,
    top_k: usize,
    out: &S,
) -> Result<(usize, usize), KernelError> {
    const KERNEL: &str = "combine";
    let tokens = rows_of(KERNEL, "weights [tokens, top_k]", weights.len(), top_k)?;
    let hidden = out.len().checked_div(tokens).unwrap_or(0);
    expect_len(KERNEL, "out [tokens, hidden]", out.len(), tokens * hidden)?;
    let expected = product(KERNEL, "slots", &[weights.len(), hidden])?;
    expect_len(KERNEL, "slots [tokens * top_k, hidden]", slots.len(), expected)?;
    Ok((tokens, hidden))
}

pub(crate) fn argmax<S: Operand + ?Sized>(logits: &S) -> Result<(), KernelError> {
    if logits.len() == 0 || u32::try_from(logits.len()).is_err() {
        return Err(KernelError::Geometry {
            kernel: "argmax",
            what: "logits",
            expected: "1 to u32::MAX elements",
            found: logits.len(),
        });
    }
    Ok(())
}

pub(crate) fn sample<S: Operand + ?Sized>(logits: &S) -> Result<(), KernelError> {
    if logits.len() == 0 || logits.len() > MAX_WEIGHTS {
        return Err(KernelError::Geometry {
            kernel: "sample",
            what: "logits",
            expected: "1 to 2^23 elements, whose weights a u64 can add up",
            found: logits.len(),
        });
    }
    Ok(())
}

fn even_head_dim(kernel: &'static str, head_dim: usize) -> Result<(), KernelError> {
    if head_dim == 0 || !head_dim.is_multiple_of(2) {
        return Err(KernelError::Geometry {
            kernel,
            what: "head_dim",
            expected: "a positive multiple of 2",
            found: head_dim,
        });
    }
    Ok(())
}

fn below(kernel: &'static str, what: &'static str, indices: &[u32], limit: usize) -> Result<(), KernelError> {
    match indices.iter().find(|&&index| index as usize >= limit) {
        None => Ok(()),
        Some(&index) => Err(KernelError::Index { kernel, what, index: index as usize, limit }),
    }
}

/// Positions `first .. first + tokens` exist.
fn positions_fit(kernel: &'static str, first: usize, tokens: usize, limit: usize) -> Result<(), KernelError> {
    match first.checked_add(tokens) {
        Some(end) if end <= limit => Ok(()),
        end => Err(KernelError::Index {
            kernel,
            what: "the last position",
            index: end.map_or(usize::MAX, |end| end.saturating_sub(1)),
            limit,
        }),
    }
}
