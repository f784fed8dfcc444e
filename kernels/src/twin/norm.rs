use crate::{KernelError, check, contract};

/// RMSNorm (arXiv 1910.07467) of each row: `y = (x * (1 / sqrt(dot(x, x) / width + eps))) * weight`.
///
/// `x` and `out` are `[tokens, width]`, `weight` is `[width]`.
///
/// # Errors
/// `Shape`, `Geometry`.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) -> Result<(), KernelError> {
    check::rms_norm(x, weight, out)?;
    let width = weight.len();
    for (x, y) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let inv = inverse_rms(x, eps);
        for d in 0..width {
            y[d] = (x[d] * inv) * weight[d];
        }
    }
    Ok(())
}

/// `1 / sqrt(dot(x, x) / K + eps)`, four roundings after the dot product.
pub(super) fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    let mean = contract::dot(x, x) / x.len() as f32;
    1.0 / (mean + eps).sqrt()
}
