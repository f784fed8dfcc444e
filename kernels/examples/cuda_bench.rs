//! Rates of the batch-1 kernels in the shape of Qwen3-30B-A3B on this machine's first CUDA device:
//! `cargo run --release -p assay-kernels --example cuda_bench`.
//!
//! Each figure is a kernel's share of a captured graph of launches over buffers that together exceed the level-2 cache, the
//! median of 15 replays. Per cent are of the read bandwidth, which is measured first, over 4 GiB. With `rows` behind it: only those
//! that are bound by their launch.
#![allow(clippy::unwrap_used)]

mod support;

use assay_kernels::cuda::{Cuda, DeviceMatrix, DeviceSlice, attention_workspace_bytes};
use assay_kernels::layout::{ExpertLayout, MatrixFormat, matrix_bytes};
use assay_kernels::{Activation, Choice, KvFormat, KvLayout, Routing};
use support::Bench;

const HIDDEN: usize = 2048;
const INTER: usize = 768;
const EXPERTS: usize = 128;
const TOP_K: usize = 8;
const HEADS: usize = 32;
const KV_HEADS: usize = 4;
const HEAD_DIM: usize = 128;
const VOCABULARY: usize = 151_936;

/// Bytes that buffers of one kind exceed together: several times a level-2 cache.
const ROTATED_BYTES: usize = 400 << 20;

/// How many buffers of `bytes` exceed the level-2 cache several times.
fn copies(bytes: usize) -> usize {
    (ROTATED_BYTES / bytes).clamp(2, 256)
}

fn linear(bench: &Bench, format: MatrixFormat, what: &str, rows: usize, cols: usize) {
    let bytes = matrix_bytes(format, rows, cols).unwrap();
    let count = copies(bytes);
    let weights = bench.bytes(count * bytes, 0x39);
    let matrices: Vec<DeviceMatrix> = (0..count)
        .map(|i| {
            // SAFETY: part of `weights`.
            let part = unsafe { DeviceSlice::new(weights.address() + (i * bytes) as u64, bytes) };
            DeviceMatrix::new(format, rows, cols, part).unwrap()
        })
        .collect();
    let (x, out) = (bench.floats(cols), bench.memory(rows));
    let what = format!("linear {} {what} {rows} x {cols}", format.name());
    bench.show(&what, bytes, count, |i| bench.cuda.linear(bench.stream, x, matrices[i], None, out));
    bench.free();
}

/// One token's experts, another set each launch.
fn experts(bench: &Bench, format: MatrixFormat) {
    let layout = ExpertLayout::new(format, HIDDEN, INTER, false).unwrap();
    let layers = copies(EXPERTS * layout.bytes);
    let weights = bench.bytes(layers * EXPERTS * layout.bytes, 0x39);
    let sets = layers * EXPERTS / TOP_K;
    let address = |expert: usize| weights.address() + (expert * layout.bytes) as u64;
    let tables: Vec<DeviceSlice<u64>> = (0..layers)
        .map(|layer| bench.upload(&(0..EXPERTS).map(|e| address(layer * EXPERTS + e)).collect::<Vec<u64>>()))
        .collect();
    let ids: Vec<DeviceSlice<u32>> = (0..EXPERTS / TOP_K)
        .map(|set| bench.upload(&(0..TOP_K as u32).map(|k| k * 16 + set as u32).collect::<Vec<u32>>()))
        .collect();
    let (x, act) = (bench.floats(HIDDEN), bench.floats(TOP_K * INTER));
    let (weights, rows, out) = (bench.floats(TOP_K), bench.floats(TOP_K * HIDDEN), bench.memory(HIDDEN));
    let (cuda, stream) = (&bench.cuda, bench.stream);
    let gate_up = |i: usize| {
        let (ids, table) = (ids[i % ids.len()], tables[i / ids.len()]);
        cuda.grouped_gate_up(stream, x, TOP_K, ids, table, &layout, Activation::SwiGlu, act)
    };
    let down = |i: usize| cuda.grouped_down(stream, act, ids[i % ids.len()], tables[i / ids.len()], &layout, rows);
    let (down_bytes, name) = (TOP_K * layout.down().len(), format.name());
    bench.show(&format!("experts {name} gate, up"), 2 * TOP_K * layout.gate().len(), sets, gate_up);
    bench.show(&format!("experts {name} down"), down_bytes, sets, down);
    bench.show(&format!("experts {name} all"), TOP_K * layout.bytes, sets, |i| {
        gate_up(i)?;
        down(i)?;
        cuda.combine(stream, rows, weights, TOP_K, out)
    });
    bench.free();
}

fn attention(bench: &Bench, format: KvFormat, context: usize) {
    let layout = KvLayout { format, capacity_tokens: context, kv_heads: KV_HEADS, head_dim: HEAD_DIM };
    let bytes = layout.bytes().unwrap();
    let count = copies(bytes);
    let all = bench.bytes(count * bytes, 0x3c);
    // SAFETY: parts of `all`.
    let cache = |i: usize| unsafe { DeviceSlice::new(all.address() + (i * bytes) as u64, bytes) };
    let (q, out) = (bench.floats(HEADS * HEAD_DIM), bench.memory(HEADS * HEAD_DIM));
    let scratch = bench.memory(attention_workspace_bytes(1, HEADS, HEAD_DIM, context).unwrap());
    let form = (0.088, None);
    let first = (context - 1, None);
    bench.show(&format!("attention {format:?} at {context}"), bytes, count, |i| {
        bench.cuda.attention(bench.stream, q, HEADS, first, layout, cache(i), form, None, scratch, out)
    });
    bench.free();
}

/// The sampled choice, from bell-shaped logits of standard deviation 3, and from equal ones, which all fall into one bin.
fn sampled(bench: &Bench) {
    let mut state = 1u64;
    let mut unit = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let values: Vec<f32> = (0..VOCABULARY).map(|_| ((0..4).map(|_| unit()).sum::<f32>() - 2.0) * 5.2).collect();
    let (logits, equal, choice) = (bench.upload(&values), bench.floats(VOCABULARY), bench.memory(1));
    for (what, logits, top_k, top_p) in [
        ("sample", logits, 0, 1.0),
        ("sample, top-p 0.95", logits, 0, 0.95),
        ("sample, top-k 40", logits, 40, 1.0),
        ("sample, top-k 40, top-p 0.95", logits, 40, 0.95),
        ("sample, top-k 40, top-p 0.95, all equal", equal, 40, 0.95),
    ] {
        let how = Choice::new(0.8, top_k, top_p, 0.0, 1 << 63).unwrap();
        bench.show(what, 4 * VOCABULARY, 16, |_| bench.cuda.sample(bench.stream, logits, &how, choice));
    }
}

/// What is bound by its launch.
fn rows(bench: &Bench) {
    const COUNT: usize = 64;
    let (cuda, stream) = (&bench.cuda, bench.stream);
    let (x, weight, out) = (bench.floats(HIDDEN), bench.floats(HIDDEN), bench.memory(HIDDEN));
    bench.show("rms_norm", 12 * HIDDEN, COUNT, |_| cuda.rms_norm(stream, x, weight, 1e-6, out));
    let (q, norm, table) = (bench.floats(HEADS * HEAD_DIM), bench.floats(HEAD_DIM), bench.floats(1024 * HEAD_DIM / 2));
    bench.show("head_norm_rope, 32 heads", 8 * q.len(), COUNT, |_| {
        cuda.head_norm_rope(stream, q, HEADS, HEAD_DIM, HEAD_DIM, Some(norm), 1e-6, table, table, (1000, None))
    });
    let layout = KvLayout { format: KvFormat::Bf16, capacity_tokens: 1024, kv_heads: KV_HEADS, head_dim: HEAD_DIM };
    let (kv, cache) = (bench.floats(KV_HEADS * HEAD_DIM), bench.bytes(layout.bytes().unwrap(), 0));
    bench.show("kv_append", 12 * kv.len(), COUNT, |_| cuda.kv_append(stream, kv, kv, (1000, None), layout, cache));
    let (logits, ids, weights) = (bench.floats(EXPERTS), bench.memory(TOP_K), bench.memory(TOP_K));
    let routing = Routing::softmax(true);
    bench.show("router_topk, 8 of 128", 4 * EXPERTS, COUNT, |_| {
        cuda.router_topk(stream, logits, None, EXPERTS, TOP_K, &routing, ids, weights)
    });
    let (order, offsets) = (bench.memory(TOP_K), bench.memory(EXPERTS + 1));
    bench.show("permute", 4 * EXPERTS, COUNT, |_| cuda.permute(stream, ids, order, offsets));
    let slots = bench.floats(TOP_K * HIDDEN);
    bench.show("combine", 4 * slots.len(), COUNT, |_| cuda.combine(stream, slots, weights, TOP_K, out));
    bench.show("add_assign", 12 * HIDDEN, COUNT, |_| cuda.add_assign(stream, x, weight, 1.0));
    let (logits, choice) = (bench.floats(VOCABULARY), bench.memory(1));
    bench.show("argmax", 4 * VOCABULARY, COUNT, |_| cuda.argmax(stream, logits, choice));
    sampled(bench);
    let bytes = matrix_bytes(MatrixFormat::Bf16, 4096, HIDDEN).unwrap();
    let table = DeviceMatrix::new(MatrixFormat::Bf16, 4096, HIDDEN, bench.bytes(bytes, 0x3c)).unwrap();
    let id = bench.upload(&[77u32]);
    bench.show("embed", 6 * HIDDEN, COUNT, |_| cuda.embed(stream, id, table, out));
    bench.show("nothing", 0, COUNT, |_| cuda.nothing(stream));
    bench.free();
}

fn main() {
    if Cuda::count() == 0 {
        eprintln!("not run: no CUDA device");
        return;
    }
    let bench = Bench::open();
    println!("{}: reads {:.0} GB/s", bench.cuda.properties().name, bench.bandwidth);
    if std::env::args().nth(1).as_deref() == Some("rows") {
        return rows(&bench);
    }
    let width = HEADS * HEAD_DIM;
    for format in [MatrixFormat::Bf16, MatrixFormat::Int4] {
        linear(&bench, format, "q", width, HIDDEN);
        linear(&bench, format, "k", KV_HEADS * HEAD_DIM, HIDDEN);
        linear(&bench, format, "o", HIDDEN, width);
        linear(&bench, format, "router", EXPERTS, HIDDEN);
        linear(&bench, format, "head", VOCABULARY, HIDDEN);
        experts(&bench, format);
    }
    for format in [KvFormat::Bf16, KvFormat::F32] {
        for context in [100, 1000, 8192, 32_768] {
            attention(&bench, format, context);
        }
    }
    rows(&bench);
}
