//! Tensors by the names and shapes that most families share.

use assay_kernels::Activation;

use super::spec::{LinearSource, MlpSpec, TensorPart, TensorSource};

/// A tensor.
pub(super) fn tensor(name: impl Into<String>, shape: &[usize]) -> TensorSource {
    TensorSource { name: name.into(), shape: shape.to_vec(), part: None }
}

/// A vector or matrix of `shape` in a tensor of `file_shape`.
pub(super) fn part(
    name: impl Into<String>,
    shape: &[usize],
    file_shape: &[usize],
    offset: usize,
    [row_stride, col_stride]: [usize; 2],
) -> TensorSource {
    let part = TensorPart { file_shape: file_shape.to_vec(), offset, row_stride, col_stride, mxfp4_scales: None };
    TensorSource { name: name.into(), shape: shape.to_vec(), part: Some(Box::new(part)) }
}

/// `{prefix}.weight` `[outputs, inputs]`, and `{prefix}.bias` `[outputs]` where there is one.
pub(super) fn linear(prefix: &str, outputs: usize, inputs: usize, bias: bool) -> LinearSource {
    LinearSource {
        weight: tensor(format!("{prefix}.weight"), &[outputs, inputs]),
        bias: bias.then(|| tensor(format!("{prefix}.bias"), &[outputs])),
    }
}

/// A gated network with the projections `names`: gate, up, down.
pub(super) fn mlp(prefix: &str, names: [&str; 3], intermediate_size: usize, hidden_size: usize) -> MlpSpec {
    let [gate, up, down] = names.map(|name| format!("{prefix}.{name}"));
    MlpSpec {
        intermediate_size,
        gate_proj: linear(&gate, intermediate_size, hidden_size, false),
        up_proj: linear(&up, intermediate_size, hidden_size, false),
        down_proj: linear(&down, hidden_size, intermediate_size, false),
        activation: Activation::SwiGlu,
    }
}
