//! What a team of threads takes for a token's cold experts, for tuning: `cargo run --release -p assay-kernels --example team_bench [THREADS...]`.
//!
//! *hot*: experts that the processors' caches hold. *cold*: others each time, out of memory. *read*: their bytes alone.
#![allow(clippy::unwrap_used)]

use assay_kernels::Activation;
use assay_kernels::layout::{ExpertLayout, MatrixFormat};
use assay_kernels::simd::{Member, TeamExpert};
use std::hint::{black_box, spin_loop};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const HIDDEN: usize = 2048;
const INNER: usize = 768;
const EXPERTS: usize = 1024;

fn main() {
    let layout = ExpertLayout::new(MatrixFormat::Int4, HIDDEN, INNER, false).unwrap();
    let bytes = layout.bytes * EXPERTS;
    let mut bank = memmap2::MmapMut::map_anon(bytes).unwrap();
    #[cfg(target_os = "linux")]
    if std::env::var_os("HUGE").is_some() {
        bank.advise(memmap2::Advice::HugePage).unwrap();
    }
    // Integers of all kinds; bytes of scales that make numbers near 1/100, so that nothing becomes subnormal.
    bank.chunks_mut(2).enumerate().for_each(|(i, pair)| pair.copy_from_slice(&[(i * 37) as u8, 0x3c]));
    let given: Vec<usize> = std::env::args().skip(1).map(|arg| arg.parse().unwrap()).collect();
    let cores = std::thread::available_parallelism().unwrap().get();
    for threads in if given.is_empty() { vec![1, cores / 2, cores - 1, cores] } else { given } {
        for count in [1usize, 2, 4, 8] {
            let time = |kind: Kind| run(&bank, &layout, threads.max(1), count, kind);
            let (hot, cold, read) = (time(Kind::Hot), time(Kind::Cold), time(Kind::Read));
            println!("{threads:3} threads, {count} experts: hot {hot:7.1} us, cold {cold:7.1} us, read {read:7.1} us");
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Hot,
    Cold,
    Read,
}

/// Median of many.
fn run(bank: &[u8], layout: &ExpertLayout, threads: usize, count: usize, kind: Kind) -> f64 {
    const ROUNDS: usize = 61;
    let x = vec![0.5f32; HIDDEN];
    let (mut act, mut out) = (vec![0f32; count * INNER], vec![0f32; count * HIDDEN]);
    let (act_at, out_at) = (act.as_mut_ptr() as usize, out.as_mut_ptr() as usize);
    let (begun, half, ended) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let work = |index: usize, round: usize| {
        let member = Member { index, threads };
        let first = if kind == Kind::Hot { 0 } else { round * count * 2 };
        let views: Vec<TeamExpert<'_>> = (0..count)
            .map(|i| {
                let start = (first + i) % EXPERTS * layout.bytes;
                TeamExpert::new(layout, &bank[start..start + layout.bytes]).unwrap()
            })
            .collect();
        if kind == Kind::Read {
            let start = first % EXPERTS * layout.bytes;
            let all = &bank[start..(start + count * layout.bytes).min(bank.len())];
            let part = &all[all.len() * index / threads / 64 * 64..all.len() * (index + 1) / threads / 64 * 64];
            // SAFETY: any bytes are such words.
            let (_, words, _) = unsafe { part.align_to::<[u64; 8]>() };
            black_box(words.iter().fold([0u64; 8], |a, b| std::array::from_fn(|i| a[i] ^ b[i])));
        } else {
            // SAFETY: room for `count` experts, of which members write different parts.
            unsafe { member.gate_up(&x, &views, Activation::SwiGlu, NonNull::new(act_at as *mut f32).unwrap()) };
        }
        half.fetch_add(1, Ordering::AcqRel);
        while half.load(Ordering::Acquire) < (round + 1) * threads {
            spin_loop();
        }
        if kind != Kind::Read {
            // SAFETY: every member has written its part, and none writes before all have read it.
            let act = unsafe { std::slice::from_raw_parts(act_at as *const f32, count * INNER) };
            // SAFETY: as for gate and up.
            unsafe { member.down(act, &views, NonNull::new(out_at as *mut f32).unwrap()) };
        }
        ended.fetch_add(1, Ordering::AcqRel);
    };
    let mut times = Vec::new();
    std::thread::scope(|scope| {
        for index in 1..threads {
            let (work, begun) = (&work, &begun);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    while begun.load(Ordering::Acquire) <= round {
                        spin_loop();
                    }
                    work(index, round);
                }
            });
        }
        for round in 0..ROUNDS {
            std::thread::sleep(std::time::Duration::from_micros(200));
            let start = Instant::now();
            begun.store(round + 1, Ordering::Release);
            work(0, round);
            while ended.load(Ordering::Acquire) < (round + 1) * threads {
                spin_loop();
            }
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
    });
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
