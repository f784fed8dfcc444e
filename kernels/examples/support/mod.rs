//! Timing of kernels on this machine's first CUDA device, by replays of captured graphs.
#![allow(clippy::unwrap_used, dead_code)]

use std::cell::RefCell;

use assay_kernels::cuda::{Cuda, CudaError, DeviceSlice, Stream};
use cudarc::driver::{result, sys};

const SAMPLES: usize = 15;

pub(crate) struct Bench {
    pub(crate) cuda: Cuda,
    pub(crate) stream: Stream,
    raw: sys::CUstream,
    /// GB/s.
    pub(crate) bandwidth: f64,
    allocated: RefCell<Vec<u64>>,
}

impl Bench {
    pub(crate) fn open() -> Self {
        let cuda = Cuda::open(0).unwrap();
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking).unwrap();
        // SAFETY: just created in the device's context, never destroyed.
        let stream = unsafe { Stream::from_raw(raw) };
        let mut bench = Self { cuda, stream, raw, bandwidth: f64::INFINITY, allocated: RefCell::default() };
        let from = bench.bytes(4 << 30, 0x5a);
        let out = bench.memory(1);
        let us = bench.median(1, |_| bench.cuda.read_words(bench.stream, from, out));
        bench.bandwidth = from.len() as f64 / us / 1e3;
        bench.free();
        bench
    }

    pub(crate) fn memory<T>(&self, len: usize) -> DeviceSlice<T> {
        // SAFETY: freed by `free`, after the stream has been waited for; nothing else has the address.
        unsafe {
            let address = result::malloc_sync(len * size_of::<T>()).unwrap();
            self.allocated.borrow_mut().push(address);
            DeviceSlice::new(address, len)
        }
    }

    pub(crate) fn bytes(&self, len: usize, value: u8) -> DeviceSlice<u8> {
        let slice = self.memory(len);
        // SAFETY: as long as it was allocated.
        unsafe { result::memset_d8_sync(slice.address(), value, len).unwrap() };
        slice
    }

    /// Ones and a bit more: 0x3f3f3f3f is 0.747.
    pub(crate) fn floats(&self, len: usize) -> DeviceSlice<f32> {
        let bytes = self.bytes(4 * len, 0x3f);
        // SAFETY: the same memory, read as f32.
        unsafe { DeviceSlice::new(bytes.address(), len) }
    }

    pub(crate) fn upload<T: bytemuck::Pod>(&self, values: &[T]) -> DeviceSlice<T> {
        let slice = self.memory(values.len());
        // SAFETY: the slice is as long as the values.
        unsafe { result::memcpy_htod_sync(slice.address(), values).unwrap() };
        slice
    }

    /// Waits, and frees what was allocated since the last call.
    pub(crate) fn free(&self) {
        // SAFETY: the stream exists; the memory was allocated by `memory` and no kernel runs.
        unsafe {
            result::stream::synchronize(self.raw).unwrap();
            for address in self.allocated.borrow_mut().drain(..) {
                result::free_sync(address).unwrap();
            }
        }
    }

    /// Median microseconds of one of `count` launches, `run(i)`, replayed as a graph.
    pub(crate) fn median(&self, count: usize, run: impl Fn(usize) -> Result<(), CudaError>) -> f64 {
        // Functions are looked up before the capture.
        run(0).unwrap();
        // SAFETY: all handles are made here and used until the end of this function, when the stream has been waited for.
        unsafe {
            result::stream::synchronize(self.raw).unwrap();
            let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
            result::stream::begin_capture(self.raw, mode).unwrap();
            for i in 0..count {
                run(i).unwrap();
            }
            let graph = result::stream::end_capture(self.raw).unwrap();
            let mut replay = std::ptr::null_mut();
            sys::cuGraphInstantiateWithFlags(&raw mut replay, graph, 0).result().unwrap();
            let event = || result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).unwrap();
            let (start, end) = (event(), event());
            let mut samples = Vec::with_capacity(SAMPLES);
            for sample in 0..SAMPLES + 2 {
                result::event::record(start, self.raw).unwrap();
                result::graph::launch(replay, self.raw).unwrap();
                result::event::record(end, self.raw).unwrap();
                result::event::synchronize(end).unwrap();
                if sample >= 2 {
                    samples.push(f64::from(result::event::elapsed(start, end).unwrap()) * 1e3 / count as f64);
                }
            }
            result::event::destroy(start).unwrap();
            result::event::destroy(end).unwrap();
            result::graph::exec_destroy(replay).unwrap();
            result::graph::destroy(graph).unwrap();
            samples.sort_by(f64::total_cmp);
            samples[SAMPLES / 2]
        }
    }

    pub(crate) fn show(&self, what: &str, bytes: usize, count: usize, run: impl Fn(usize) -> Result<(), CudaError>) {
        let us = self.median(count, run);
        let rate = bytes as f64 / us / 1e3;
        println!("{what:44} {us:9.2} us {rate:7.0} GB/s {:5.1} %", 100.0 * rate / self.bandwidth);
    }
}
