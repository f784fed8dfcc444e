//! How full a card is, as NVML sees it: every process's memory, before a context exists too. Never on the token path.

use assay_kernels::cuda::error::call;
use assay_kernels::cuda::{Cuda, CudaError};
use cudarc::driver::result;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::super::DeviceError;

/// A card's memory now, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CardMemory {
    /// Used by nobody.
    pub free_bytes: u64,
    /// All of it.
    pub total_bytes: u64,
}

/// What a record says of a card.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Description {
    /// The driver's name for it.
    pub name: String,
    /// Driver version, e.g. `580.159`.
    pub driver: String,
    /// Newest CUDA version that the driver knows, e.g. `13.0`.
    pub cuda: String,
}

/// Describes CUDA device `ordinal`. Makes no context.
///
/// # Errors
/// `Cuda` where there is no driver or device, `Nvml`.
pub fn describe(ordinal: usize) -> Result<Description, DeviceError> {
    Gauge::new(ordinal)?.describe()
}

/// A card, by its UUID: the order of NVML's indices need not be CUDA's.
pub struct Gauge {
    nvml: Nvml,
    uuid: String,
}

impl Gauge {
    /// Of CUDA device `ordinal`. Makes no context.
    ///
    /// # Errors
    /// `Cuda` where there is no driver or device, `Nvml`.
    pub fn new(ordinal: usize) -> Result<Self, DeviceError> {
        if !Cuda::has_driver() {
            return Err(CudaError::NoDriver.into());
        }
        result::init().map_err(call("cuInit", String::new))?;
        let found = Cuda::count();
        if ordinal >= found {
            return Err(CudaError::NoDevice { ordinal, found }.into());
        }
        let named = || format!("device {ordinal}");
        let device = result::device::get(ordinal as i32).map_err(call("cuDeviceGet", named))?;
        let uuid = result::device::get_uuid(device).map_err(call("cuDeviceGetUuid", named))?;
        let nvml = Nvml::init().map_err(refused("nvmlInit"))?;
        Ok(Self { nvml, uuid: uuid_text(&uuid.bytes.map(|byte| byte as u8)) })
    }

    pub(super) fn device(&self) -> Result<nvml_wrapper::Device<'_>, DeviceError> {
        self.nvml.device_by_uuid(self.uuid.as_str()).map_err(refused("nvmlDeviceGetHandleByUUID"))
    }

    /// What a record says of it.
    ///
    /// # Errors
    /// `Nvml`.
    pub fn describe(&self) -> Result<Description, DeviceError> {
        let version = self.nvml.sys_cuda_driver_version().map_err(refused("nvmlSystemGetCudaDriverVersion"))?;
        Ok(Description {
            name: self.device()?.name().map_err(refused("nvmlDeviceGetName"))?,
            driver: self.nvml.sys_driver_version().map_err(refused("nvmlSystemGetDriverVersion"))?,
            cuda: format!("{}.{}", version / 1000, version % 1000 / 10),
        })
    }

    /// Memory now.
    ///
    /// # Errors
    /// `Nvml`.
    pub fn read(&self) -> Result<CardMemory, DeviceError> {
        let memory = self.device()?.memory_info().map_err(refused("nvmlDeviceGetMemoryInfo"))?;
        Ok(CardMemory { free_bytes: memory.free, total_bytes: memory.total })
    }
}

fn refused(call: &'static str) -> impl FnOnce(NvmlError) -> DeviceError {
    move |error| DeviceError::Nvml { call, reason: error.to_string() }
}

/// As NVML writes it: `GPU-` and hexadecimal groups of 8, 4, 4, 4 and 12 digits.
fn uuid_text(bytes: &[u8; 16]) -> String {
    let mut text = String::from("GPU-");
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_uuid_is_written_as_nvml_writes_it() {
        let bytes = std::array::from_fn(|i| (i * 17) as u8);
        assert_eq!(super::uuid_text(&bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
