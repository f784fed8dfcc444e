//! From a kernel description to the CUDA launchers.

use assay_kernels::cuda::{Cuda, DeviceSlice, Stream};

use super::super::{DeviceError, Kernel, Launch, Span};

/// Queues one kernel on `stream`.
pub(super) fn execute(cuda: &Cuda, stream: Stream, kernel: &Kernel, _how: Launch) -> Result<(), DeviceError> {
    match *kernel {
        Kernel::AddAssign { x, y, factor } => cuda.add_assign(stream, slice(x), slice(y), factor)?,
        Kernel::AddGated { x, y, gates } => cuda.add_gated(stream, slice(x), slice(y), slice(gates))?,
        Kernel::Scale { x, factor } => cuda.scale(stream, slice(x), factor)?,
        Kernel::SwiGlu { gate, up, activation, out } => {
            cuda.swiglu(stream, slice(gate), slice(up), activation, slice(out))?;
        }
        _ => {}
    }
    Ok(())
}

/// A span as an operand.
fn slice<T>(span: Span<T>) -> DeviceSlice<T> {
    // SAFETY: the engine's spans lie in the device's arena; it waits for kernels before it frees what they use.
    unsafe { DeviceSlice::new(span.address(), span.len()) }
}
