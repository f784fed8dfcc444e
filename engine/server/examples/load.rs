//! A load client: `cargo run --release -p assay-server --example load -- ADDRESS MODEL REQUESTS CONCURRENCY [SERVER-PID]`
//!
//! Mixed requests, a third of them bad (clients that leave, slow readers, malformed bodies). Exit code 0 when every good one got
//! the answer that it gets alone, and the server's memory, where its process id is given, did not grow.
#![allow(clippy::unwrap_used)]

#[path = "../tests/common/client.rs"]
mod client;
#[path = "../tests/common/load.rs"]
mod load;

use std::process::ExitCode;

use load::{Load, run};

/// Growth of resident memory that is no leak: allocators and caches settle, in bytes.
const SETTLING_BYTES: u64 = 32 << 20;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [address, model, requests, concurrency, rest @ ..] = &args[..] else {
        eprintln!("usage: load ADDRESS MODEL REQUESTS CONCURRENCY [SERVER-PID]");
        return ExitCode::from(2);
    };
    let parsed = (address.parse(), requests.parse::<usize>(), concurrency.parse());
    let (Ok(address), Ok(requests), Ok(concurrency)) = parsed else {
        eprintln!("load: expected an address as 127.0.0.1:8000 and two numbers");
        return ExitCode::from(2);
    };
    let part = |requests| run(&Load { address, model: model.clone(), requests, concurrency });
    // What the first tenth leaves behind is the level that the rest must keep.
    let first = part(requests / 10);
    let before = rest.first().and_then(|pid| resident(pid));
    let main = part(requests - requests / 10);
    let after = rest.first().and_then(|pid| resident(pid));
    let mut failed = false;
    for (name, report) in [("first tenth", first), ("rest", main)] {
        println!(
            "{name}: {} right, {} refused as they should be, {} left, {} told to come back, {} wrong, {:.1} s",
            report.right,
            report.refused,
            report.left,
            report.busy,
            report.wrong.len(),
            report.seconds
        );
        report.wrong.iter().take(5).for_each(|wrong| println!("  {wrong}"));
        failed |= !report.wrong.is_empty();
    }
    if let (Some(before), Some(after)) = (before, after) {
        println!("resident memory: {before} bytes after the first tenth, {after} at the end");
        failed |= after > before + SETTLING_BYTES;
    }
    ExitCode::from(u8::from(failed))
}

/// Resident bytes of a process, by Linux's figures.
fn resident(pid: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}
