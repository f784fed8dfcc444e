//! Every CUDA kernel against its twin. Without a device each trial is reported as ignored: not run, not passed.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod attention;
mod decode;
mod dot;
mod elementwise;
mod fetch;
mod gemm;
mod grouped_gemm;
mod prefill_attention;
mod router;
mod rows;
mod sample;
mod support;
mod tensor;

use libtest_mimic::{Arguments, Failed, Trial};
use support::Device;

/// A trial by name; it is given a device of its own thread.
pub(crate) type Case = (String, Run);

/// What a trial does.
pub(crate) type Run = Box<dyn FnOnce(&Device) -> Result<(), Failed> + Send>;

fn main() {
    let mut arguments = Arguments::from_args();
    // One device, one context, one thread.
    arguments.test_threads = Some(1);
    let absent = assay_kernels::cuda::Cuda::count() == 0;
    let families = [
        elementwise::cases(),
        rows::cases(),
        sample::cases(),
        router::cases(),
        fetch::cases(),
        dot::cases(),
        decode::cases(),
        attention::cases(),
        gemm::cases(),
        grouped_gemm::cases(),
        prefill_attention::cases(),
    ];
    let cases: Vec<Case> = families.into_iter().flatten().collect();
    let trials = cases
        .into_iter()
        .map(|(name, run)| Trial::test(name, move || Device::with(run)).with_kind("cuda").with_ignored_flag(absent))
        .collect();
    if absent {
        eprintln!("not run: no CUDA device");
    }
    libtest_mimic::run(&arguments, trials).exit();
}
