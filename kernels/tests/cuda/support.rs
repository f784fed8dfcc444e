//! Device memory for tests: upload, poisoned outputs, download, and bitwise comparison.

use std::cell::RefCell;

use assay_kernels::cuda::{Cuda, DeviceSlice, Stream};
use bytemuck::Pod;
use cudarc::driver::{result, sys};
use libtest_mimic::Failed;

/// The device, and what the current trial has allocated on it.
pub(crate) struct Device {
    pub(crate) cuda: Cuda,
    pub(crate) stream: Stream,
    raw: sys::CUstream,
    allocated: RefCell<Vec<u64>>,
}

thread_local! {
    static DEVICE: RefCell<Option<Device>> = const { RefCell::new(None) };
}

impl Device {
    /// Runs a trial on this thread's device, and frees what it has allocated.
    pub(crate) fn with(run: impl FnOnce(&Device) -> Result<(), Failed>) -> Result<(), Failed> {
        DEVICE.with(|slot| {
            let mut slot = slot.borrow_mut();
            if slot.is_none() {
                let cuda = Cuda::open(0)?;
                let raw = result::stream::create(result::stream::StreamKind::NonBlocking)?;
                // SAFETY: just created in the device's context, never destroyed.
                let stream = unsafe { Stream::from_raw(raw) };
                *slot = Some(Device { cuda, stream, raw, allocated: RefCell::default() });
            }
            let device = slot.as_ref().expect("just filled");
            let answer = run(device);
            device.free();
            answer
        })
    }

    fn free(&self) {
        for address in self.allocated.borrow_mut().drain(..) {
            // SAFETY: allocated by `memory`; the trial has ended.
            unsafe { result::free_sync(address) }.expect("cuMemFree");
        }
    }

    fn memory<T: Pod>(&self, len: usize) -> DeviceSlice<T> {
        // SAFETY: freed after the trial.
        let address = unsafe { result::malloc_sync((len * size_of::<T>()).max(1)) }.expect("cuMemAlloc");
        self.allocated.borrow_mut().push(address);
        // SAFETY: just allocated, and only this trial has it.
        unsafe { DeviceSlice::new(address, len) }
    }

    /// Values on the device: copied in the stream's order, because it does not wait for the default stream.
    pub(crate) fn upload<T: Pod>(&self, values: &[T]) -> DeviceSlice<T> {
        let slice = self.memory(values.len());
        if !values.is_empty() {
            // SAFETY: the slice is as long as the values, which are pageable: they are taken before the call returns.
            unsafe { result::memcpy_htod_async(slice.address(), values, self.raw) }.expect("cuMemcpyHtoDAsync");
        }
        slice
    }

    /// Memory that holds NaN and impossible indices, so that what is not written shows.
    pub(crate) fn poisoned<T: Pod>(&self, len: usize) -> DeviceSlice<T> {
        let bytes = vec![0xFFu8; len * size_of::<T>()];
        let slice = self.upload(&bytes);
        // SAFETY: the same memory, read as `T`.
        unsafe { DeviceSlice::new(slice.address(), len) }
    }

    /// Waits for the stream and copies back.
    pub(crate) fn download<T: Pod>(&self, slice: DeviceSlice<T>) -> Vec<T> {
        let mut values = vec![T::zeroed(); slice.len()];
        // SAFETY: the stream exists; the slice is as long as the values.
        unsafe {
            result::stream::synchronize(self.raw).expect("cuStreamSynchronize");
            if !values.is_empty() {
                result::memcpy_dtoh_sync(&mut values, slice.address()).expect("cuMemcpyDtoH");
            }
        }
        values
    }
}

/// Fails with the first index whose bits differ. Any NaN equals any NaN.
pub(crate) fn same_bits(what: &str, found: &[f32], expected: &[f32]) -> Result<(), Failed> {
    if found.len() != expected.len() {
        return Err(format!("{what}: {} elements, expected {}", found.len(), expected.len()).into());
    }
    let differs = |(&a, &b): (&f32, &f32)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
    let count = found.iter().zip(expected).filter(|&pair| differs(pair)).count();
    match found.iter().zip(expected).position(differs) {
        None => Ok(()),
        Some(at) => {
            let (a, b) = (found[at], expected[at]);
            let (found, expected) = (a.to_bits(), b.to_bits());
            Err(format!("{what}: {count} differ; [{at}] is {a:e} ({found:08x}), expected {b:e} ({expected:08x})")
                .into())
        }
    }
}

/// Values of many magnitudes and both signs, zeros and subnormals among them, from a seed.
pub(crate) fn awkward(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let unit = ((state >> 40) as f32 / (1u64 << 24) as f32) * 2.0 - 1.0;
            match (state >> 20) % 64 {
                0 => 0.0,
                1 => -0.0,
                2 => unit * 1e-41,
                3 => unit * 1e4,
                _ => unit,
            }
        })
        .collect()
}

/// Fails with the first index that differs.
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &[T], expected: &[T]) -> Result<(), Failed> {
    if found.len() != expected.len() {
        return Err(format!("{what}: {} elements, expected {}", found.len(), expected.len()).into());
    }
    match found.iter().zip(expected).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => Err(format!("{what}: [{at}] is {:?}, expected {:?}", found[at], expected[at]).into()),
    }
}
