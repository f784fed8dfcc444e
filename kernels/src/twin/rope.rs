use super::norm::inverse_rms;
use crate::{KernelError, check};

/// RMSNorm of every head where `norm` is given, then rotary position embedding (arXiv 2104.09864), in place.
///
/// `x` is `[tokens, heads * head_dim]`, `norm` is `[head_dim]`, `cos` and `sin` are `[positions, head_dim / 2]`; token t
/// is at position `first_position + t`. Element i of a head is paired with element `i + head_dim / 2`:
/// `a' = fma(-b, sin, a * cos)`, `b' = fma(a, sin, b * cos)`.
///
/// # Errors
/// `Shape`, `Geometry`; `Index` for a position that the tables do not have.
#[allow(clippy::too_many_arguments)]
pub fn head_norm_rope(
    x: &mut [f32],
    heads: usize,
    head_dim: usize,
    norm: Option<&[f32]>,
    eps: f32,
    cos: &[f32],
    sin: &[f32],
    first_position: usize,
) -> Result<(), KernelError> {
    check::head_norm_rope(x, heads, head_dim, norm, cos, sin, first_position)?;
    let half = head_dim / 2;
    for (token, row) in x.chunks_exact_mut(heads * head_dim).enumerate() {
        let angle = (first_position + token) * half;
        for head in row.chunks_exact_mut(head_dim) {
            if let Some(weight) = norm {
                let inv = inverse_rms(head, eps);
                for d in 0..head_dim {
                    head[d] = (head[d] * inv) * weight[d];
                }
            }
            for i in 0..half {
                let (a, b) = (head[i], head[i + half]);
                let (c, s) = (cos[angle + i], sin[angle + i]);
                head[i] = (-b).mul_add(s, a * c);
                head[i + half] = a.mul_add(s, b * c);
            }
        }
    }
    Ok(())
}
