//! Appends that are cut short, and appends at the same time.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use assay_ledgers::*;
use common::*;

const CHILD: &str = "ASSAY_TEST_LEDGER_CHILD";

/// Not a test of its own: the others run it in a process of its own, as `<records> <folder>`.
#[test]
fn child_appends() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let (count, dir) = task.split_once(' ').unwrap();
    let ledger = Ledger::open(dir).unwrap();
    for number in 0..count.parse().unwrap() {
        ledger.append(check(f64::from(number))).unwrap();
    }
}

fn spawn(count: u32, dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_appends", "--nocapture"])
        .env(CHILD, format!("{count} {}", dir.display()))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn two_processes_and_two_threads_append_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut children = [spawn(1_000, dir.path()), spawn(1_000, dir.path())];
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| filled(dir.path(), 100));
        }
        // A reader must see a ledger that is whole at every moment.
        while children.iter_mut().any(|child| child.try_wait().unwrap().is_none()) {
            std::thread::sleep(Duration::from_millis(5));
            if let Ok(report) = verify(dir.path()) {
                assert!(report.problems.is_empty(), "{:?}", report.problems);
            }
        }
    });
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let report = verify(dir.path()).unwrap();
    assert_eq!((report.records, report.verdict), (2200, Verdict::Pass), "{:?}", report.problems);
    assert_eq!(report.heads.len(), 1, "one machine is one writer, however many processes");
}

#[test]
fn a_kill_loses_at_most_the_record_being_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut before = 0;
    for round in 0..8 {
        let mut child = spawn(100_000, dir.path());
        std::thread::sleep(Duration::from_millis(60 + 17 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let report = verify(dir.path()).unwrap();
        assert_eq!(report.verdict, Verdict::Pass, "{:?}", report.problems);
        assert!(report.problems.iter().all(|problem| problem.kind == ProblemKind::Torn));
        assert!(report.records >= before);
        let appended = Ledger::open(dir.path()).unwrap().append(check(0.0)).unwrap();
        assert_eq!(appended.record.sequence, report.records + 1);
        before = report.records + 1;
    }
    assert!(before > 8, "the children appended nothing");
}

/// The state after a write of the last record stopped after each of its bytes, before the head moved.
#[test]
fn a_record_cut_at_any_byte_is_torn_and_moved_aside() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = filled(dir.path(), 2);
    let chain = chain_of(&ledger);
    let head = dir.path().join(format!("{}.head", ledger.writer()));
    let (chain_before, head_before) = (fs::read(&chain).unwrap(), fs::read(&head).unwrap());
    ledger.append(check(2.0)).unwrap();
    let line = fs::read(&chain).unwrap()[chain_before.len()..].to_vec();
    let torn_file = dir.path().join(format!("{}.torn-1", ledger.writer()));

    for cut in 0..=line.len() {
        fs::write(&chain, [&chain_before, &line[..cut]].concat()).unwrap();
        fs::write(&head, &head_before).unwrap();
        let report = verify(dir.path()).unwrap();
        let found: Vec<_> = report.problems.iter().map(|problem| problem.kind).collect();
        let (records, expected): (u64, &[ProblemKind]) = match cut {
            0 => (2, &[]),
            cut if cut == line.len() => (3, &[]),
            _ => (2, &[ProblemKind::Torn]),
        };
        assert_eq!(
            (report.records, report.verdict, found.as_slice()),
            (records, Verdict::Pass, expected),
            "cut at {cut}"
        );
        assert_eq!(read(dir.path()).unwrap().count() as u64, records);
        if cut % 64 > 1 && cut + 2 < line.len() {
            continue; // appending syncs, so it is not done for every byte
        }
        let appended = ledger.append(check(3.0)).unwrap();
        assert_eq!(appended.record.sequence, records + 1);
        assert_eq!(appended.torn.as_deref(), (!expected.is_empty()).then_some(torn_file.as_path()));
        if let Some(torn) = appended.torn {
            assert_eq!(fs::read(&torn).unwrap(), line[..cut], "the bytes are kept");
            fs::remove_file(torn).unwrap();
        }
        let report = verify(dir.path()).unwrap();
        assert_eq!((report.records, report.verdict), (records + 1, Verdict::Pass));
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}

/// The same bytes missing from a record that the head names are no accident of an append.
#[test]
fn a_committed_record_cut_at_any_byte_is_invalid_and_stops_appends() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = filled(dir.path(), 2);
    let whole = fs::read(chain_of(&ledger)).unwrap();
    let first = whole.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    for length in first..whole.len() {
        fs::write(chain_of(&ledger), &whole[..length]).unwrap();
        let report = verify(dir.path()).unwrap();
        assert_eq!(report.verdict, Verdict::Invalid, "cut to {length}");
        assert!(report.problems.iter().any(|problem| problem.kind == ProblemKind::LostRecords));
        assert!(matches!(ledger.append(check(3.0)), Err(Error::Broken { .. })));
    }
}

#[test]
fn a_line_of_garbage_behind_the_head_is_torn_too() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = filled(dir.path(), 2);
    let mut bytes = fs::read(chain_of(&ledger)).unwrap();
    bytes.extend_from_slice(b"{\"body\":\0\0\0\n");
    fs::write(chain_of(&ledger), bytes).unwrap();
    let report = verify(dir.path()).unwrap();
    assert_eq!((report.records, report.verdict), (2, Verdict::Pass));
    assert_eq!(kinds(dir.path()), [ProblemKind::Torn]);
    assert_eq!(read(dir.path()).unwrap().collect::<Result<Vec<_>>>().unwrap().len(), 2);
    assert!(ledger.append(check(3.0)).unwrap().torn.is_some());
    assert!(kinds(dir.path()).is_empty());
}
