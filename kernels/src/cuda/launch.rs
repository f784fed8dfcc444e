//! Grids and arguments.

use std::ffi::c_void;

use cudarc::driver::{result, sys};

use super::error::{CudaError, call};
use super::module::Function;
use super::{Cuda, DeviceSlice};
use crate::error::expect_len;
use crate::{Activation, KernelError};

/// A queue of the driver's, which its maker keeps alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream(sys::CUstream);

impl Stream {
    /// # Safety
    /// `raw` is a stream of the context that kernels are launched in, and lives as long as it is used.
    pub unsafe fn from_raw(raw: sys::CUstream) -> Self {
        Self(raw)
    }
}

/// Blocks, threads and dynamic shared memory of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    pub(super) blocks: (u32, u32, u32),
    pub(super) threads: u32,
    pub(super) shared: u32,
    /// Neighbouring blocks that run together and reach into each other's shared memory.
    pub(super) cluster: u32,
}

impl Grid {
    pub(super) fn new(blocks: (u32, u32, u32), threads: u32) -> Self {
        Self { blocks, threads, shared: 0, cluster: 1 }
    }

    pub(super) fn cluster(self, blocks: u32) -> Self {
        Self { cluster: blocks, ..self }
    }

    /// One thread for each of `n` elements.
    pub(super) fn over(kernel: &'static str, n: usize) -> Result<Self, KernelError> {
        const THREADS: usize = 256;
        Ok(Self::new((size(kernel, n.div_ceil(THREADS))?, 1, 1), THREADS as u32))
    }

    pub(super) fn shared(self, bytes: u32) -> Self {
        Self { shared: bytes, ..self }
    }
}

/// A dimension as kernels take it.
pub(super) fn size(kernel: &'static str, value: usize) -> Result<u32, KernelError> {
    // Half of u32, so that rounding up to tiles cannot overflow there.
    u32::try_from(value)
        .ok()
        .filter(|&value| value <= u32::MAX / 2)
        .ok_or(KernelError::TooLarge { kernel, what: "a dimension of more than 2^31 - 1" })
}

/// The position of the first of `tokens` and the address where it is read instead, 0 for nowhere, as kernels take them.
pub(super) fn position(
    kernel: &'static str,
    first: usize,
    tokens: usize,
    at: Option<DeviceSlice<u32>>,
) -> Result<(u32, u64), KernelError> {
    if let Some(at) = at {
        expect_len(kernel, "the stored position", at.len(), 1)?;
    }
    // The last position too is counted in 32 bits.
    size(kernel, first.saturating_add(tokens))?;
    Ok((size(kernel, first)?, at.map_or(0, DeviceSlice::address)))
}

/// A kernel's arguments, each by the address of a value of exactly the parameter's type.
macro_rules! arguments {
    ($($value:expr),* $(,)?) => {
        [$((&raw const $value).cast_mut().cast::<std::ffi::c_void>()),*]
    };
}
pub(super) use arguments;

/// A launch, for its error.
fn described(function: Function, grid: Grid) -> String {
    let Grid { blocks, threads, shared, .. } = grid;
    format!("{}, grid {blocks:?}, {threads} threads, {shared} bytes of shared memory", function.1)
}

impl Cuda {
    /// Queues a kernel. A grid without blocks does nothing.
    ///
    /// # Safety
    /// `arguments` point to values whose types are those of the kernel's parameters, and the memory that they name is valid
    /// for what the kernel does with it.
    pub(super) unsafe fn launch(
        &self,
        stream: Stream,
        function: Function,
        grid: Grid,
        arguments: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        let Grid { blocks, threads, shared, .. } = grid;
        if blocks.0 == 0 || blocks.1 == 0 || blocks.2 == 0 {
            return Ok(());
        }
        let handle = self.modules.function(function, shared)?;
        // SAFETY: the caller's promise; `handle` belongs to a loaded module.
        unsafe { result::launch_kernel(handle, blocks, (threads, 1, 1), shared, stream.0, arguments) }
            .map_err(call("cuLaunchKernel", || described(function, grid)))
    }

    /// As [`Cuda::launch`], for a kernel whose blocks wait for each other: it starts when there is room for all of them, and is
    /// refused where there can be none.
    ///
    /// # Safety
    /// As [`Cuda::launch`].
    pub(super) unsafe fn launch_together(
        &self,
        stream: Stream,
        function: Function,
        grid: Grid,
        arguments: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        let Grid { blocks, threads, shared, .. } = grid;
        let handle = self.modules.function(function, shared)?;
        // SAFETY: the caller's promise; `handle` belongs to a loaded module.
        unsafe { result::launch_cooperative_kernel(handle, blocks, (threads, 1, 1), shared, stream.0, arguments) }
            .map_err(call("cuLaunchCooperativeKernel", || described(function, grid)))
    }

    /// As [`Cuda::launch`], for a kernel that waits for the one before it by itself (`wait_for_previous` of `cu/decode.cuh`): it
    /// may start as soon as that one lets it. Where the code of the device knows no such wait it starts after it.
    ///
    /// # Safety
    /// As [`Cuda::launch`]; and what the kernel reads ahead of its wait is older than the kernel before it.
    pub(super) unsafe fn launch_early(
        &self,
        stream: Stream,
        function: Function,
        grid: Grid,
        arguments: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        let Grid { blocks, threads, shared, cluster } = grid;
        let handle = self.modules.function(function, shared)?;
        let waits = self.modules.waits(handle)?;
        let mut attributes = Vec::with_capacity(2);
        if self.early.get() && waits {
            attributes.push(sys::CUlaunchAttribute {
                id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                pad: [0; 4],
                value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
            });
        }
        if cluster > 1 {
            attributes.push(sys::CUlaunchAttribute {
                id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                pad: [0; 4],
                value: sys::CUlaunchAttributeValue {
                    clusterDim: sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: cluster, y: 1, z: 1 },
                },
            });
        }
        if attributes.is_empty() {
            // SAFETY: the caller's promise.
            return unsafe { self.launch(stream, function, grid, arguments) };
        }
        let config = sys::CUlaunchConfig {
            gridDimX: blocks.0,
            gridDimY: blocks.1,
            gridDimZ: blocks.2,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: stream.0,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        // SAFETY: the caller's promise; the configuration and its attributes live until the call returns.
        unsafe { sys::cuLaunchKernelEx(&raw const config, handle, arguments.as_mut_ptr(), std::ptr::null_mut()) }
            .result()
            .map_err(call("cuLaunchKernelEx", || described(function, grid)))
    }

    /// Whether a kernel may be launched in clusters: its code for this device is of compute capability 9.0 or later.
    pub(super) fn clusters(&self, function: Function) -> Result<bool, CudaError> {
        self.modules.waits(self.modules.function(function, 0)?)
    }

    /// Where kernels report faults.
    pub(super) fn status_address(&self) -> u64 {
        self.status.address()
    }
}

/// `struct Activation` of `cu/contract.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct ActivationArgument {
    clamped: u32,
    alpha: f32,
    limit: f32,
}

impl From<Activation> for ActivationArgument {
    fn from(form: Activation) -> Self {
        match form {
            Activation::SwiGlu => Self { clamped: 0, alpha: 0.0, limit: 0.0 },
            Activation::ClampedSwiGlu { alpha, limit } => Self { clamped: 1, alpha, limit },
        }
    }
}
