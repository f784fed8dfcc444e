//! One token's experts by a team of threads that are awake already: each takes its part of the outputs, and nobody hands anything over.

use std::ops::Range;
use std::ptr::NonNull;

use super::lanes::Level;
use super::parallel::Disjoint;
use super::product::{Finish, Product, Segment};
use crate::error::expect_len;
use crate::layout::ExpertLayout;
use crate::{Activation, GateUp, KernelError, Matrix, Projection};

/// Experts of a token at most.
const MAX_EXPERTS: usize = 32;

/// One of a token's experts.
#[derive(Debug, Clone, Copy)]
pub struct TeamExpert<'a> {
    /// `[moe_intermediate_size, hidden_size]`
    pub gate_up: GateUp<'a>,
    /// `[hidden_size, moe_intermediate_size]`
    pub down: Projection<'a>,
}

impl<'a> TeamExpert<'a> {
    /// From an expert's bytes.
    ///
    /// # Errors
    /// `Shape` where they are not as many as the layout says, or its biases do not lie at multiples of 4.
    pub fn new(layout: &ExpertLayout, bytes: &'a [u8]) -> Result<Self, KernelError> {
        const KERNEL: &str = "an expert of a team";
        expect_len(KERNEL, "bytes", bytes.len(), layout.bytes)?;
        let projection = |part: usize, range: Range<usize>, rows, cols| {
            let weight = Matrix::new(layout.format, rows, cols, &bytes[range])?;
            let bias = layout.biases().map(|biases| bytemuck::try_cast_slice(&bytes[biases[part].clone()]));
            let misplaced =
                |_| KernelError::Shape { kernel: KERNEL, what: "alignment of a bias", expected: 4, found: 1 };
            Ok::<_, KernelError>(Projection { weight, bias: bias.transpose().map_err(misplaced)? })
        };
        let (hidden, inner) = (layout.hidden_size, layout.moe_intermediate_size);
        let gate = projection(0, layout.gate(), inner, hidden)?;
        let up = projection(1, layout.up(), inner, hidden)?;
        Ok(Self { gate_up: GateUp { gate, up }, down: projection(2, layout.down(), hidden, inner)? })
    }
}

/// Which part of the work a thread takes.
#[derive(Debug, Clone, Copy)]
pub struct Member {
    /// Of the thread, from 0.
    pub index: usize,
    /// Threads that share the work; each calls the same functions with the same operands.
    pub threads: usize,
}

impl Member {
    /// [`crate::twin::grouped_gate_up`] of one token `x` `[hidden]` by all of `experts`: this member's part of `out`,
    /// `[experts, moe_intermediate_size]`. Experts beyond the 32nd are left out.
    ///
    /// # Safety
    /// `out` has that many elements, of which other threads access only the other members' parts. The experts are all of one shape, and `x`
    /// is as long as it says.
    pub unsafe fn gate_up(self, x: &[f32], experts: &[TeamExpert<'_>], activation: Activation, out: NonNull<f32>) {
        let Some(first) = experts.first() else { return };
        let rows = first.gate_up.gate.weight.rows();
        let weights = &|expert: usize| experts.get(expert).map(|expert| [expert.gate_up.gate, expert.gate_up.up]);
        // SAFETY: as the caller promises.
        unsafe { self.share((x, experts.len()), experts.len(), rows, weights, Finish::Gated(activation), out) }
    }

    /// [`crate::twin::grouped_down`] of `act` `[experts, moe_intermediate_size]`: this member's part of `out`, `[experts, hidden]`.
    ///
    /// # Safety
    /// As [`Member::gate_up`].
    pub unsafe fn down(self, act: &[f32], experts: &[TeamExpert<'_>], out: NonNull<f32>) {
        let Some(first) = experts.first() else { return };
        let rows = first.down.weight.rows();
        let weights = &|expert: usize| experts.get(expert).map(|expert| [expert.down; 2]);
        // SAFETY: as the caller promises.
        unsafe { self.share((act, 1), experts.len(), rows, weights, Finish::Plain, out) }
    }

    /// # Safety
    /// As [`Member::gate_up`].
    unsafe fn share<'a>(
        self,
        (x, slots_per_row): (&'a [f32], usize),
        experts: usize,
        rows: usize,
        weights: &'a (dyn Fn(usize) -> Option<[Projection<'a>; 2]> + Sync),
        finish: Finish,
        out: NonNull<f32>,
    ) {
        let experts = experts.min(MAX_EXPERTS);
        let Some([first, _]) = weights(0) else { return };
        let cols = first.weight.cols();
        let segments = Segment::routed(&SLOTS[..experts], &SLOTS[..=experts]);
        // SAFETY: as the caller promises.
        let out = unsafe { Disjoint::shared(out, experts * rows) };
        let product = Product { x, slots_per_row, cols, rows, segments, weights, finish };
        let tasks = product.tasks();
        let level = Level::current();
        for task in tasks * self.index / self.threads..tasks * (self.index + 1) / self.threads {
            product.run_task(level, task, &out);
        }
    }
}

/// The slots of experts in their order, and where each one's begin.
const SLOTS: [u32; MAX_EXPERTS + 1] = {
    let mut slots = [0; MAX_EXPERTS + 1];
    let mut i = 0;
    while i < slots.len() {
        slots[i] = i as u32;
        i += 1;
    }
    slots
};
