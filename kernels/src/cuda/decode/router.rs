//! Launcher of `cu/decode_router.cu`.

use super::super::launch::{Grid, Stream, arguments, size};
use super::super::module::Function;
use super::super::router::RoutingArgument;
use super::super::{Cuda, CudaError, DeviceMatrix, DeviceSlice};
use super::{Carve, GROUP_WORDS, RUN_WORDS, in_sixteens};
use crate::contract::{GROUP, RUN, RUNS};
use crate::error::expect_len;
use crate::layout::{MatrixFormat, TILE_ROWS, col_groups, row_tiles};
use crate::{KernelError, Routing, check};

/// Experts that the kernel has room for.
const MAX_EXPERTS: usize = 1024;

const THREADS: u32 = 256;

/// Of a block of a cluster.
const CLUSTER_THREADS: u32 = 512;

/// What the choice has in shared memory besides: ranks, and a barrier.
const CHOSEN_BYTES: u32 = 4 * MAX_EXPERTS as u32 + 64;

/// Blocks of a cluster that every device has.
const MAX_CLUSTER: usize = 8;

/// `struct Route` of `cu/decode_router.cu`.
#[repr(C)]
struct RouteArgument {
    x: u64,
    norm: u64,
    normed: u64,
    matrix: u64,
    linear_bias: u64,
    bias: u64,
    parts: u64,
    ids: u64,
    weights: u64,
    eps: f32,
    cols: u32,
    experts: u32,
    top_k: u32,
    routing: RoutingArgument,
}

/// Bytes of scratch memory that [`Cuda::norm_route`] needs: sums of the columns' groups, for each expert. `None` on overflow.
pub fn route_workspace_bytes(experts: usize, hidden: usize) -> Option<usize> {
    experts.checked_next_multiple_of(TILE_ROWS)?.checked_mul(col_groups(hidden))?.checked_mul(size_of::<f32>())
}

impl Cuda {
    /// One token: `normed = rms_norm(x) * norm`, the router's [`crate::twin::linear`] of it, and [`crate::twin::router_topk`]. For a
    /// BF16 router of at most 1,024 experts that are all in the running. `scratch` has at least [`route_workspace_bytes`].
    ///
    /// # Errors
    /// `Kernel`, `Call`; a NaN score is a fault.
    #[allow(clippy::too_many_arguments)]
    pub fn norm_route(
        &self,
        stream: Stream,
        x: DeviceSlice<f32>,
        (norm, eps): (DeviceSlice<f32>, f32),
        normed: DeviceSlice<f32>,
        (router, router_bias): (DeviceMatrix, Option<DeviceSlice<f32>>),
        bias: Option<DeviceSlice<f32>>,
        (top_k, routing): (usize, &Routing),
        scratch: DeviceSlice<u8>,
        (ids, weights): (DeviceSlice<u32>, DeviceSlice<f32>),
    ) -> Result<bool, CudaError> {
        const KERNEL: &str = "norm_route";
        let tokens = check::rms_norm(&x, &norm, &normed)?;
        // SAFETY: only its length is looked at.
        let logits = unsafe { DeviceSlice::<f32>::new(0, tokens.saturating_mul(router.rows())) };
        check::linear(&x, &router, router_bias.as_ref(), &logits)?;
        let experts = router.rows();
        check::router_topk(&logits, bias.as_ref(), experts, top_k, routing, &ids, &weights)?;
        let fits = tokens == 1
            && router.format() == MatrixFormat::Bf16
            && router.address().is_multiple_of(16)
            && experts <= MAX_EXPERTS
            && routing.n_group == routing.topk_group
            && in_sixteens(x)
            && in_sixteens(norm);
        if !fits {
            return Ok(false);
        }
        let (cols, groups, padded) = (x.len(), col_groups(x.len()), experts.next_multiple_of(RUN));
        let needed = route_workspace_bytes(experts, cols)
            .ok_or(KernelError::TooLarge { kernel: KERNEL, what: "the scratch memory" })?;
        if scratch.len() < needed || !scratch.address().is_multiple_of(16) {
            expect_len(KERNEL, "bytes of scratch, at a multiple of 16", scratch.len(), needed)?;
        }
        let shared = Carve::default()
            .take::<f32>(groups * GROUP_WORDS)
            .take::<f32>(groups)
            .take::<f32>(GROUP)
            .take::<u8>(RUNS * (RUN * TILE_ROWS * 2 + 16))
            .take::<f32>(padded)
            .take::<f32>(padded)
            .take::<f32>(padded / RUN * RUN_WORDS);
        let Some(bytes) = shared.within(self.properties().shared_bytes) else { return Ok(false) };
        let argument = RouteArgument {
            x: x.address(),
            norm: norm.address(),
            normed: normed.address(),
            matrix: router.address(),
            linear_bias: router_bias.map_or(0, DeviceSlice::address),
            bias: bias.map_or(0, DeviceSlice::address),
            parts: scratch.address(),
            ids: ids.address(),
            weights: weights.address(),
            eps,
            cols: size(KERNEL, cols)?,
            experts: size(KERNEL, experts)?,
            top_k: size(KERNEL, top_k)?,
            routing: RoutingArgument::from(routing),
        };
        let status = self.status_address();
        // Where the code of the device knows clusters, and the router fits into one's shared memory.
        let cluster =
            self.clusters(Function("decode_router", "norm_route_cluster"))?.then(|| cluster_grid(experts, cols));
        let (name, grid) =
            match cluster.flatten().filter(|grid| grid.shared + CHOSEN_BYTES <= self.properties().shared_bytes) {
                Some(grid) => ("norm_route_cluster", grid),
                None => {
                    let blocks = (size(KERNEL, groups)?, size(KERNEL, row_tiles(experts))?, 1);
                    (KERNEL, Grid::new(blocks, THREADS).shared(bytes))
                }
            };
        // SAFETY: argument types are those of the kernels; shapes were checked. Only weights are read early.
        unsafe {
            self.launch_early(stream, Function("decode_router", name), grid, &mut arguments![argument, status])?;
        }
        Ok(true)
    }
}

/// Of `norm_route_cluster` of `cu/decode_router.cu`. `None` on overflow.
fn cluster_grid(experts: usize, cols: usize) -> Option<Grid> {
    let (tiles, groups, padded) = (row_tiles(experts), col_groups(cols), experts.next_multiple_of(RUN));
    let blocks = tiles.next_power_of_two().min(MAX_CLUSTER);
    let most = tiles.div_ceil(blocks);
    let shared = Carve::default()
        .take::<f32>(groups * GROUP_WORDS)
        .take::<f32>(cols)
        .take::<f32>(groups)
        .take::<f32>(most * groups * TILE_ROWS)
        .take::<f32>(padded)
        .take::<f32>(padded)
        .take::<f32>(padded / RUN * RUN_WORDS)
        .take::<u8>(most * groups * RUNS * (RUN * TILE_ROWS * 2 + 32));
    let blocks = u32::try_from(blocks).ok()?;
    Some(Grid::new((blocks, 1, 1), CLUSTER_THREADS).shared(shared.within(u32::MAX / 2)?).cluster(blocks))
}
