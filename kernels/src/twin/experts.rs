use super::linear::weight_dot;
use crate::{Activation, GateUp, KernelError, Projection, check, contract};

/// The first half of every chosen expert: `out[s] = activation(gate . x[t], up . x[t])`, biases added
/// to both products where there are some, for slot s of token `t = s / top_k`.
///
/// `x` is `[tokens, hidden]`; `order` and `offsets` are those of [`super::permute`]; `experts` are `[num_experts]`, `None`
/// where an expert's weights are not at hand; `out` is `[tokens * top_k, moe_intermediate_size]`, row s for slot s.
///
/// # Errors
/// `Shape`, `Geometry`, `Index`; `MissingExpert` for an expert that has slots and no weights.
pub fn grouped_gate_up(
    x: &[f32],
    top_k: usize,
    order: &[u32],
    offsets: &[u32],
    experts: &[Option<GateUp<'_>>],
    activation: Activation,
    out: &mut [f32],
) -> Result<(), KernelError> {
    let sizes = check::grouped_gate_up(x, top_k, order, offsets, experts, out)?;
    for (expert, weights) in experts.iter().enumerate() {
        let Some(GateUp { gate, up }) = weights else { continue };
        for &slot in &order[offsets[expert] as usize..offsets[expert + 1] as usize] {
            let slot = slot as usize;
            let x = &x[slot / top_k * sizes.cols..][..sizes.cols];
            for row in 0..sizes.rows {
                let (gate, up) = (projected(gate, row, x), projected(up, row, x));
                out[slot * sizes.rows + row] = contract::activate(activation, gate, up);
            }
        }
    }
    Ok(())
}

/// The second half: `out[s] = down . act[s]`, and its bias where there is one.
///
/// `act` is `[slots, moe_intermediate_size]`, `experts` are `[num_experts]` of `[hidden, moe_intermediate_size]`, `out` is
/// `[slots, hidden]`, row s for slot s.
///
/// # Errors
/// As [`grouped_gate_up`].
pub fn grouped_down(
    act: &[f32],
    order: &[u32],
    offsets: &[u32],
    experts: &[Option<Projection<'_>>],
    out: &mut [f32],
) -> Result<(), KernelError> {
    let sizes = check::grouped_down(act, order, offsets, experts, out)?;
    for (expert, down) in experts.iter().enumerate() {
        let Some(down) = down else { continue };
        for &slot in &order[offsets[expert] as usize..offsets[expert + 1] as usize] {
            let slot = slot as usize;
            let act = &act[slot * sizes.cols..][..sizes.cols];
            for row in 0..sizes.rows {
                out[slot * sizes.rows + row] = projected(down, row, act);
            }
        }
    }
    Ok(())
}

/// `dot(weight[row], x) + bias[row]`, without the sum where there is no bias.
fn projected(projection: &Projection<'_>, row: usize, x: &[f32]) -> f32 {
    let dot = weight_dot(&projection.weight, row, x);
    projection.bias.map_or(dot, |bias| dot + bias[row])
}

/// Adds each token's experts in rank order: `y[d] = fma(weight[r], slots[r][d], y[d])` from `+0.0`.
///
/// `slots` is `[tokens * top_k, hidden]`, `weights` are `[tokens, top_k]`, `out` is `[tokens, hidden]`.
///
/// # Errors
/// `Shape`, `Geometry`.
pub fn combine(slots: &[f32], weights: &[f32], top_k: usize, out: &mut [f32]) -> Result<(), KernelError> {
    let (tokens, hidden) = check::combine(slots, weights, top_k, out)?;
    for token in 0..tokens {
        for d in 0..hidden {
            let mut y = 0.0f32;
            for slot in token * top_k..(token + 1) * top_k {
                y = weights[slot].mul_add(slots[slot * hidden + d], y);
            }
            out[token * hidden + d] = y;
        }
    }
    Ok(())
}
