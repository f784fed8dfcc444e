use super::lanes::{LANES, Lanes, Level, Task};
use super::parallel::for_each_rows;
use super::product::{Finish, Product, Segment};
use crate::{Activation, GateUp, KernelError, Projection, check};

/// [`crate::twin::grouped_gate_up`], fast.
///
/// # Errors
/// As the twin.
pub fn grouped_gate_up(
    x: &[f32],
    top_k: usize,
    order: &[u32],
    offsets: &[u32],
    experts: &[Option<GateUp<'_>>],
    activation: Activation,
    out: &mut [f32],
) -> Result<(), KernelError> {
    let sizes = check::grouped_gate_up(x, top_k, order, offsets, experts, out)?;
    let weights = &|expert: usize| experts[expert].map(|e| [e.gate, e.up]);
    let segments = Segment::routed(order, offsets);
    let (cols, rows) = (sizes.cols, sizes.rows);
    let finish = Finish::Gated(activation);
    Product { x, slots_per_row: top_k, cols, rows, segments, weights, finish }.run(Level::current(), out);
    Ok(())
}

/// [`crate::twin::grouped_down`], fast.
///
/// # Errors
/// As the twin.
pub fn grouped_down(
    act: &[f32],
    order: &[u32],
    offsets: &[u32],
    experts: &[Option<Projection<'_>>],
    out: &mut [f32],
) -> Result<(), KernelError> {
    let sizes = check::grouped_down(act, order, offsets, experts, out)?;
    let weights = &|expert: usize| experts[expert].map(|down| [down; 2]);
    let segments = Segment::routed(order, offsets);
    let (cols, rows) = (sizes.cols, sizes.rows);
    Product { x: act, slots_per_row: 1, cols, rows, segments, weights, finish: Finish::Plain }
        .run(Level::current(), out);
    Ok(())
}

/// [`crate::twin::combine`], fast.
///
/// # Errors
/// As the twin.
pub fn combine(slots: &[f32], weights: &[f32], top_k: usize, out: &mut [f32]) -> Result<(), KernelError> {
    let (tokens, hidden) = check::combine(slots, weights, top_k, out)?;
    if tokens * hidden == 0 {
        return Ok(());
    }
    let level = Level::current();
    for_each_rows(hidden, 2 * top_k, out, |first, out| {
        for (index, y) in out.chunks_exact_mut(hidden).enumerate() {
            let slot = (first + index) * top_k;
            let weights = &weights[slot..slot + top_k];
            level.run(Combine { slots: &slots[slot * hidden..(slot + top_k) * hidden], weights, y });
        }
    });
    Ok(())
}

/// One token.
struct Combine<'a> {
    /// `[top_k, hidden]`
    slots: &'a [f32],
    /// `[top_k]`
    weights: &'a [f32],
    /// `[hidden]`
    y: &'a mut [f32],
}

impl Task for Combine<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let hidden = self.y.len();
        for start in (0..hidden).step_by(LANES) {
            let mut y = lanes.splat(0.0);
            for (&weight, slot) in self.weights.iter().zip(self.slots.chunks_exact(hidden)) {
                y = lanes.fma(lanes.splat(weight), lanes.load_part(&slot[start..]), y);
            }
            lanes.store_part(y, &mut self.y[start..]);
        }
    }
}
