//! Launchers of `cu/router.cu`: the choice of experts, and the sum of their answers.

use super::launch::{Grid, Stream, arguments, size};
use super::module::Function;
use super::{Cuda, CudaError, DeviceSlice};
use crate::{KernelError, Routing, Scoring, check};

/// Experts and groups that the kernel has room for.
const MAX_EXPERTS: usize = 1024;
const MAX_GROUPS: usize = 64;

/// `struct Routing` of `cu/router.cu`.
#[repr(C)]
pub(super) struct RoutingArgument {
    scoring: u32,
    norm_topk_prob: u32,
    n_group: u32,
    topk_group: u32,
    scaling_factor: f32,
}

impl From<&Routing> for RoutingArgument {
    fn from(routing: &Routing) -> Self {
        Self {
            scoring: match routing.scoring {
                Scoring::Softmax => 0,
                Scoring::SoftmaxOfChosen => 1,
                Scoring::Sigmoid => 2,
            },
            norm_topk_prob: routing.norm_topk_prob.into(),
            n_group: routing.n_group as u32,
            topk_group: routing.topk_group as u32,
            scaling_factor: routing.scaling_factor,
        }
    }
}

impl Cuda {
    /// [`crate::twin::router_topk`] on the device, for at most 1,024 experts. A NaN score is a fault.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    #[allow(clippy::too_many_arguments)]
    pub fn router_topk(
        &self,
        stream: Stream,
        logits: DeviceSlice<f32>,
        bias: Option<DeviceSlice<f32>>,
        num_experts: usize,
        top_k: usize,
        routing: &Routing,
        ids: DeviceSlice<u32>,
        weights: DeviceSlice<f32>,
    ) -> Result<(), CudaError> {
        let kernel = "router_topk";
        let tokens = check::router_topk(&logits, bias.as_ref(), num_experts, top_k, routing, &ids, &weights)?;
        for (what, expected, found, most) in [
            ("num_experts", "at most 1,024", num_experts, MAX_EXPERTS),
            ("n_group", "at most 64", routing.n_group, MAX_GROUPS),
        ] {
            if found > most {
                return Err(KernelError::Geometry { kernel, what, expected, found }.into());
            }
        }
        let (logits, bias) = (logits.address(), bias.map_or(0, DeviceSlice::address));
        let (experts, top_k, form) = (num_experts as u32, top_k as u32, RoutingArgument::from(routing));
        let (ids, weights, status) = (ids.address(), weights.address(), self.status_address());
        let grid = Grid::new((size(kernel, tokens)?, 1, 1), 128);
        // SAFETY: argument types are those of the kernel; shapes were checked.
        unsafe {
            let mut arguments = arguments![logits, bias, experts, top_k, form, ids, weights, status];
            self.launch(stream, Function("router", kernel), grid, &mut arguments)
        }
    }

    /// [`crate::twin::combine`] on the device.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn combine(
        &self,
        stream: Stream,
        slots: DeviceSlice<f32>,
        weights: DeviceSlice<f32>,
        top_k: usize,
        out: DeviceSlice<f32>,
    ) -> Result<(), CudaError> {
        let (tokens, hidden) = check::combine(&slots, &weights, top_k, &out)?;
        let (slots, weights, to) = (slots.address(), weights.address(), out.address());
        let kernel = "combine";
        let (top_k, hidden) = (size(kernel, top_k)?, size(kernel, hidden)?);
        let grid = Grid::new((size(kernel, tokens)?, hidden.div_ceil(256), 1), 256);
        // SAFETY: as in `router_topk`.
        unsafe {
            let mut arguments = arguments![slots, weights, top_k, hidden, to];
            self.launch(stream, Function("router", kernel), grid, &mut arguments)
        }
    }
}
