//! Rates of the kernel families on this machine, for tuning: `cargo run --release -p assay-kernels --example bench`.
//!
//! `bench [LEVEL]` with `portable`, `avx2` or `avx512` holds the kernels to one instruction set. `RAYON_NUM_THREADS=1`
//! gives the rate of a core.
#![allow(clippy::unwrap_used)]

use assay_kernels::layout::{MatrixFormat, matrix_bytes};
use assay_kernels::simd::{self, Level};
use assay_kernels::{Activation, AttentionForm, Choice, GateUp, KernelError, KvFormat, KvLayout, Matrix, Routing};
use std::time::Instant;

/// Best of repeated runs over a fifth of a second, in seconds.
fn best(mut f: impl FnMut() -> Result<(), KernelError>) -> f64 {
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while start.elapsed().as_secs_f64() < 0.2 {
        let once = Instant::now();
        f().unwrap();
        best = best.min(once.elapsed().as_secs_f64());
    }
    best
}

fn floats(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919) % 2003) as f32 / 1001.0 - 1.0).collect()
}

fn report(what: &str, seconds: f64, giga: f64, unit: &str) {
    println!("{what:48} {:10.1} us {:8.1} {unit}", seconds * 1e6, giga / seconds / 1e9);
}

fn linear(format: MatrixFormat, tokens: usize, rows: usize, cols: usize) {
    let bytes = vec![0x35; matrix_bytes(format, rows, cols).unwrap()];
    let w = Matrix::new(format, rows, cols, &bytes).unwrap();
    let (x, mut out) = (floats(tokens * cols), vec![0.0; tokens * rows]);
    let seconds = best(|| simd::linear(&x, w, None, &mut out));
    let work = (tokens * rows * cols) as f64;
    let what = format!("linear {} {tokens} x {rows} x {cols}", format.name());
    if tokens == 1 {
        report(&what, seconds, work, "G weights/s");
    } else {
        report(&what, seconds, 2.0 * work, "GFLOP/s");
    }
}

/// Attention of `tokens` queries after `past` positions; 4 FLOP a dimension, head and visible position.
fn attention(format: KvFormat, heads: usize, kv_heads: usize, head_dim: usize, past: usize, tokens: usize) {
    let layout = KvLayout { format, capacity_tokens: past + tokens, kv_heads, head_dim };
    let mut cache = vec![0; layout.bytes().unwrap()];
    let kv = floats((past + tokens) * kv_heads * head_dim);
    simd::kv_append(&kv, &kv, 0, layout, &mut cache).unwrap();
    let (q, mut out) = (floats(tokens * heads * head_dim), vec![0.0; tokens * heads * head_dim]);
    let form = AttentionForm::causal(0.125);
    let seconds = best(|| simd::attention(&q, heads, past, layout, &cache, form, &mut out));
    let visible = (0..tokens).map(|t| past + t + 1).sum::<usize>();
    let what = format!("attention {format:?} {heads}/{kv_heads} x {head_dim} at {past} + {tokens}");
    report(&what, seconds, (4 * visible * heads * head_dim) as f64, "GFLOP/s");
}

/// A whole routed layer: `tokens` by `top_k` of `num_experts`, evenly.
fn experts(format: MatrixFormat, tokens: usize, hidden: usize, inner: usize, num_experts: usize, top_k: usize) {
    let slots = tokens * top_k;
    let ids: Vec<u32> = (0..slots).map(|slot| ((slot * 5 + slot / 7) % num_experts) as u32).collect();
    let (mut order, mut offsets) = (vec![0; slots], vec![0; num_experts + 1]);
    simd::permute(&ids, num_experts, &mut order, &mut offsets).unwrap();
    let bytes =
        vec![
            0x35;
            num_experts
                * matrix_bytes(format, hidden, inner).unwrap().max(matrix_bytes(format, inner, hidden).unwrap())
        ];
    let bytes = &bytes;
    let bank = |rows, cols| {
        let each = matrix_bytes(format, rows, cols).unwrap();
        (0..num_experts).map(move |e| Matrix::new(format, rows, cols, &bytes[e * each..][..each]).unwrap())
    };
    let gate_up: Vec<_> = bank(inner, hidden).map(|gate| Some(GateUp { gate: gate.into(), up: gate.into() })).collect();
    let down: Vec<_> = bank(hidden, inner).map(|down| Some(down.into())).collect();
    let (x, weights) = (floats(tokens * hidden), floats(slots));
    let (mut act, mut rows, mut out) =
        (vec![0.0; slots * inner], vec![0.0; slots * hidden], vec![0.0; tokens * hidden]);
    let seconds = best(|| {
        simd::grouped_gate_up(&x, top_k, &order, &offsets, &gate_up, Activation::SwiGlu, &mut act)?;
        simd::grouped_down(&act, &order, &offsets, &down, &mut rows)?;
        simd::combine(&rows, &weights, top_k, &mut out)
    });
    let what = format!("experts {} {tokens} x {top_k} of {num_experts}, {hidden} x {inner}", format.name());
    report(&what, seconds, (slots * hidden * inner * 6) as f64, "GFLOP/s");
}

/// The families that are bound by memory or latency, in elements a second.
fn rows(tokens: usize, hidden: usize) {
    let (x, weight) = (floats(tokens * hidden), floats(hidden));
    let mut out = vec![0.0; x.len()];
    let elements = x.len() as f64;
    let mut show = |what: &str, f: &mut dyn FnMut(&mut [f32]) -> Result<(), KernelError>| {
        let seconds = best(|| f(&mut out));
        report(&format!("{what} {tokens} x {hidden}"), seconds, elements, "G elements/s");
    };
    show("rms_norm", &mut |out| simd::rms_norm(&x, &weight, 1e-6, out));
    show("swiglu", &mut |out| simd::swiglu(&x, &x, Activation::SwiGlu, out));
    show("add_assign", &mut |out| simd::add_assign(out, &x, 1.0));
    let table = floats(tokens * 32);
    show("head_norm_rope x 64", &mut |out| {
        simd::head_norm_rope(out, hidden / 64, 64, 64, Some(&weight[..64]), 1e-6, &table, &table, 0)
    });
    let bytes = vec![0x35; matrix_bytes(MatrixFormat::Bf16, 64, hidden).unwrap()];
    let matrix = Matrix::new(MatrixFormat::Bf16, 64, hidden, &bytes).unwrap();
    let ids: Vec<u32> = (0..tokens as u32).map(|t| t % 64).collect();
    show("embed bf16", &mut |out| simd::embed(&ids, matrix, out));
    let (mut ids, mut weights) = (vec![0; tokens * 8], vec![0.0; tokens * 8]);
    let routing = Routing::softmax(true);
    show("router_topk 8", &mut |_| simd::router_topk(&x, None, hidden, 8, &routing, &mut ids, &mut weights));
    for format in [KvFormat::F32, KvFormat::Bf16] {
        let layout = KvLayout { format, capacity_tokens: tokens, kv_heads: hidden / 64, head_dim: 64 };
        let mut cache = vec![0; layout.bytes().unwrap()];
        show(&format!("kv_append {format:?}"), &mut |_| simd::kv_append(&x, &x, 0, layout, &mut cache));
    }
    show("argmax", &mut |_| simd::argmax(&x).map(|_| ()));
    for top_p in [1.0, 0.95] {
        let choice = Choice::new(0.1, 0, top_p, 0.0, 1 << 63).unwrap();
        show(&format!("sample, top-p {top_p}"), &mut |_| simd::sample(&x, &choice).map(|_| ()));
    }
}

fn run() {
    println!("{:?}, {} threads", Level::current(), rayon::current_num_threads());
    for format in [MatrixFormat::Bf16, MatrixFormat::Int4] {
        for (tokens, rows, cols) in
            [(1, 256, 256), (1, 2048, 2048), (2, 2048, 2048), (4, 2048, 2048), (512, 768, 2048), (2048, 512, 256)]
        {
            linear(format, tokens, rows, cols);
        }
        experts(format, 1, 256, 128, 32, 4);
        experts(format, 1024, 256, 128, 32, 4);
        experts(format, 1, 2048, 768, 64, 8);
        experts(format, 512, 2048, 768, 16, 4);
    }
    for format in [KvFormat::F32, KvFormat::Bf16] {
        for (heads, kv_heads, head_dim, past, tokens) in [
            (4, 2, 64, 0, 1024),
            (4, 2, 64, 8192, 256),
            (32, 4, 128, 0, 512),
            (4, 2, 64, 1000, 1),
            (32, 4, 128, 1000, 1),
            (32, 4, 128, 32768, 1),
            (8, 8, 128, 8192, 1),
        ] {
            attention(format, heads, kv_heads, head_dim, past, tokens);
        }
    }
    rows(1, 256);
    rows(1024, 256);
    rows(1, 2048);
}

fn main() {
    let level = match std::env::args().nth(1).as_deref() {
        Some("portable") => Level::Portable,
        Some("avx2") => Level::Avx2,
        _ => Level::current(),
    };
    level.force(run);
}
