use super::norm::inverse_rms;
use crate::{KernelError, check};

/// RMSNorm where `norm` is given, then rotary position embedding (arXiv 2104.09864), in place.
///
/// `x` is `[tokens, heads * head_dim]`; `norm` is `[head_dim]`, for each head by itself, or `[heads * head_dim]`, for a token's
/// heads together; `cos` and `sin` are `[positions, rotary_dim / 2]`; token t is at position `first_position + t`. Element i of
/// a head is paired with element `i + rotary_dim / 2`: `a' = fma(-b, sin, a * cos)`, `b' = fma(a, sin, b * cos)`. Elements
/// from `rotary_dim` on are not turned.
///
/// # Errors
/// `Shape`, `Geometry`; `Index` for a position that the tables do not have.
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
    let half = rotary_dim / 2;
    for (token, row) in x.chunks_exact_mut(heads * head_dim).enumerate() {
        let angle = (first_position + token) * half;
        if let Some(weight) = norm {
            for part in row.chunks_exact_mut(weight.len()) {
                let inv = inverse_rms(part, eps);
                for d in 0..weight.len() {
                    part[d] = (part[d] * inv) * weight[d];
                }
            }
        }
        for head in row.chunks_exact_mut(head_dim) {
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
