//! Rates of the kernel families on this machine, for tuning: `cargo run --release -p assay-kernels --example bench`.
//!
//! `bench [LEVEL]` with `portable`, `avx2` or `avx512` holds the kernels to one instruction set. `RAYON_NUM_THREADS=1`
//! gives the rate of a core.
#![allow(clippy::unwrap_used)]

use assay_kernels::layout::{MatrixFormat, matrix_bytes};
use assay_kernels::simd::{self, Level};
use assay_kernels::{KernelError, Matrix};
use std::time::Instant;

/// Best of repeated runs over about a third of a second, in seconds.
fn best(mut f: impl FnMut() -> Result<(), KernelError>) -> f64 {
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while start.elapsed().as_secs_f64() < 0.3 {
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
    println!("{what:44} {:10.1} us {:8.1} {unit}", seconds * 1e6, giga / seconds / 1e9);
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

fn run() {
    println!("{:?}, {} threads", Level::current(), rayon::current_num_threads());
    for format in [MatrixFormat::Bf16, MatrixFormat::Int4] {
        for (tokens, rows, cols) in [
            (1, 256, 256),
            (1, 4096, 256),
            (1, 2048, 2048),
            (2, 2048, 2048),
            (4, 2048, 2048),
            (512, 768, 2048),
            (2048, 512, 256),
        ] {
            linear(format, tokens, rows, cols);
        }
    }
}

fn main() {
    let level = match std::env::args().nth(1).as_deref() {
        Some("portable") => Level::Portable,
        Some("avx2") => Level::Avx2,
        _ => Level::current(),
    };
    level.force(run);
}
