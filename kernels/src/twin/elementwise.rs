use crate::{KernelError, check, contract};

/// `out = silu(gate) * up`, all of one length.
///
/// # Errors
/// `Shape`.
pub fn swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) -> Result<(), KernelError> {
    check::swiglu(gate, up, out)?;
    for i in 0..out.len() {
        out[i] = contract::silu(gate[i]) * up[i];
    }
    Ok(())
}

/// `x = x + y`, both of one length.
///
/// # Errors
/// `Shape`.
pub fn add_assign(x: &mut [f32], y: &[f32]) -> Result<(), KernelError> {
    check::add_assign(x, y)?;
    for i in 0..x.len() {
        x[i] += y[i];
    }
    Ok(())
}
