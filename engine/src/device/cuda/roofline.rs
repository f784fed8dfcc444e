//! What a card allows, measured: memory, link by size and path, matrix product, launches. A speed's share of its limit is taken
//! against figures of the same run.

use std::ffi::c_void;
use std::time::Instant;

use assay_kernels::cuda::{Cuda, CudaError, DeviceSlice};
use cudarc::cublas;

use super::super::DeviceError;
use super::driver::{Memory, Pinned, Queue, Timer, copy_in, copy_out};
use super::gauge::{Description, describe};

/// Sizes of copies over the link, in bytes: a small expert, larger ones, a layer.
const COPY_BYTES: [usize; 5] = [256 << 10, 1 << 20, 4 << 20, 20 << 20, 256 << 20];

/// Blocks of the copy that multiprocessors make; more gain nothing.
const COPY_BLOCKS: u32 = 16;

/// Bytes read for the memory's rate: far more than any cache holds.
const READ_BYTES: usize = 2 << 30;

/// Side of the square matrix product.
const PRODUCT_SIDE: usize = 8192;

/// Repetitions of each measurement; the median counts.
const SAMPLES: usize = 9;

/// One size of copy from host to device.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct LinkRate {
    /// Bytes a copy.
    pub bytes: u64,
    /// By the copy engine, 10⁹ bytes a second.
    pub copy_engine_gb_s: f64,
    /// By multiprocessors reading mapped host memory.
    pub multiprocessors_gb_s: f64,
}

/// The figures.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Roofline {
    /// The card's name.
    pub device: String,
    /// Driver version.
    pub driver: String,
    /// CUDA version of the driver.
    pub cuda: String,
    /// Reading device memory, 10⁹ bytes a second.
    pub memory_read_gb_s: f64,
    /// Host to device.
    pub link: Vec<LinkRate>,
    /// A BF16 product of 8,192³ by cuBLAS on random data, 10¹² operations a second; `None` where cuBLAS is not installed.
    pub bf16_product_tflop_s: Option<f64>,
    /// Launching a kernel, one after another.
    pub launch_us: f64,
    /// A node of a graph.
    pub graph_node_us: f64,
    /// A kernel, 64 bytes back, and waiting for them.
    pub round_trip_us: f64,
}

/// Measures device `ordinal`. Takes some seconds and 3 GiB of device memory.
///
/// # Errors
/// `Cuda`, `Nvml`.
pub fn measure(ordinal: usize) -> Result<Roofline, DeviceError> {
    let Description { name, driver, cuda } = describe(ordinal)?;
    let bench = Bench::new(ordinal)?;
    Ok(Roofline {
        device: name,
        driver,
        cuda,
        memory_read_gb_s: bench.memory_read()?,
        link: COPY_BYTES.iter().map(|&bytes| bench.link(bytes)).collect::<Result<_, _>>()?,
        bf16_product_tflop_s: bench.product()?,
        launch_us: bench.launches()?,
        graph_node_us: bench.graph_nodes()?,
        round_trip_us: bench.round_trips()?,
    })
}

struct Bench {
    timer: Timer,
    memory: Memory,
    host: Pinned,
    queue: Queue,
    cuda: Cuda,
}

impl Drop for Bench {
    fn drop(&mut self) {
        // After an error work may still use what is freed now.
        let _ = self.queue.synchronize();
    }
}

impl Bench {
    fn new(ordinal: usize) -> Result<Self, CudaError> {
        let cuda = Cuda::open(ordinal)?;
        let mut bench = Self {
            timer: Timer::new()?,
            memory: Memory::new(READ_BYTES as u64)?,
            host: Pinned::mapped(2 * COPY_BYTES[COPY_BYTES.len() - 1])?,
            queue: Queue::new()?,
            cuda,
        };
        bench.scramble()?;
        Ok(bench)
    }

    /// Random bytes, by a copy from the host repeated: zeros would run faster than data.
    fn scramble(&mut self) -> Result<(), CudaError> {
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        // Exponents near one: a product of such numbers stays finite.
        let words: Vec<u16> = (0..self.host.len() / 2)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((state >> 48) as u16 & 0x80FF) | 0x3F00
            })
            .collect();
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        if let Some(part) = self.host.part_mut(0, bytes.len()) {
            part.copy_from_slice(bytes);
        }
        for start in (0..READ_BYTES).step_by(self.host.len()) {
            let bytes = self.host.len().min(READ_BYTES - start);
            // SAFETY: pinned, and both ranges lie inside their allocations.
            unsafe { copy_in(&self.queue, self.host.as_ptr(), self.memory.address() + start as u64, bytes)? };
        }
        self.queue.synchronize()
    }

    /// Median seconds of one run of `work`, which is queued `times` times in a row for a sample.
    fn seconds(&self, times: usize, mut work: impl FnMut() -> Result<(), CudaError>) -> Result<f64, CudaError> {
        work()?;
        let mut samples = Vec::with_capacity(SAMPLES);
        for _ in 0..SAMPLES {
            self.timer.start(&self.queue)?;
            for _ in 0..times {
                work()?;
            }
            samples.push(self.timer.stop(&self.queue)? / times as f64);
        }
        samples.sort_by(f64::total_cmp);
        Ok(samples[SAMPLES / 2])
    }

    fn slice<T>(&self, offset: usize, len: usize) -> DeviceSlice<T> {
        // SAFETY: callers stay inside the allocation, and one kernel at a time uses it.
        unsafe { DeviceSlice::new(self.memory.address() + offset as u64, len) }
    }

    fn memory_read(&self) -> Result<f64, CudaError> {
        let (from, out) = (self.slice(0, READ_BYTES), self.slice(0, 1));
        let seconds = self.seconds(4, || self.cuda.read_words(self.queue.stream(), from, out))?;
        Ok(READ_BYTES as f64 / seconds / 1e9)
    }

    fn link(&self, bytes: usize) -> Result<LinkRate, CudaError> {
        let times = (64 << 20) / bytes + 4;
        let mut offset = 0;
        let mut next = || {
            offset = if offset + 2 * bytes <= self.host.len() { offset + bytes } else { 0 };
            offset
        };
        let engine = self.seconds(times, || {
            let at = next();
            // SAFETY: pinned, inside both allocations.
            unsafe { copy_in(&self.queue, self.host.as_ptr().add(at), self.memory.address() + at as u64, bytes) }
        })?;
        let mapped = self.host.device_address()?;
        let kernel = self.seconds(times, || {
            let at = next();
            // SAFETY: mapped host memory, inside the allocation.
            let from = unsafe { DeviceSlice::new(mapped + at as u64, bytes) };
            self.cuda.copy_words(self.queue.stream(), from, self.slice(at, bytes), COPY_BLOCKS)
        })?;
        let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
        Ok(LinkRate { bytes: bytes as u64, copy_engine_gb_s: rate(engine), multiprocessors_gb_s: rate(kernel) })
    }

    fn launches(&self) -> Result<f64, CudaError> {
        Ok(1e6 * self.seconds(1000, || self.cuda.nothing(self.queue.stream()))?)
    }

    fn graph_nodes(&self) -> Result<f64, CudaError> {
        const NODES: usize = 1000;
        let graph = self.queue.capture(|| (0..NODES).try_for_each(|_| self.cuda.nothing(self.queue.stream())))?;
        Ok(1e6 * self.seconds(4, || graph.launch(&self.queue))? / NODES as f64)
    }

    fn round_trips(&self) -> Result<f64, CudaError> {
        const TRIPS: u32 = 300;
        let mut samples = Vec::new();
        for _ in 0..SAMPLES {
            let start = Instant::now();
            for _ in 0..TRIPS {
                self.cuda.nothing(self.queue.stream())?;
                // SAFETY: pinned, inside both allocations.
                unsafe { copy_out(&self.queue, self.memory.address(), self.host.as_ptr(), 64)? };
                self.queue.synchronize()?;
            }
            samples.push(start.elapsed().as_secs_f64() / f64::from(TRIPS));
        }
        samples.sort_by(f64::total_cmp);
        Ok(1e6 * samples[SAMPLES / 2])
    }

    /// `C[n, n] = A[n, n] · B[n, n]` in BF16 with f32 sums.
    fn product(&self) -> Result<Option<f64>, CudaError> {
        // SAFETY: only asks whether the library can be opened.
        if !unsafe { cublas::sys::is_culib_present() } {
            return Ok(None);
        }
        let named = |error: cublas::result::CublasError| CudaError::Call {
            call: "cublasGemmEx",
            sizes: format!("{PRODUCT_SIDE} cubed"),
            name: format!("{:?}", error.0),
            reason: "cuBLAS refused".to_owned(),
        };
        let handle = cublas::result::create_handle().map_err(named)?;
        let matrix = (PRODUCT_SIDE * PRODUCT_SIDE * size_of::<u16>()) as u64;
        let (side, base) = (PRODUCT_SIDE as i32, self.memory.address());
        let (one, zero) = (1.0f32, 0.0f32);
        let at = |index: u64| (base + index * matrix) as *mut c_void;
        let multiply = || {
            use cublas::sys::{cublasComputeType_t, cublasGemmAlgo_t, cublasOperation_t, cudaDataType};
            let (plain, bf16) = (cublasOperation_t::CUBLAS_OP_N, cudaDataType::CUDA_R_16BF);
            let (f32_sums, choice) = (cublasComputeType_t::CUBLAS_COMPUTE_32F, cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT);
            let (alpha, beta) = ((&raw const one).cast(), (&raw const zero).cast());
            // SAFETY: three square matrices one after another inside the allocation.
            unsafe {
                cublas::result::gemm_ex(
                    handle,
                    plain,
                    plain,
                    side,
                    side,
                    side,
                    alpha,
                    at(0),
                    bf16,
                    side,
                    at(1),
                    bf16,
                    side,
                    beta,
                    at(2),
                    bf16,
                    side,
                    f32_sums,
                    choice,
                )
            }
            .map_err(named)
        };
        // SAFETY: both live; a driver stream is a runtime stream.
        let placed = unsafe { cublas::result::set_stream(handle, self.queue.raw().cast()) }.map_err(named);
        let seconds = placed.and_then(|()| self.seconds(4, multiply));
        // SAFETY: created above; its work was waited for.
        let _ = unsafe { cublas::result::destroy_handle(handle) };
        Ok(Some(2.0 * (PRODUCT_SIDE as f64).powi(3) / seconds? / 1e12))
    }
}
