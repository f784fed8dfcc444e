//! The kernel families on an NVIDIA GPU: sources in `cu/`, one file and one launcher a family, held to the twins.
//!
//! The driver is loaded at run time, so one binary runs with and without a GPU. A launcher checks shapes as the twin does,
//! queues its kernel on a stream and returns; it allocates nothing and waits for nothing. What is wrong in the data
//! (a NaN score, an absent expert) is found on the device and read with [`Cuda::take_fault`] after waiting.
//!
//! - [`error`]: driver errors with call and sizes. [`slice`]: operands. [`status`]: faults found by kernels.
//! - `module`: fat binaries or NVRTC. `launch`: grids and arguments.
//! - [`decode`]: fused kernels for one token. `elementwise` and the other launchers: one file a family.

mod attention;
pub mod decode;
mod elementwise;
pub mod error;
mod experts;
mod fetch;
mod gemm;
mod grouped_gemm;
mod launch;
mod linear;
mod module;
mod pack;
mod prefill_attention;
mod roofline;
mod router;
mod rows;
mod sample;
pub mod slice;
pub mod status;

use std::cell::Cell;

use cudarc::driver::{result, sys};

pub use attention::attention_workspace_bytes;
pub use error::CudaError;
pub use fetch::{FetchTeam, MAX_FETCHED, TeamAnswer, TeamRequest};
pub use gemm::{GemmProduct, Instruction, MOST_MATRICES};
pub use grouped_gemm::{GroupedWorkspace, grouped_workspace_bytes};
pub use launch::Stream;
pub use module::{compile, sources};
pub use pack::{DeviceImage, DevicePlan, image_bytes, plan_words, slot_image_bytes};
pub use prefill_attention::prefill_attention_supports;
pub use slice::{DeviceMatrix, DeviceSlice};
pub use status::Fault;

use error::call;
use module::Modules;
use status::Status;

/// What launchers need to know of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Properties {
    /// The driver's name for it.
    pub name: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Dynamic shared memory that a block may ask for, in bytes.
    pub shared_bytes: u32,
    /// Level-2 cache in bytes.
    pub l2_bytes: u64,
    /// Device memory in bytes.
    pub total_bytes: u64,
    /// Driver version as it counts them, e.g. 13000.
    pub driver_version: i32,
}

/// One device's primary context with every kernel loaded. It belongs to the thread that opened it, until
/// [`Cuda::bind`] makes it another's.
pub struct Cuda {
    // Dropped in this order: what lives in the context goes before it is released.
    modules: Modules,
    status: Status,
    properties: Properties,
    early: Cell<bool>,
    context: Context,
}

/// A device's primary context, retained.
struct Context {
    device: sys::CUdevice,
    handle: sys::CUcontext,
}

impl Context {
    /// Retains it and makes it current in this thread.
    fn new(device: sys::CUdevice, named: impl Fn() -> String) -> Result<Self, CudaError> {
        // SAFETY: `device` exists; released in `drop`.
        let handle = unsafe { result::primary_ctx::retain(device) }.map_err(call("cuDevicePrimaryCtxRetain", named))?;
        let context = Self { device, handle };
        context.bind()?;
        Ok(context)
    }

    fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context lives as long as `self`.
        unsafe { result::ctx::set_current(self.handle) }.map_err(call("cuCtxSetCurrent", String::new))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained in `new`, and everything in it is gone. An error here has no one to go to.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

// SAFETY: the driver's handles may be used from any thread in which the context is current; see `bind`.
unsafe impl Send for Cuda {}

impl Cuda {
    /// Whether the driver library can be opened.
    pub fn has_driver() -> bool {
        // SAFETY: only asks whether the library can be opened.
        unsafe { sys::is_culib_present() }
    }

    /// Whether NVRTC can be opened.
    pub fn has_nvrtc() -> bool {
        // SAFETY: as in `has_driver`.
        unsafe { cudarc::nvrtc::sys::is_culib_present() }
    }

    /// Whether every kernel's machine code is in this binary: nvcc was there when it was built.
    pub fn has_fat_binary() -> bool {
        module::compiled()
    }

    /// How many CUDA devices there are; 0 where there is no driver.
    pub fn count() -> usize {
        if !Self::has_driver() || result::init().is_err() {
            return 0;
        }
        result::device::get_count().map_or(0, |count| usize::try_from(count).unwrap_or(0))
    }

    /// Opens a device, makes its context current, and loads the kernels.
    ///
    /// # Errors
    /// `NoDriver`, `NoDevice`; `Call` and `Compile` where the kernels cannot be loaded.
    pub fn open(ordinal: usize) -> Result<Self, CudaError> {
        if !Self::has_driver() {
            return Err(CudaError::NoDriver);
        }
        result::init().map_err(call("cuInit", String::new))?;
        let found = Self::count();
        if ordinal >= found {
            return Err(CudaError::NoDevice { ordinal, found });
        }
        let named = || format!("device {ordinal}");
        let device = result::device::get(ordinal as i32).map_err(call("cuDeviceGet", named))?;
        let properties = properties(device).map_err(call("cuDeviceGetAttribute", named))?;
        let context = Context::new(device, named)?;
        let status = Status::new()?;
        let modules = Modules::load(properties.capability)?;
        Ok(Self { modules, status, properties, early: Cell::new(true), context })
    }

    /// Makes the context current in this thread.
    ///
    /// # Errors
    /// `Call`.
    pub fn bind(&self) -> Result<(), CudaError> {
        self.context.bind()
    }

    /// Whether fused kernels may start before the kernel before them is done, as they do; for measuring what that is worth.
    pub fn start_early(&self, early: bool) {
        self.early.set(early);
    }

    /// The device's figures.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// The first fault that a kernel has found since the last call. The stream must have been waited for.
    pub fn take_fault(&self) -> Option<Fault> {
        self.status.take()
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // The fields, which are dropped after this, are freed in the current context.
        let _ = self.bind();
    }
}

fn properties(device: sys::CUdevice) -> Result<Properties, result::DriverError> {
    use sys::CUdevice_attribute_enum as Attribute;
    // SAFETY: `device` exists.
    let attribute = |which| unsafe { result::device::get_attribute(device, which) };
    let mut driver_version = 0;
    // SAFETY: writes one integer.
    unsafe { sys::cuDriverGetVersion(&raw mut driver_version) }.result()?;
    Ok(Properties {
        name: result::device::get_name(device)?,
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        shared_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32,
        l2_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as u64,
        // SAFETY: `device` exists.
        total_bytes: unsafe { result::device::total_mem(device)? } as u64,
        driver_version,
    })
}
