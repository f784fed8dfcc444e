use crate::contract::{GROUP, group};
use crate::layout::MatrixFormat;
use crate::{KernelError, Matrix, check};

/// `out[t, n] = dot(w[n], x[t])`, then `+ bias[n]` where there is one.
///
/// `x` is `[tokens, cols]`, `w` is `[rows, cols]`, `bias` is `[rows]`, `out` is `[tokens, rows]`.
///
/// # Errors
/// `Shape`.
pub fn linear(x: &[f32], w: Matrix<'_>, bias: Option<&[f32]>, out: &mut [f32]) -> Result<(), KernelError> {
    check::linear(x, &w, bias, out)?;
    for (x, y) in x.chunks_exact(w.cols()).zip(out.chunks_exact_mut(w.rows())) {
        for (row, value) in y.iter_mut().enumerate() {
            let dot = weight_dot(&w, row, x);
            *value = match bias {
                Some(bias) => dot + bias[row],
                None => dot,
            };
        }
    }
    Ok(())
}

/// Dot product of a row of weights with `x`: groups of stored elements, each group of integers scaled as it joins the total.
pub(super) fn weight_dot(w: &Matrix<'_>, row: usize, x: &[f32]) -> f32 {
    let mut total = 0.0f32;
    for (index, start) in (0..w.cols()).step_by(GROUP).enumerate() {
        let end = (start + GROUP).min(w.cols());
        let sum = group(start..end, |acc, k| w.element(row, k).mul_add(x[k], acc));
        total = match w.format() {
            MatrixFormat::Bf16 => total + sum,
            MatrixFormat::Int4 | MatrixFormat::Int8 => w.scale(row, index).mul_add(sum, total),
        };
    }
    total
}
