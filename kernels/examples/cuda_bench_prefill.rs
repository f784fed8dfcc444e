//! Rates of the tensor-core kernels in the shape of Qwen3-30B-A3B on this machine's first CUDA device:
//! `cargo run --release -p assay-kernels --example cuda_bench_prefill [-- [PEAK] [short]]`, PEAK being the device's BF16 rate in TFLOP/s (788 by
//! default: an H200's, measured by a product of 8192 x 8192 x 8192). With `short` only what a message behind a long conversation takes.
//!
//! Each figure is the median of 15 launches timed by events, over buffers that together exceed the level-2 cache.
#![allow(clippy::unwrap_used)]

use std::cell::RefCell;

use assay_kernels::cuda::{
    Cuda, CudaError, DeviceImage, DeviceMatrix, DevicePlan, DeviceSlice, GemmProduct, Instruction, Stream, image_bytes,
    plan_words, slot_image_bytes,
};
use assay_kernels::layout::{ExpertLayout, MatrixFormat, matrix_bytes};
use assay_kernels::{Activation, KvFormat, KvLayout, twin};
use bytemuck::Pod;
use cudarc::driver::{result, sys};

const HIDDEN: usize = 2048;
const INTER: usize = 768;
const EXPERTS: usize = 128;
const TOP_K: usize = 8;
const HEADS: usize = 32;
const KV_HEADS: usize = 4;
const HEAD_DIM: usize = 128;
const SAMPLES: usize = 15;

struct Bench {
    cuda: Cuda,
    stream: Stream,
    raw: sys::CUstream,
    peak: f64,
    allocated: RefCell<Vec<u64>>,
}

impl Bench {
    fn memory<T>(&self, len: usize) -> DeviceSlice<T> {
        // SAFETY: freed by `free`, after the stream has been waited for; nothing else has the address.
        unsafe {
            let address = result::malloc_sync(len * size_of::<T>()).unwrap();
            self.allocated.borrow_mut().push(address);
            DeviceSlice::new(address, len)
        }
    }

    fn upload<T: Pod>(&self, values: &[T]) -> DeviceSlice<T> {
        let slice = self.memory(values.len());
        // SAFETY: the slice is as long as the values.
        unsafe { result::memcpy_htod_sync(slice.address(), values).unwrap() };
        slice
    }

    /// Fills device memory with a repeated pattern of a mebibyte; `byte` makes it from its index and a random number.
    fn fill(&self, address: u64, bytes: usize, byte: impl Fn(usize, u32) -> u8) {
        const PATTERN: usize = 1 << 20;
        let mut state = 12_345u32;
        let mut next = |at| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            byte(at, state >> 8)
        };
        let pattern: Vec<u8> = (0..PATTERN.min(bytes)).map(&mut next).collect();
        for at in (0..bytes).step_by(PATTERN) {
            // SAFETY: within what `memory` has allocated for the caller.
            unsafe {
                result::memcpy_htod_sync(address + at as u64, &pattern[..PATTERN.min(bytes - at)]).unwrap();
            }
        }
    }

    /// `len` f32 of either sign and magnitude 0.5 to 2.
    fn floats(&self, len: usize) -> DeviceSlice<f32> {
        let slice = self.memory::<f32>(len);
        self.fill(slice.address(), len * 4, |at, random| match at % 4 {
            3 => (random as u8 & 0x80) | 0x3f,
            _ => random as u8,
        });
        slice
    }

    /// BF16 of either sign and magnitude about 2^-6.
    fn fill_bf16(&self, address: u64, bytes: usize) {
        self.fill(address, bytes, |at, random| match at % 2 {
            1 => (random as u8 & 0x80) | 0x3c,
            _ => random as u8,
        });
    }

    /// A matrix of random integers with scales of about 2^-7, or of BF16.
    fn fill_matrix(&self, address: u64, format: MatrixFormat, rows: usize, cols: usize) {
        let bytes = matrix_bytes(format, rows, cols).unwrap();
        match format.group_bytes() {
            None => self.fill_bf16(address, bytes),
            Some(group_bytes) => {
                let integers = rows.div_ceil(16) * cols.div_ceil(128) * group_bytes;
                self.fill(address, integers, |_, random| random as u8);
                self.fill(address + integers as u64, bytes - integers, |_, _| 0x3c);
            }
        }
    }

    fn free(&self) {
        // SAFETY: the stream exists; the memory was allocated by `memory` and no kernel runs.
        unsafe {
            result::stream::synchronize(self.raw).unwrap();
            for address in self.allocated.borrow_mut().drain(..) {
                result::free_sync(address).unwrap();
            }
        }
    }

    /// Prints the median time of `run(i)`, i counting launches, and its rate.
    fn time(&self, what: &str, flop: f64, bytes: f64, run: impl Fn(usize) -> Result<(), CudaError>) {
        let event = || result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).unwrap();
        let (start, end) = (event(), event());
        let mut samples: Vec<f64> = (0..SAMPLES + 3)
            .map(|i| {
                // SAFETY: events and stream exist until the end of this function.
                unsafe {
                    result::event::record(start, self.raw).unwrap();
                    run(i).unwrap();
                    result::event::record(end, self.raw).unwrap();
                    result::event::synchronize(end).unwrap();
                    f64::from(result::event::elapsed(start, end).unwrap()) * 1e3
                }
            })
            .skip(3)
            .collect();
        samples.sort_by(f64::total_cmp);
        let us = samples[SAMPLES / 2];
        let (tflops, rate) = (flop / us / 1e6, bytes / us / 1e3);
        println!(
            "{what:46} {us:9.1} us [{:.1} {:.1}] {tflops:7.1} TFLOP/s {:5.1} % {rate:7.0} GB/s",
            samples[SAMPLES / 10],
            samples[SAMPLES - 1 - SAMPLES / 10],
            100.0 * tflops / self.peak
        );
        // SAFETY: created above; the stream has been waited for.
        unsafe {
            result::event::destroy(start).unwrap();
            result::event::destroy(end).unwrap();
        }
    }
}

fn instructions(bench: &Bench) -> Vec<Instruction> {
    match bench.cuda.instruction() {
        Instruction::Mma => vec![Instruction::Mma],
        Instruction::Wgmma => vec![Instruction::Mma, Instruction::Wgmma],
    }
}

fn dense(bench: &Bench, format: MatrixFormat, tokens: usize, rows: usize, cols: usize) {
    let x = bench.floats(tokens * cols);
    let image = DeviceImage::new(cols, bench.memory(image_bytes(tokens, cols).unwrap())).unwrap();
    let out = bench.memory(tokens * rows);
    let bytes = matrix_bytes(format, rows, cols).unwrap();
    // A few copies: weights come from memory, as they would between layers.
    let copies: Vec<DeviceMatrix> = (0..(100_000_000 / bytes).clamp(1, 8))
        .map(|_| {
            let w = bench.memory(bytes);
            bench.fill_matrix(w.address(), format, rows, cols);
            DeviceMatrix::new(format, rows, cols, w).unwrap()
        })
        .collect();
    bench.time(&format!("pack {tokens} x {cols}"), 0.0, (6 * tokens * cols) as f64, |_| {
        bench.cuda.pack_rows(bench.stream, x, image)
    });
    for instruction in instructions(bench) {
        let what = format!("{} {} {tokens} x {rows} x {cols}", format.name(), instruction.name());
        let work = 2.0 * (tokens * rows * cols) as f64;
        bench.time(&what, work, (bytes + 2 * tokens * cols + 4 * tokens * rows) as f64, |i| {
            bench.cuda.gemm(bench.stream, instruction, image, copies[i % copies.len()], None, out)
        });
    }
    bench.free();
}

/// Queries, keys and values of a layer in one launch.
fn projections(bench: &Bench, format: MatrixFormat, tokens: usize) {
    let x = bench.floats(tokens * HIDDEN);
    let image = DeviceImage::new(HIDDEN, bench.memory(image_bytes(tokens, HIDDEN).unwrap())).unwrap();
    bench.cuda.pack_rows(bench.stream, x, image).unwrap();
    let widths = [HEADS, KV_HEADS, KV_HEADS].map(|heads| heads * HEAD_DIM);
    let products = widths.map(|rows| {
        let w = bench.memory(matrix_bytes(format, rows, HIDDEN).unwrap());
        bench.fill_matrix(w.address(), format, rows, HIDDEN);
        let w = DeviceMatrix::new(format, rows, HIDDEN, w).unwrap();
        GemmProduct { w, bias: None, out: bench.memory(tokens * rows) }
    });
    let rows: usize = widths.iter().sum();
    for instruction in instructions(bench) {
        let what = format!("{} {} q, k and v, {tokens} tokens", format.name(), instruction.name());
        bench.time(&what, 2.0 * (tokens * rows * HIDDEN) as f64, 0.0, |_| {
            bench.cuda.gemm_many(bench.stream, instruction, image, &products)
        });
    }
    bench.free();
}

/// All experts of a layer; each token's experts are drawn evenly.
fn experts(bench: &Bench, format: MatrixFormat, tokens: usize) {
    let layout = ExpertLayout::new(format, HIDDEN, INTER, false).unwrap();
    let slots = tokens * TOP_K;
    let mut state = 7u64;
    let mut random = |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    let mut ids = Vec::with_capacity(slots);
    for _ in 0..tokens {
        let first = ids.len();
        while ids.len() < first + TOP_K {
            let id = random(EXPERTS) as u32;
            if !ids[first..].contains(&id) {
                ids.push(id);
            }
        }
    }
    let (mut order, mut offsets) = (vec![0; slots], vec![0; EXPERTS + 1]);
    twin::permute(&ids, EXPERTS, &mut order, &mut offsets).unwrap();
    let weights = bench.memory::<u8>(layout.bytes * EXPERTS);
    let table: Vec<u64> = (0..EXPERTS).map(|e| weights.address() + (e * layout.bytes) as u64).collect();
    for expert in &table {
        bench.fill_matrix(*expert, format, INTER, HIDDEN);
        bench.fill_matrix(expert + layout.up_offset as u64, format, INTER, HIDDEN);
        bench.fill_matrix(expert + layout.down_offset as u64, format, HIDDEN, INTER);
    }
    let (order, offsets, table) = (bench.upload(&order), bench.upload(&offsets), bench.upload(&table));
    let plan = DevicePlan::new(slots, EXPERTS, bench.memory(plan_words(slots, EXPERTS).unwrap())).unwrap();
    let image = |cols| DeviceImage::new(cols, bench.memory(slot_image_bytes(slots, EXPERTS, cols).unwrap())).unwrap();
    let (x, input, middle) = (bench.floats(tokens * HIDDEN), image(HIDDEN), image(INTER));
    let out = bench.memory(slots * HIDDEN);
    let (cuda, stream) = (&bench.cuda, bench.stream);
    bench.time(&format!("plan {slots} slots"), 0.0, 0.0, |_| cuda.grouped_plan(stream, offsets, plan));
    bench.time(&format!("pack {slots} slots"), 0.0, (2 * slots * HIDDEN + 4 * tokens * HIDDEN) as f64, |_| {
        cuda.pack_slots(stream, x, TOP_K, order, plan, input)
    });
    let half = 2.0 * (slots * HIDDEN * INTER) as f64;
    let bytes = (layout.bytes * EXPERTS) as f64;
    for instruction in instructions(bench) {
        let name = format!("{} {}", format.name(), instruction.name());
        let moved = bytes * 2.0 / 3.0 + (2 * slots * (HIDDEN + INTER)) as f64;
        bench.time(&format!("{name} gate and up, {tokens} tokens"), 2.0 * half, moved, |_| {
            let activation = Activation::SwiGlu;
            cuda.grouped_gemm_gate_up(stream, instruction, table, &layout, plan, input, activation, middle)
        });
        let moved = bytes / 3.0 + (slots * (2 * INTER + 4 * HIDDEN)) as f64;
        bench.time(&format!("{name} down, {tokens} tokens"), half, moved, |_| {
            cuda.grouped_gemm_down(stream, instruction, table, &layout, plan, order, middle, out)
        });
    }
    bench.free();
}

/// Queries `past..past + tokens` of a sequence; 4 FLOP a dimension, head and visible position.
fn attention(bench: &Bench, format: KvFormat, past: usize, tokens: usize) {
    let layout = KvLayout { format, capacity_tokens: past + tokens, kv_heads: KV_HEADS, head_dim: HEAD_DIM };
    let cache = bench.memory::<u8>(layout.bytes().unwrap());
    // Pairs of BF16 are as good as f32.
    bench.fill_bf16(cache.address(), cache.len());
    let q = bench.floats(tokens * HEADS * HEAD_DIM);
    let out = bench.memory(q.len());
    let visible: usize = (0..tokens).map(|t| past + t + 1).sum();
    let flop = (4 * visible * HEADS * HEAD_DIM) as f64;
    let mut instructions = vec![Instruction::Mma, bench.cuda.prefill_attention_instruction(&layout)];
    instructions.dedup();
    for instruction in instructions {
        let (cuda, stream, form) = (&bench.cuda, bench.stream, (0.088, None));
        bench.time(&format!("attention {format:?} {} {tokens} at {past}", instruction.name()), flop, 0.0, |_| {
            cuda.prefill_attention_by(stream, instruction, q, HEADS, past, layout, cache, form, None, out)
        });
    }
    bench.free();
}

fn main() {
    let (words, numbers): (Vec<String>, Vec<String>) = std::env::args().skip(1).partition(|word| word == "short");
    let peak = numbers.first().map_or(788.0, |peak| peak.parse().unwrap());
    let cuda = Cuda::open(0).unwrap();
    println!("{}, percentages of {peak} TFLOP/s", cuda.properties().name);
    let raw = result::stream::create(result::stream::StreamKind::NonBlocking).unwrap();
    // SAFETY: just created, never destroyed.
    let stream = unsafe { Stream::from_raw(raw) };
    let bench = Bench { cuda, stream, raw, peak, allocated: RefCell::default() };
    for tokens in [16, 96, 256] {
        experts(&bench, MatrixFormat::Int4, tokens);
        projections(&bench, MatrixFormat::Int4, tokens);
        dense(&bench, MatrixFormat::Int4, tokens, HIDDEN, HEADS * HEAD_DIM);
        attention(&bench, KvFormat::Bf16, 10_000, tokens);
    }
    if !words.is_empty() {
        return;
    }
    for tokens in [512, 2048, 8192] {
        experts(&bench, MatrixFormat::Int4, tokens);
    }
    experts(&bench, MatrixFormat::Bf16, 8192);
    for format in [MatrixFormat::Int4, MatrixFormat::Bf16] {
        for tokens in [512, 8192] {
            dense(&bench, format, tokens, HEADS * HEAD_DIM, HIDDEN);
        }
        dense(&bench, format, 8192, KV_HEADS * HEAD_DIM, HIDDEN);
        projections(&bench, format, 8192);
        dense(&bench, format, 8192, HIDDEN, HEADS * HEAD_DIM);
    }
    dense(&bench, MatrixFormat::Bf16, 8192, 8192, 8192);
    for (past, tokens) in [(0, 2048), (0, 8192), (24_576, 8192), (0, 32_768)] {
        attention(&bench, KvFormat::Bf16, past, tokens);
    }
    attention(&bench, KvFormat::F32, 0, 8192);
}
