//! Launcher of `cu/fetch.cu`: cold experts without the host.

use super::launch::{Grid, Stream, arguments, size};
use super::module::Function;
use super::pack::aligned;
use super::{Cuda, CudaError, DeviceSlice};
use crate::KernelError;
use crate::error::expect_len;

const KERNEL: &str = "fetch";

/// Experts of a token that the kernel has room for.
const MAX_SLOTS: usize = 32;

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

impl Cuda {
    /// Sets `table[ids]` to the addresses of a token's experts: those that are `resident`, and those that are copied out of the
    /// layer's host memory at `bank` (mapped, `resident.len()` experts of `expert_bytes`) to `landing`, in the order of the slots.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    ///
    /// # Safety
    /// `bank` is mapped host memory of that size; the addresses in `landing` are device memory of `expert_bytes` each.
    pub unsafe fn fetch(
        &self,
        stream: Stream,
        ids: DeviceSlice<u32>,
        resident: DeviceSlice<u64>,
        (bank, expert_bytes): (u64, usize),
        landing: DeviceSlice<u64>,
        table: DeviceSlice<u64>,
    ) -> Result<(), CudaError> {
        expect_len(KERNEL, "table [experts]", table.len(), resident.len())?;
        let wrong = |what, expected, found| Err(KernelError::Geometry { kernel: KERNEL, what, expected, found }.into());
        if ids.len() > MAX_SLOTS || landing.len() < ids.len() {
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
        // SAFETY: argument types are those of the kernel; lengths were checked, and the caller answers for the addresses.
        unsafe {
            self.launch(stream, Function(KERNEL, KERNEL), Grid::new((BLOCKS, 1, 1), 512), &mut arguments![work, status])
        }
    }
}
