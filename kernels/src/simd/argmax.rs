use super::lanes::{Block, LANES, Lanes, Level, Task};
use crate::{KernelError, check};

/// [`crate::twin::argmax`], fast.
///
/// # Errors
/// As the twin.
pub fn argmax(logits: &[f32]) -> Result<u32, KernelError> {
    check::argmax(logits)?;
    let max = Level::current().run(Largest(logits));
    let found = logits.iter().position(|&logit| logit == max || max.is_nan() && logit.is_nan());
    let index = found.unwrap_or_default();
    if max.is_nan() {
        return Err(KernelError::NotANumber { kernel: "argmax", what: "logit", index });
    }
    Ok(index as u32)
}

/// The largest of some floats, −inf without any; a NaN where one of them is.
pub(super) struct Largest<'a>(pub(super) &'a [f32]);

impl Task for Largest<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> f32 {
        let (blocks, tail) = self.0.as_chunks::<LANES>();
        let mut max = lanes.splat(f32::NEG_INFINITY);
        for block in blocks {
            let x = lanes.load(block);
            // A NaN, once there, is never less than anything.
            max = lanes.keep_nan(x, lanes.larger(max, x));
        }
        let mut last = Block::ZERO;
        lanes.store(max, &mut last.0);
        let mut max = f32::NEG_INFINITY;
        for &x in last.0.iter().chain(tail) {
            if x.is_nan() || x > max {
                max = x;
            }
        }
        max
    }
}
