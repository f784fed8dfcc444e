use super::lanes::{LANES, Lanes, Level, Task};
use super::parallel::for_each_rows;
use crate::{KernelError, check, contract};

/// [`crate::twin::rms_norm`], fast.
///
/// # Errors
/// As the twin.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) -> Result<(), KernelError> {
    check::rms_norm(x, weight, out)?;
    let width = weight.len();
    let level = Level::current();
    for_each_rows(width, 12, out, |first, out| {
        let x = &x[first * width..first * width + out.len()];
        level.run(RmsNorm { x, weight, eps, out });
    });
    Ok(())
}

/// Some rows.
struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Task for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let width = self.weight.len();
        for (x, out) in self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)) {
            let inv = lanes.splat(inverse_rms(x, self.eps));
            for start in (0..width).step_by(LANES) {
                let scaled = lanes.mul(lanes.load_part(&x[start..]), inv);
                let value = lanes.mul(scaled, lanes.load_part(&self.weight[start..]));
                lanes.store_part(value, &mut out[start..]);
            }
        }
    }
}

/// `1 / sqrt(dot(x, x) / K + eps)`. The chains of one row are too few for lanes; four at a time keep a core busy.
#[inline(always)]
pub(super) fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    let mean = contract::dot(x, x) / x.len() as f32;
    1.0 / (mean + eps).sqrt()
}
