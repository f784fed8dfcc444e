//! Launchers of `cu/elementwise.cu`.

use super::launch::{ActivationArgument, Grid, Stream, arguments, size};
use super::module::Function;
use super::{Cuda, CudaError, DeviceSlice};
use crate::{Activation, check};

impl Cuda {
    /// [`crate::twin::swiglu`] on the device.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn swiglu(
        &self,
        stream: Stream,
        gate: DeviceSlice<f32>,
        up: DeviceSlice<f32>,
        activation: Activation,
        out: DeviceSlice<f32>,
    ) -> Result<(), CudaError> {
        check::swiglu(&gate, &up, &out)?;
        let (gate, up, to, n) = (gate.address(), up.address(), out.address(), out.len() as u64);
        let form = ActivationArgument::from(activation);
        let grid = Grid::over("swiglu", out.len())?;
        // SAFETY: argument types are those of the kernel; the slices are as long as `n`.
        unsafe {
            let mut arguments = arguments![gate, up, form, to, n];
            self.launch(stream, Function("elementwise", "swiglu"), grid, &mut arguments)
        }
    }

    /// [`crate::twin::add_assign`] on the device.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn add_assign(
        &self,
        stream: Stream,
        x: DeviceSlice<f32>,
        y: DeviceSlice<f32>,
        factor: f32,
    ) -> Result<(), CudaError> {
        check::add_assign(&x, &y)?;
        let (to, y, n) = (x.address(), y.address(), x.len() as u64);
        let grid = Grid::over("add_assign", x.len())?;
        // SAFETY: as in `swiglu`.
        unsafe {
            let mut arguments = arguments![to, y, factor, n];
            self.launch(stream, Function("elementwise", "add_assign"), grid, &mut arguments)
        }
    }

    /// [`crate::twin::add_gated`] on the device.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn add_gated(
        &self,
        stream: Stream,
        x: DeviceSlice<f32>,
        y: DeviceSlice<f32>,
        gates: DeviceSlice<f32>,
    ) -> Result<(), CudaError> {
        let width = size("add_gated", check::add_gated(&x, &y, &gates)?)?;
        let grid = Grid::over("add_gated", x.len())?;
        let (to, y, gates, n) = (x.address(), y.address(), gates.address(), x.len() as u64);
        // SAFETY: as in `swiglu`; `n / width` is the number of gates.
        unsafe {
            let mut arguments = arguments![to, y, gates, width, n];
            self.launch(stream, Function("elementwise", "add_gated"), grid, &mut arguments)
        }
    }

    /// [`crate::twin::scale`] on the device.
    ///
    /// # Errors
    /// `Kernel`, `Call`.
    pub fn scale(&self, stream: Stream, x: DeviceSlice<f32>, factor: f32) -> Result<(), CudaError> {
        let (to, n) = (x.address(), x.len() as u64);
        let grid = Grid::over("scale", x.len())?;
        // SAFETY: as in `swiglu`.
        unsafe {
            let mut arguments = arguments![to, factor, n];
            self.launch(stream, Function("elementwise", "scale"), grid, &mut arguments)
        }
    }
}
