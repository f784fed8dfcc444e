//! NVRTC takes every file of `cu/` for every architecture that a fat binary holds. Needs no GPU; where NVRTC is not found each
//! trial is reported as ignored: not run, not passed.
#![allow(missing_docs)]

use assay_kernels::cuda::{Cuda, sources};
use libtest_mimic::{Arguments, Failed, Trial};

/// Compute capabilities of the machine code that `build.rs` makes.
const CAPABILITIES: [(i32, i32); 3] = [(8, 0), (9, 0), (12, 0)];

fn main() {
    let absent = !Cuda::has_nvrtc();
    let trials = sources().flat_map(|name| {
        CAPABILITIES.map(|(major, minor)| {
            let run = move || compiles(name, (major, minor));
            Trial::test(format!("{name} for {major}.{minor}"), run).with_kind("nvrtc").with_ignored_flag(absent)
        })
    });
    if absent {
        eprintln!("not run: NVRTC (libnvrtc.so) is not found");
    }
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}

fn compiles(name: &'static str, capability: (i32, i32)) -> Result<(), Failed> {
    let image = assay_kernels::cuda::compile(name, capability)?;
    if image.starts_with(b"\x7fELF") {
        Ok(())
    } else {
        Err(format!("{} bytes are no machine code", image.len()).into())
    }
}
