use super::lanes::{LANES, Lanes, Level, Task};
use super::parallel::for_each_rows;
use crate::{KernelError, check};

/// [`crate::twin::swiglu`], fast.
///
/// # Errors
/// As the twin.
pub fn swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) -> Result<(), KernelError> {
    check::swiglu(gate, up, out)?;
    let level = Level::current();
    for_each_rows(1, 9, out, |first, out| {
        let range = first..first + out.len();
        level.run(SwiGlu { gate: &gate[range.clone()], up: &up[range], out });
    });
    Ok(())
}

/// [`crate::twin::add_assign`], fast.
///
/// # Errors
/// As the twin.
pub fn add_assign(x: &mut [f32], y: &[f32]) -> Result<(), KernelError> {
    check::add_assign(x, y)?;
    let level = Level::current();
    for_each_rows(1, 3, x, |first, x| {
        let y = &y[first..first + x.len()];
        level.run(AddAssign { x, y });
    });
    Ok(())
}

struct SwiGlu<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Task for SwiGlu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        for start in (0..self.out.len()).step_by(LANES) {
            let gate = lanes.load_part(&self.gate[start..]);
            let up = lanes.load_part(&self.up[start..]);
            lanes.store_part(lanes.mul(lanes.silu(gate), up), &mut self.out[start..]);
        }
    }
}

struct AddAssign<'a> {
    x: &'a mut [f32],
    y: &'a [f32],
}

impl Task for AddAssign<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        for start in (0..self.x.len()).step_by(LANES) {
            let sum = lanes.add(lanes.load_part(&self.x[start..]), lanes.load_part(&self.y[start..]));
            lanes.store_part(sum, &mut self.x[start..]);
        }
    }
}
