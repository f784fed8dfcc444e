//! What of CUDA is there, without opening a device.

use assay_kernels::cuda::Cuda;

use super::super::DeviceError;
use super::gauge::{Description, Gauge, describe};

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Health {
    /// The driver library can be opened.
    pub driver: bool,
    /// NVRTC can be opened.
    pub nvrtc: bool,
    /// The kernels' machine code is in this binary.
    pub fat_binary: bool,
    /// The devices.
    pub devices: Vec<DeviceHealth>,
    /// Why a driver or a device that is there cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct DeviceHealth {
    /// What it is.
    #[serde(flatten)]
    pub description: Description,
    /// Free memory now; `None` where NVML does not say.
    pub free_bytes: Option<u64>,
}

/// Looks.
pub fn health() -> Health {
    let mut health = Health {
        driver: Cuda::has_driver(),
        nvrtc: Cuda::has_nvrtc(),
        fat_binary: Cuda::has_fat_binary(),
        devices: Vec::new(),
        error: None,
    };
    for ordinal in 0..Cuda::count() {
        match device_health(ordinal) {
            Ok(found) => health.devices.push(found),
            Err(error) => health.error = Some(error.to_string()),
        }
    }
    if health.driver && health.devices.is_empty() && health.error.is_none() {
        health.error = describe(0).err().map(|error| error.to_string());
    }
    health
}

fn device_health(ordinal: usize) -> Result<DeviceHealth, DeviceError> {
    let gauge = Gauge::new(ordinal)?;
    let free_bytes = gauge.read().map(|memory| memory.free_bytes).ok();
    Ok(DeviceHealth { description: gauge.describe()?, free_bytes })
}
