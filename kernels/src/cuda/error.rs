//! What the driver refused, with the call and the sizes.

use cudarc::driver::result::DriverError;

use crate::error::KernelError;

/// A CUDA failure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The driver library is not installed.
    #[error("the CUDA driver library (libcuda.so.1) is not found; install the NVIDIA driver")]
    NoDriver,
    /// There is no such device.
    #[error("CUDA device {ordinal} does not exist; this machine has {found}")]
    NoDevice {
        /// Asked for.
        ordinal: usize,
        /// How many there are.
        found: usize,
    },
    /// A driver call failed.
    #[error("{call}{} failed: {name}: {reason}", in_brackets(sizes))]
    Call {
        /// The driver function.
        call: &'static str,
        /// What it was given.
        sizes: String,
        /// The driver's name for the error.
        name: String,
        /// The driver's words.
        reason: String,
    },
    /// NVRTC refused a source.
    #[error("NVRTC cannot compile kernels/cu/{module}.cu: {reason}")]
    Compile {
        /// File stem.
        module: &'static str,
        /// NVRTC's words.
        reason: String,
    },
    /// There is neither machine code nor NVRTC.
    #[error(
        "this binary was built without nvcc and NVRTC (libnvrtc.so) is not found; \
         install one of them (both are in CUDA's toolkit and on PyPI: nvidia-cuda-nvcc, nvidia-cuda-nvrtc)"
    )]
    NoCompiler,
    /// Operands that do not belong together.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

fn in_brackets(sizes: &str) -> String {
    if sizes.is_empty() { String::new() } else { format!(" ({sizes})") }
}

impl CudaError {
    /// Whether a smaller request could succeed.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Call { name, .. } if name == "CUDA_ERROR_OUT_OF_MEMORY")
    }
}

/// Gives a driver error the call and what it was asked for.
pub fn call(name: &'static str, sizes: impl FnOnce() -> String) -> impl FnOnce(DriverError) -> CudaError {
    move |error| {
        let words = |text: Result<&std::ffi::CStr, DriverError>| {
            text.map_or_else(|_| format!("error {}", error.0 as u32), |text| text.to_string_lossy().into_owned())
        };
        CudaError::Call {
            call: name,
            sizes: sizes(),
            name: words(error.error_name()),
            reason: words(error.error_string()),
        }
    }
}
