//! What kernels found wrong in their data: a record in mapped host memory that they write and the host reads after waiting.

use std::ffi::c_void;
use std::ptr::NonNull;

use cudarc::driver::{result, sys};

use super::error::{CudaError, call};

/// Codes of `struct Status` in `cu/contract.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A NaN where a decision depends on it, at this index of the operand.
    NotANumber(u32),
    /// An expert that is routed to has no address.
    ExpertAbsent(u32),
    /// An index out of range.
    Index(u32),
    /// The host has not computed the experts of this layer that it was asked for.
    HostSilent(u32),
}

/// The record.
#[derive(Debug)]
pub(super) struct Status {
    host: NonNull<[u32; 2]>,
    device: u64,
}

impl Status {
    /// Allocates it in the current context.
    pub(super) fn new() -> Result<Self, CudaError> {
        let bytes = size_of::<[u32; 2]>();
        // SAFETY: a context is current; the memory is released in `drop`.
        let host =
            unsafe { result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE) }
                .map_err(call("cuMemHostAlloc", || format!("{bytes} bytes")))?;
        let host = NonNull::new(host.cast::<[u32; 2]>()).ok_or(CudaError::NoDriver)?;
        // SAFETY: valid, aligned and not yet known to any kernel.
        unsafe { host.write([0; 2]) };
        // From here on `drop` frees it.
        let mut status = Self { host, device: 0 };
        // SAFETY: `host` was just allocated as mapped memory.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut status.device, host.as_ptr().cast::<c_void>(), 0) }
            .result()
            .map_err(call("cuMemHostGetDevicePointer", || format!("{bytes} bytes")))?;
        Ok(status)
    }

    pub(super) fn address(&self) -> u64 {
        self.device
    }

    /// The first fault since the last call. Kernels must have been waited for.
    pub(super) fn take(&self) -> Option<Fault> {
        // SAFETY: the memory is ours; volatile because the device writes it.
        let [code, index] = unsafe { self.host.as_ptr().read_volatile() };
        if code != 0 {
            // SAFETY: as above; no kernel runs now.
            unsafe { self.host.as_ptr().write_volatile([0; 2]) };
        }
        match code {
            0 => None,
            1 => Some(Fault::NotANumber(index)),
            2 => Some(Fault::ExpertAbsent(index)),
            4 => Some(Fault::HostSilent(index)),
            _ => Some(Fault::Index(index)),
        }
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; kernels that could write it ended with the device's last synchronisation. An error
        // here has no one to go to.
        let _ = unsafe { result::free_host(self.host.as_ptr().cast::<c_void>()) };
    }
}
