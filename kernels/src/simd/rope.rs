use super::lanes::{LANES, Lanes, Level, Task};
use super::norm::inverse_rms;
use super::parallel::for_each_rows;
use crate::{KernelError, check};

/// [`crate::twin::head_norm_rope`], fast.
///
/// # Errors
/// As the twin.
#[allow(clippy::too_many_arguments)]
pub fn head_norm_rope(
    x: &mut [f32],
    heads: usize,
    head_dim: usize,
    rotary_dim: usize,
    norm: Option<&[f32]>,
    eps: f32,
    cos: &[f32],
    sin: &[f32],
    first_position: usize,
) -> Result<(), KernelError> {
    check::head_norm_rope(x, heads, head_dim, rotary_dim, norm, cos, sin, first_position)?;
    let (width, half) = (heads * head_dim, rotary_dim / 2);
    let level = Level::current();
    for_each_rows(width, 24, x, |first, rows| {
        for (index, row) in rows.chunks_exact_mut(width).enumerate() {
            let angle = (first_position + first + index) * half;
            let (cos, sin) = (&cos[angle..angle + half], &sin[angle..angle + half]);
            level.run(Row { row, head_dim, norm, eps, cos, sin });
        }
    });
    Ok(())
}

/// The heads of one token.
struct Row<'a> {
    row: &'a mut [f32],
    head_dim: usize,
    norm: Option<&'a [f32]>,
    eps: f32,
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Task for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        if let Some(weight) = self.norm {
            for part in self.row.chunks_exact_mut(weight.len()) {
                let inv = lanes.splat(inverse_rms(part, self.eps));
                for start in (0..part.len()).step_by(LANES) {
                    let scaled = lanes.mul(lanes.load_part(&part[start..]), inv);
                    let value = lanes.mul(scaled, lanes.load_part(&weight[start..]));
                    lanes.store_part(value, &mut part[start..]);
                }
            }
        }
        let half = self.cos.len();
        for head in self.row.chunks_exact_mut(self.head_dim) {
            let (low, high) = head[..2 * half].split_at_mut(half);
            for start in (0..half).step_by(LANES) {
                let (a, b) = (lanes.load_part(&low[start..]), lanes.load_part(&high[start..]));
                let (c, s) = (lanes.load_part(&self.cos[start..]), lanes.load_part(&self.sin[start..]));
                let first = lanes.fma(lanes.negate(b), s, lanes.mul(a, c));
                let second = lanes.fma(a, s, lanes.mul(b, c));
                lanes.store_part(first, &mut low[start..]);
                lanes.store_part(second, &mut high[start..]);
            }
        }
    }
}
