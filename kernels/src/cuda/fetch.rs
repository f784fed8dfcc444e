//! Launcher of `cu/fetch.cu`: cold experts without the host's leave, or with its help.

use std::sync::atomic::AtomicU32;

use super::launch::{Grid, Stream, arguments, size};
use super::module::Function;
use super::pack::aligned;
use super::{Cuda, CudaError, DeviceSlice};
use crate::KernelError;
use crate::error::{expect_len, product};

const KERNEL: &str = "fetch";
const WITH_TEAM: &str = "fetch_with_team";

/// Experts of a token that the kernel has room for.
pub const MAX_FETCHED: usize = 32;

/// Blocks of the copy: more gain nothing on the link and take multiprocessors from other work.
const BLOCKS: u32 = 16;

/// `struct Fetch` of `cu/fetch.cu`.
#[repr(C)]
struct Fetch {
    ids: u64,
    resident: u64,
    bank: u64,
    landing: u64,
    table: u64,
    expert_bytes: u64,
    slots: u32,
    experts: u32,
}

/// `struct Team` of `cu/fetch.cu`.
#[repr(C)]
struct TeamArgument {
    request: u64,
    answer: u64,
    sequence: u64,
    by_host: u64,
    x: u64,
    out: u64,
    layer: u32,
    hidden: u32,
}

/// What the device asks of the host's processors: in mapped host memory, written by the device, `x` `[hidden]` behind it. A request is there when
/// its number is, and is left alone until it is answered.
#[derive(Debug)]
#[repr(C)]
pub struct TeamRequest {
    /// Of this request, one more than the last one's.
    pub sequence: AtomicU32,
    /// Among the layers that have experts.
    pub layer: u32,
    /// How many experts.
    pub count: u32,
    /// Which.
    pub ids: [u32; MAX_FETCHED],
    unused: [u32; 29],
}

/// The answer, likewise; behind it `[count, hidden]`.
#[derive(Debug)]
#[repr(C)]
pub struct TeamAnswer {
    /// Of the request that is answered.
    pub sequence: AtomicU32,
    /// Not 0 where it could not be answered.
    pub fault: AtomicU32,
    unused: [u32; 62],
}

const _: () = assert!(size_of::<TeamRequest>() == 256 && size_of::<TeamAnswer>() == 256);

/// A fetch's share for the host's processors.
#[derive(Debug, Clone, Copy)]
pub struct FetchTeam {
    /// Where kernels see the [`TeamRequest`].
    pub request: u64,
    /// Where they see the [`TeamAnswer`].
    pub answer: u64,
    /// Number of the last request, on the device.
    pub sequence: DeviceSlice<u32>,
    /// `[slots + 1]`: of so many cold experts, how many the host computes.
    pub by_host: DeviceSlice<u32>,
    /// `[hidden]`
    pub x: DeviceSlice<f32>,
    /// `[slots, hidden]`: what the host's experts give.
    pub out: DeviceSlice<f32>,
    /// Among the layers that have experts.
    pub layer: usize,
}

impl Cuda {
    /// Sets `table[ids]` to the addresses of a token's experts: those that are `resident`, and those that are copied out of the
    /// layer's host memory at `bank` (mapped, `resident.len()` experts of `expert_bytes`) to `landing`, in the order of the slots. With a
    /// `team` the last of the cold ones are computed by the host, and their addresses are those of what they give plus 1, which the exact
    /// kernels of experts take.
    ///
    /// # Errors
    /// `Kernel`, `Call`. [`super::Fault::HostSilent`] where the team has not answered for 20 s.
    ///
    /// # Safety
    /// `bank` is mapped host memory of that size; the addresses in `landing` are device memory of `expert_bytes` each; those of the team are of mapped
    /// host memory.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn fetch(
        &self,
        stream: Stream,
        ids: DeviceSlice<u32>,
        resident: DeviceSlice<u64>,
        (bank, expert_bytes): (u64, usize),
        landing: DeviceSlice<u64>,
        table: DeviceSlice<u64>,
        team: Option<FetchTeam>,
    ) -> Result<(), CudaError> {
        expect_len(KERNEL, "table [experts]", table.len(), resident.len())?;
        let wrong = |what, expected, found| Err(KernelError::Geometry { kernel: KERNEL, what, expected, found }.into());
        if ids.len() > MAX_FETCHED || landing.len() < ids.len() {
            return wrong("slots", "at most 32, and no more than landing slots", ids.len());
        }
        if expert_bytes == 0 || !expert_bytes.is_multiple_of(64) {
            return wrong("expert_bytes", "a positive multiple of 64", expert_bytes);
        }
        aligned(KERNEL, "the address of the bank", bank)?;
        let work = Fetch {
            ids: ids.address(),
            resident: resident.address(),
            bank,
            landing: landing.address(),
            table: table.address(),
            expert_bytes: expert_bytes as u64,
            slots: size(KERNEL, ids.len())?,
            experts: size(KERNEL, resident.len())?,
        };
        let status = self.status_address();
        let Some(team) = team else {
            let grid = Grid::new((BLOCKS, 1, 1), 512);
            // SAFETY: argument types are those of the kernel; lengths were checked, and the caller answers for the addresses. It reads nothing
            // ahead of its wait.
            return unsafe { self.launch_early(stream, Function(KERNEL, KERNEL), grid, &mut arguments![work, status]) };
        };
        let (hidden, slots) = (team.x.len(), ids.len());
        expect_len(KERNEL, "by_host [slots + 1]", team.by_host.len(), slots + 1)?;
        expect_len(KERNEL, "sequence", team.sequence.len(), 1)?;
        expect_len(KERNEL, "out [slots, hidden]", team.out.len(), product(KERNEL, "out", &[slots, hidden])?)?;
        if !hidden.is_multiple_of(4) {
            return wrong("hidden", "a multiple of 4", hidden);
        }
        aligned(KERNEL, "the address of x", team.x.address())?;
        aligned(KERNEL, "the address of what the host gives", team.out.address())?;
        let team = TeamArgument {
            request: team.request,
            answer: team.answer,
            sequence: team.sequence.address(),
            by_host: team.by_host.address(),
            x: team.x.address(),
            out: team.out.address(),
            layer: size(KERNEL, team.layer)?,
            hidden: size(KERNEL, hidden)?,
        };
        let (function, grid) = (Function(KERNEL, WITH_TEAM), Grid::new((BLOCKS + 1, 1, 1), 512));
        // SAFETY: as above.
        unsafe { self.launch_early(stream, function, grid, &mut arguments![work, team, status]) }
    }
}
