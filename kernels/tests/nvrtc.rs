//! NVRTC takes every file of `cu/` for every architecture that a fat binary holds. Needs no GPU; where NVRTC is not found each
//! trial is reported as ignored: not run, not passed.
#![allow(missing_docs)]

use std::env;
use std::process::Command;

use assay_kernels::cuda::{Cuda, compile, sources};
use libtest_mimic::{Arguments, Failed, Trial};

/// Compute capabilities of the machine code that `build.rs` makes.
const CAPABILITIES: [(i32, i32); 3] = [(8, 0), (9, 0), (12, 0)];

/// Names the one trial that a child process runs: NVRTC compiles one source at a time in a process, and each takes seconds.
const CHILD: &str = "ASSAY_NVRTC_TRIAL";

fn main() {
    let absent = !Cuda::has_nvrtc();
    let child = env::var(CHILD).ok();
    let mut trials = Vec::new();
    for name in sources() {
        for (major, minor) in CAPABILITIES {
            let title = format!("{name} for {major}.{minor}");
            match &child {
                None => {
                    let run = {
                        let title = title.clone();
                        move || in_a_child(&title)
                    };
                    trials.push(Trial::test(title, run).with_kind("nvrtc").with_ignored_flag(absent));
                }
                Some(chosen) if *chosen == title => {
                    trials.push(Trial::test(title, move || compiles(name, (major, minor))));
                }
                Some(_) => {}
            }
        }
    }
    if absent {
        eprintln!("not run: NVRTC (libnvrtc.so) is not found");
    }
    let arguments = if child.is_some() { Arguments::default() } else { Arguments::from_args() };
    libtest_mimic::run(&arguments, trials).exit();
}

fn in_a_child(title: &str) -> Result<(), Failed> {
    let output = Command::new(env::current_exe()?).env(CHILD, title).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)).into())
}

fn compiles(name: &'static str, capability: (i32, i32)) -> Result<(), Failed> {
    let image = compile(name, capability)?;
    if image.starts_with(b"\x7fELF") {
        Ok(())
    } else {
        Err(format!("{} bytes are no machine code", image.len()).into())
    }
}
