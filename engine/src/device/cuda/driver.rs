//! The driver's objects as owners: streams, events, pinned and registered host memory, device memory.

use std::ffi::c_void;
use std::ptr::NonNull;

use assay_kernels::cuda::error::call;
use assay_kernels::cuda::{CudaError, Stream};
use cudarc::driver::{result, sys};

/// The context that is current where it was asked for: for other threads that work for that one.
#[derive(Debug, Clone, Copy)]
pub(super) struct CurrentContext(sys::CUcontext);

// SAFETY: the driver's handle may be made current in any thread; what it stands for is kept by who opened it.
unsafe impl Send for CurrentContext {}
// SAFETY: as above; nothing is changed through it.
unsafe impl Sync for CurrentContext {}

impl CurrentContext {
    pub(super) fn get() -> Result<Self, CudaError> {
        let current = result::ctx::get_current().map_err(call("cuCtxGetCurrent", String::new))?;
        current.map(Self).ok_or(CudaError::NoDriver)
    }
    /// Makes it current in this thread.
    pub(super) fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the device waits for its threads before the context goes.
        unsafe { result::ctx::set_current(self.0) }.map_err(call("cuCtxSetCurrent", String::new))
    }
}

/// A stream that does not wait for the default one.
#[derive(Debug)]
pub(super) struct Queue(sys::CUstream);

impl Queue {
    pub(super) fn new() -> Result<Self, CudaError> {
        result::stream::create(result::stream::StreamKind::NonBlocking)
            .map(Self)
            .map_err(call("cuStreamCreate", String::new))
    }
    /// For cuBLAS, which takes the driver's own handle.
    pub(super) fn raw(&self) -> sys::CUstream {
        self.0
    }
    /// For launchers.
    pub(super) fn stream(&self) -> Stream {
        // SAFETY: the stream lives as long as `self`, and the device synchronises before it drops it.
        unsafe { Stream::from_raw(self.0) }
    }
    pub(super) fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { result::stream::synchronize(self.0) }.map_err(call("cuStreamSynchronize", String::new))
    }
    /// What `work` queues here, as a graph instead of running it.
    pub(super) fn capture(&self, work: impl FnOnce() -> Result<(), CudaError>) -> Result<Graph, CudaError> {
        self.begin_capture()?;
        let worked = work();
        // Capture is ended whether the work succeeded or not.
        let graph = self.end_capture();
        worked.and(graph)
    }
    /// From here on work that is queued is written down and not run.
    pub(super) fn begin_capture(&self) -> Result<(), CudaError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream lives.
        unsafe { result::stream::begin_capture(self.0, mode) }.map_err(call("cuStreamBeginCapture", String::new))
    }
    /// Ends a capture and forgets what was written down.
    pub(super) fn drop_capture(&self) {
        // SAFETY: the driver refuses a stream that is not capturing.
        if let Ok(graph) = unsafe { result::stream::end_capture(self.0) }
            && !graph.is_null()
        {
            // SAFETY: just captured.
            let _ = unsafe { result::graph::destroy(graph) };
        }
    }
    /// What was written down.
    pub(super) fn end_capture(&self) -> Result<Graph, CudaError> {
        // SAFETY: as in `drop_capture`.
        let graph = unsafe { result::stream::end_capture(self.0) }.map_err(call("cuStreamEndCapture", String::new))?;
        // SAFETY: just captured; an instance keeps nothing of the graph it was made from.
        let instance = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) }
            .map_err(call("cuGraphInstantiate", String::new));
        // SAFETY: not used again.
        let _ = unsafe { result::graph::destroy(graph) };
        instance.map(Graph)
    }
    /// Later work waits until `event`'s last record is done.
    pub(super) fn wait(&self, event: &Signal) -> Result<(), CudaError> {
        // SAFETY: both live.
        unsafe { result::stream::wait_event(self.0, event.0, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }
            .map_err(call("cuStreamWaitEvent", String::new))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: created in `new`. An error here has no one to go to.
        let _ = unsafe { result::stream::destroy(self.0) };
    }
}

/// Launches that were captured, to be repeated with one call.
#[derive(Debug)]
pub(super) struct Graph(sys::CUgraphExec);

impl Graph {
    pub(super) fn launch(&self, queue: &Queue) -> Result<(), CudaError> {
        // SAFETY: both live.
        unsafe { result::graph::launch(self.0, queue.0) }.map_err(call("cuGraphLaunch", String::new))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: instantiated in `capture`; the device waits for its streams before it drops this.
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}

/// Two events with timing.
#[derive(Debug)]
pub(super) struct Timer {
    from: Signal,
    to: Signal,
}

impl Timer {
    pub(super) fn new() -> Result<Self, CudaError> {
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        Ok(Self { from: Signal::with(flags)?, to: Signal::with(flags)? })
    }
    pub(super) fn start(&self, queue: &Queue) -> Result<(), CudaError> {
        self.from.record(queue)
    }
    /// Waits for what was queued since `start`; its seconds on the device.
    pub(super) fn stop(&self, queue: &Queue) -> Result<f64, CudaError> {
        self.to.record(queue)?;
        self.to.synchronize()?;
        // SAFETY: both were recorded and have happened.
        let ms = unsafe { result::event::elapsed(self.from.0, self.to.0) }
            .map_err(call("cuEventElapsedTime", String::new))?;
        Ok(f64::from(ms) / 1e3)
    }
}

/// An event, without timing where it only orders.
#[derive(Debug)]
pub(super) struct Signal(sys::CUevent);

impl Signal {
    pub(super) fn new() -> Result<Self, CudaError> {
        Self::with(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }
    fn with(flags: sys::CUevent_flags) -> Result<Self, CudaError> {
        result::event::create(flags).map(Self).map_err(call("cuEventCreate", String::new))
    }
    pub(super) fn record(&self, queue: &Queue) -> Result<(), CudaError> {
        // SAFETY: both live.
        unsafe { result::event::record(self.0, queue.0) }.map_err(call("cuEventRecord", String::new))
    }
    pub(super) fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the event lives.
        unsafe { result::event::synchronize(self.0) }.map_err(call("cuEventSynchronize", String::new))
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        // SAFETY: created in `new`.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}

/// Pinned host memory.
#[derive(Debug)]
pub(super) struct Pinned {
    memory: NonNull<u8>,
    bytes: usize,
}

impl Pinned {
    pub(super) fn new(bytes: usize) -> Result<Self, CudaError> {
        Self::with(bytes, 0)
    }
    /// That kernels can read, at [`Pinned::device_address`].
    pub(super) fn mapped(bytes: usize) -> Result<Self, CudaError> {
        Self::with(bytes, sys::CU_MEMHOSTALLOC_DEVICEMAP)
    }
    fn with(bytes: usize, flags: u32) -> Result<Self, CudaError> {
        let sizes = || format!("{bytes} bytes of pinned host memory");
        // SAFETY: a context is current; freed in `drop`.
        let memory = unsafe { result::malloc_host(bytes, flags) }.map_err(call("cuMemHostAlloc", sizes))?;
        let memory = NonNull::new(memory.cast::<u8>()).ok_or(CudaError::NoDriver)?;
        Ok(Self { memory, bytes })
    }
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }
    pub(super) fn len(&self) -> usize {
        self.bytes
    }
    /// Where kernels see mapped memory.
    pub(super) fn device_address(&self) -> Result<u64, CudaError> {
        device_address(self.memory.as_ptr())
    }
    /// The bytes; no copy that the device makes may be under way in `start .. start + len`.
    pub(super) fn part(&self, start: usize, len: usize) -> Option<&[u8]> {
        if start.checked_add(len)? > self.bytes {
            return None;
        }
        // SAFETY: inside the allocation, which was written by a completed copy or by the host.
        Some(unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(start), len) })
    }
    /// As [`Pinned::part`], to be written.
    pub(super) fn part_mut(&mut self, start: usize, len: usize) -> Option<&mut [u8]> {
        if start.checked_add(len)? > self.bytes {
            return None;
        }
        // SAFETY: as in `part`, and `self` is borrowed mutably.
        Some(unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr().add(start), len) })
    }
}

// SAFETY: what is written to it by several threads, the writers order.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`.
        let _ = unsafe { result::free_host(self.memory.as_ptr().cast::<c_void>()) };
    }
}

/// One allocation of device memory.
#[derive(Debug)]
pub(super) struct Memory {
    address: u64,
}

impl Memory {
    pub(super) fn new(bytes: u64) -> Result<Self, CudaError> {
        let sizes = || match result::mem_get_info() {
            Ok((free, total)) => format!("{bytes} bytes; {free} of the device's {total} are free"),
            Err(_) => format!("{bytes} bytes"),
        };
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: a context is current; freed in `drop`.
        let address = unsafe { result::malloc_sync(size) }.map_err(call("cuMemAlloc", sizes))?;
        Ok(Self { address })
    }
    pub(super) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; the device waits for its streams before it drops this.
        let _ = unsafe { result::free_sync(self.address) };
    }
}

/// Host memory whose pages the driver has locked, so that the copy engine and kernels can read them. One registration: a copy
/// may not reach from one into another.
#[derive(Debug)]
pub(super) struct Registered {
    start: *mut c_void,
    mapped: u64,
}

impl Registered {
    /// Registers `len` bytes from `start` on, a page's start.
    ///
    /// # Safety
    /// The bytes are mapped, and stay so for as long as the answer lives.
    pub(super) unsafe fn new(start: *const u8, len: usize) -> Result<Self, CudaError> {
        let range = start.cast_mut().cast::<c_void>();
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the range is mapped and outlives the registration, by the caller's promise.
        unsafe { sys::cuMemHostRegister_v2(range, len, flags) }
            .result()
            .map_err(call("cuMemHostRegister", || format!("{len} bytes")))?;
        let mut registered = Self { start: range, mapped: 0 };
        registered.mapped = device_address(start)?;
        Ok(registered)
    }

    /// Where kernels see the memory.
    pub(super) fn mapped(&self) -> u64 {
        self.mapped
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: registered in `new`.
        let _ = unsafe { sys::cuMemHostUnregister(self.start) };
    }
}

/// Where kernels see host memory that is mapped or registered.
pub(super) fn device_address(host: *const u8) -> Result<u64, CudaError> {
    let mut address = 0u64;
    // SAFETY: the driver refuses what it has not mapped.
    unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut address, host.cast_mut().cast::<c_void>(), 0) }
        .result()
        .map_err(call("cuMemHostGetDevicePointer", String::new))?;
    Ok(address)
}

/// Queues a copy to the device.
///
/// # Safety
/// `from .. from + bytes` is pinned and stays as it is until the copy is done; `to` is device memory of that length.
pub(super) unsafe fn copy_in(queue: &Queue, from: *const u8, to: u64, bytes: usize) -> Result<(), CudaError> {
    // SAFETY: the caller's promise.
    unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast::<c_void>(), bytes, queue.0) }
        .result()
        .map_err(call("cuMemcpyHtoDAsync", || format!("{bytes} bytes to {to:#x}")))
}

/// Queues a copy to the host.
///
/// # Safety
/// As [`copy_in`], the other way round.
pub(super) unsafe fn copy_out(queue: &Queue, from: u64, to: *mut u8, bytes: usize) -> Result<(), CudaError> {
    // SAFETY: the caller's promise.
    unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast::<c_void>(), from, bytes, queue.0) }
        .result()
        .map_err(call("cuMemcpyDtoHAsync", || format!("{bytes} bytes from {from:#x}")))
}
