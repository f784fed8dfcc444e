use super::lanes::Level;
use super::product::{Finish, Product, Segment};
use crate::{KernelError, Matrix, Projection, check};

/// [`crate::twin::linear`], fast.
///
/// # Errors
/// As the twin.
pub fn linear(x: &[f32], w: Matrix<'_>, bias: Option<&[f32]>, out: &mut [f32]) -> Result<(), KernelError> {
    let tokens = check::linear(x, &w, bias, out)?;
    let product = Product {
        x,
        slots_per_row: 1,
        cols: w.cols(),
        rows: w.rows(),
        segments: Segment::dense(tokens),
        weights: &|_| Some([Projection { weight: w, bias }; 2]),
        finish: Finish::Plain,
    };
    product.run(Level::current(), out);
    Ok(())
}
