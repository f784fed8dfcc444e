use super::lanes::{LANES, Lanes, Level, Task};
use super::parallel::for_each_rows;
use crate::{Activation, KernelError, check, contract};

/// [`crate::twin::swiglu`], fast.
///
/// # Errors
/// As the twin.
pub fn swiglu(gate: &[f32], up: &[f32], activation: Activation, out: &mut [f32]) -> Result<(), KernelError> {
    check::swiglu(gate, up, out)?;
    let level = Level::current();
    for_each_rows(1, 9, out, |first, out| {
        let range = first..first + out.len();
        level.run(SwiGlu { gate: &gate[range.clone()], up: &up[range], activation, out });
    });
    Ok(())
}

/// [`crate::twin::add_assign`], fast.
///
/// # Errors
/// As the twin.
pub fn add_assign(x: &mut [f32], y: &[f32], factor: f32) -> Result<(), KernelError> {
    check::add_assign(x, y)?;
    let level = Level::current();
    for_each_rows(1, 3, x, |first, x| {
        let y = &y[first..first + x.len()];
        level.run(AddScaled { x, y, factor });
    });
    Ok(())
}

/// [`crate::twin::add_gated`], fast.
///
/// # Errors
/// As the twin.
pub fn add_gated(x: &mut [f32], y: &[f32], gates: &[f32]) -> Result<(), KernelError> {
    let width = check::add_gated(x, y, gates)?;
    let level = Level::current();
    for_each_rows(width, 3, x, |first, x| {
        for (index, x) in x.chunks_exact_mut(width).enumerate() {
            let token = first + index;
            let factor = contract::sigmoid(gates[token]);
            level.run(AddScaled { x, y: &y[token * width..(token + 1) * width], factor });
        }
    });
    Ok(())
}

/// [`crate::twin::scale`], fast.
///
/// # Errors
/// As the twin.
pub fn scale(x: &mut [f32], factor: f32) -> Result<(), KernelError> {
    let level = Level::current();
    for_each_rows(1, 2, x, |_, x| level.run(Scale { x, factor }));
    Ok(())
}

struct SwiGlu<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    activation: Activation,
    out: &'a mut [f32],
}

impl Task for SwiGlu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        for start in (0..self.out.len()).step_by(LANES) {
            let gate = lanes.load_part(&self.gate[start..]);
            let up = lanes.load_part(&self.up[start..]);
            lanes.store_part(lanes.activate(self.activation, gate, up), &mut self.out[start..]);
        }
    }
}

/// `x = fma(y, factor, x)`
struct AddScaled<'a> {
    x: &'a mut [f32],
    y: &'a [f32],
    factor: f32,
}

impl Task for AddScaled<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let factor = lanes.splat(self.factor);
        for start in (0..self.x.len()).step_by(LANES) {
            let (x, y) = (lanes.load_part(&self.x[start..]), lanes.load_part(&self.y[start..]));
            lanes.store_part(lanes.fma(y, factor, x), &mut self.x[start..]);
        }
    }
}

struct Scale<'a> {
    x: &'a mut [f32],
    factor: f32,
}

impl Task for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let factor = lanes.splat(self.factor);
        for start in (0..self.x.len()).step_by(LANES) {
            let product = lanes.mul(lanes.load_part(&self.x[start..]), factor);
            lanes.store_part(product, &mut self.x[start..]);
        }
    }
}
