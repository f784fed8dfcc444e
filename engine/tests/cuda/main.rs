//! The CUDA device against the host device: the same engine, the same bits. Without a device each trial is reported as ignored:
//! not run, not passed.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, unreachable_pub)]

mod ahead;
#[path = "../common/mod.rs"]
mod common;
mod exact;
mod memory;
mod sample;
#[path = "../common/script.rs"]
mod script;
mod sessions;
mod short;
mod support;
mod tensor;

use assay_kernels::cuda::Cuda;
use libtest_mimic::{Arguments, Trial};

fn main() {
    let mut arguments = Arguments::from_args();
    // One card: budgets are measured on it.
    arguments.test_threads = Some(1);
    let absent = Cuda::count() == 0;
    if absent {
        eprintln!("not run: no CUDA device");
    }
    let trials: Vec<Trial> = [
        exact::trials(),
        ahead::trials(),
        sample::trials(),
        tensor::trials(),
        memory::trials(),
        sessions::trials(),
        short::trials(),
    ]
    .into_iter()
    .flatten()
    .map(|trial| trial.with_kind("cuda").with_ignored_flag(absent))
    .collect();
    libtest_mimic::run(&arguments, trials).exit();
}
