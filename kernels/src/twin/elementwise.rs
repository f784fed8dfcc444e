use crate::{Activation, KernelError, check, contract};

/// `out = activation(gate, up)`, all of one length.
///
/// # Errors
/// `Shape`.
pub fn swiglu(gate: &[f32], up: &[f32], activation: Activation, out: &mut [f32]) -> Result<(), KernelError> {
    check::swiglu(gate, up, out)?;
    for i in 0..out.len() {
        out[i] = contract::activate(activation, gate[i], up[i]);
    }
    Ok(())
}

/// `x = fma(y, factor, x)`, both of one length. With a factor of 1 that is `x + y`.
///
/// # Errors
/// `Shape`.
pub fn add_assign(x: &mut [f32], y: &[f32], factor: f32) -> Result<(), KernelError> {
    check::add_assign(x, y)?;
    for i in 0..x.len() {
        x[i] = y[i].mul_add(factor, x[i]);
    }
    Ok(())
}

/// `x[t] = fma(y[t], sigmoid(gates[t]), x[t])` for every element of row t.
///
/// `x` and `y` are `[tokens, width]`, `gates` are `[tokens]`.
///
/// # Errors
/// `Shape`.
pub fn add_gated(x: &mut [f32], y: &[f32], gates: &[f32]) -> Result<(), KernelError> {
    let width = check::add_gated(x, y, gates)?;
    for (token, &gate) in gates.iter().enumerate() {
        for i in token * width..(token + 1) * width {
            x[i] = y[i].mul_add(contract::sigmoid(gate), x[i]);
        }
    }
    Ok(())
}

/// `x = x * factor`.
///
/// # Errors
/// None yet.
pub fn scale(x: &mut [f32], factor: f32) -> Result<(), KernelError> {
    for value in x {
        *value *= factor;
    }
    Ok(())
}
