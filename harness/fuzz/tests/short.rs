//! The short run: every kept input once more, then a few thousand new ones of each parser, the same in every run.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use assay_fuzz::allocate::Counting;
use assay_fuzz::run::{Fuzzer, Report, catch_panics, corpus};
use assay_fuzz::targets::{TARGETS, Target};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Inputs of each parser, apart from the kept ones.
const STEPS: usize = 2000;
/// Decides them.
const SEED: u64 = 7;

/// One test, so that memory and panics of one parser are not taken for another's.
#[test]
fn no_parser_panics_or_takes_without_end_or_breaks_its_promises() {
    catch_panics();
    let mut wrong = String::new();
    for target in TARGETS {
        let report = read(target);
        eprintln!(
            "{}: {} inputs, {} accepted, {} distinct answers, {} bytes at most",
            target.name, report.executions, report.accepted, report.answers, report.peak_bytes
        );
        for finding in report.findings.values() {
            wrong += &format!("{}: {}: {:?}\n", target.name, finding.what, String::from_utf8_lossy(&finding.input));
        }
        // A run that accepts nothing looks at nothing but the first check.
        assert!(report.accepted > 20 && report.answers > 10, "{}: {report:?}", target.name);
    }
    assert!(wrong.is_empty(), "{wrong}");
}

fn read(target: &Target) -> Report {
    let mut fuzzer = Fuzzer::new(target, SEED).unwrap();
    let mut kept: Vec<_> =
        std::fs::read_dir(corpus(target.name)).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    kept.sort();
    for path in kept {
        fuzzer.read(std::fs::read(path).unwrap());
    }
    for _ in 0..STEPS {
        fuzzer.step();
    }
    fuzzer.report
}
