//! Any single change to a ledger is found, and named where it can be.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use assay_ledgers::*;
use common::*;
use proptest::prelude::*;
use proptest::sample::Index;

#[derive(Debug, Clone)]
enum Mutation {
    FlipBit(Index, u8),
    InsertByte(Index, u8),
    RemoveByte(Index),
    Truncate(Index),
    RemoveLine(Index),
    RepeatLine(Index, Index),
    SwapLines(Index, Index),
}

fn any_mutation() -> impl Strategy<Value = Mutation> {
    use Mutation::*;
    prop_oneof![
        4 => (any::<Index>(), 0..8_u8).prop_map(|(at, bit)| FlipBit(at, bit)),
        1 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| InsertByte(at, byte)),
        1 => any::<Index>().prop_map(RemoveByte),
        2 => any::<Index>().prop_map(Truncate),
        2 => any::<Index>().prop_map(RemoveLine),
        1 => (any::<Index>(), any::<Index>()).prop_map(|(from, to)| RepeatLine(from, to)),
        2 => (any::<Index>(), any::<Index>()).prop_map(|(a, b)| SwapLines(a, b)),
    ]
}

fn mutate(bytes: &[u8], mutation: &Mutation) -> Vec<u8> {
    let mut mutated = bytes.to_vec();
    let mut lines: Vec<&[u8]> = bytes.split_inclusive(|&byte| byte == b'\n').collect();
    match mutation {
        Mutation::FlipBit(at, bit) => mutated[at.index(bytes.len())] ^= 1 << bit,
        Mutation::InsertByte(at, byte) => mutated.insert(at.index(bytes.len()), *byte),
        Mutation::RemoveByte(at) => drop(mutated.remove(at.index(bytes.len()))),
        Mutation::Truncate(at) => mutated.truncate(at.index(bytes.len())),
        Mutation::RemoveLine(at) => drop(lines.remove(at.index(lines.len()))),
        Mutation::RepeatLine(from, to) => lines.insert(to.index(lines.len() + 1), lines[from.index(lines.len())]),
        Mutation::SwapLines(a, b) => {
            let (a, b) = (a.index(lines.len()), b.index(lines.len()));
            lines.swap(a, b);
        }
    }
    match mutation {
        Mutation::RemoveLine(_) | Mutation::RepeatLine(..) | Mutation::SwapLines(..) => lines.concat(),
        _ => mutated,
    }
}

/// The files that carry evidence: chains, heads, logs.
fn evidence(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(evidence(&path));
        } else if path.file_name().unwrap() != "writer" {
            files.push(path);
        }
    }
    files.sort();
    files
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_single_mutation_is_caught(
        drafts in prop::collection::vec(any_draft(), 1..6),
        file in any::<Index>(),
        mutations in prop::collection::vec(any_mutation(), 32),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(dir.path()).unwrap();
        for (number, draft) in drafts.into_iter().enumerate() {
            let log = ledger.store_log("stderr.log", format!("log {number}\n").as_bytes()).unwrap();
            ledger.append(draft.log(log)).unwrap();
        }
        prop_assert_eq!(verify(dir.path()).unwrap().verdict, Verdict::Pass);
        let files = evidence(dir.path());
        for mutation in mutations {
            // Half of them in the chain, the others anywhere.
            for path in [&chain_of(&ledger), &files[file.index(files.len())]] {
                let original = fs::read(path).unwrap();
                let mutated = mutate(&original, &mutation);
                if mutated == original {
                    continue;
                }
                fs::write(path, &mutated).unwrap();
                let report = verify(dir.path()).unwrap();
                prop_assert_eq!(report.verdict, Verdict::Invalid, "{:?} in {}", &mutation, path.display());
                prop_assert!(!report.problems.is_empty());
                fs::write(path, &original).unwrap();
            }
        }
        prop_assert_eq!(verify(dir.path()).unwrap().verdict, Verdict::Pass, "the originals were put back");
    }
}

#[test]
fn a_flipped_bit_is_caught_in_every_byte_of_a_record() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = filled(dir.path(), 2);
    for path in [chain_of(&ledger), dir.path().join(format!("{}.head", ledger.writer()))] {
        let original = fs::read(&path).unwrap();
        for at in 0..original.len() {
            let mut mutated = original.clone();
            mutated[at] ^= 1 << (at % 8);
            fs::write(&path, &mutated).unwrap();
            assert_eq!(verify(dir.path()).unwrap().verdict, Verdict::Invalid, "byte {at} of {}", path.display());
        }
        fs::write(&path, &original).unwrap();
    }
}

/// Applies `change` to the lines of a chain of five records and returns the problems as `kind@line`.
fn problems_of(change: impl FnOnce(&mut Vec<String>)) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let ledger = filled(dir.path(), 5);
    let path = chain_of(&ledger);
    let mut lines: Vec<String> = fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
    change(&mut lines);
    fs::write(&path, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let report = verify(dir.path()).unwrap();
    assert_eq!(report.verdict, Verdict::Invalid);
    let named = |problem: &Problem| {
        assert_eq!(problem.file, path);
        let kind = serde_json::to_value(problem.kind).unwrap();
        let line = problem.line.map_or("end".to_owned(), |line| line.to_string());
        format!("{}@{line}", kind.as_str().unwrap())
    };
    report.problems.iter().map(named).collect()
}

/// Puts a changed record's right hash in, as somebody would who knows the format.
fn reseal(line: &str) -> String {
    let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
    value.as_object_mut().unwrap().remove("hash");
    let content = String::from_utf8(assay_ledgers::hash::canonical(&value).unwrap()).unwrap();
    let hash = Sha256::of(content.as_bytes());
    format!("{},\"hash\":\"{hash}\"}}", content.strip_suffix('}').unwrap())
}

#[test]
fn each_problem_is_named_with_its_line() {
    let edit = |line: &mut String| *line = line.replacen("reference.json", "another.json", 1);
    let check = |change: &dyn Fn(&mut Vec<String>), expected: &[&str]| {
        assert_eq!(problems_of(|lines| change(lines)), expected);
    };
    check(&|lines| edit(&mut lines[1]), &["edited@2"]);
    check(&|lines| edit(&mut lines[4]), &["edited@5"]);
    check(&|lines| drop(lines.remove(2)), &["removed@3"]);
    check(&|lines| drop(lines.drain(1..4)), &["removed@2"]);
    check(&|lines| drop(lines.pop()), &["lost_records@end"]);
    check(&|lines| lines.clear(), &["lost_records@end"]);
    check(&|lines| lines.swap(1, 2), &["reordered@3"]);
    check(&|lines| lines.swap(0, 4), &["reordered@2", "reordered@3", "reordered@4", "reordered@5"]);
    check(&|lines| lines.insert(3, lines[1].clone()), &["duplicated@4"]);
    check(&|lines| lines[2] = "{".to_owned(), &["not_json@3"]);
    check(&|lines| lines.insert(2, String::new()), &["not_json@3"]);
    check(&|lines| lines[2] = lines[2].replacen('{', "{ ", 1), &["edited@3"]);
    // Whoever knows the format can put the right hash in, and breaks the link to the next record.
    let resealed = |line: &mut String| {
        edit(line);
        *line = reseal(line);
    };
    check(&|lines| resealed(&mut lines[1]), &["broken_link@3"]);
    check(&|lines| resealed(&mut lines[4]), &["bad_head@5"]);
    let unknown = |line: &mut String| *line = reseal(&line.replacen("\"body\"", "\"blame\":1,\"body\"", 1));
    check(&|lines| unknown(&mut lines[1]), &["unknown_field@2"]);
    let newer = |line: &mut String| {
        *line = reseal(
            &line
                .replacen("\"body\"", "\"news\":1,\"body\"", 1)
                .replace("\"format_version\":2", "\"format_version\":3"),
        )
    };
    check(&|lines| newer(&mut lines[1]), &["newer_format@2"]);
    let foreign = |line: &mut String| {
        let at = line.find("\"writer\":\"").unwrap() + 10;
        line.replace_range(at..at + 16, "00000000000000aa");
        *line = reseal(line);
    };
    check(&|lines| foreign(&mut lines[1]), &["foreign_writer@2", "removed@3"]);
    // Left with the old hash, an added field is both an edit and a field that nobody knows.
    let added = |line: &mut String| *line = line.replacen("\"body\"", "\"blame\":1,\"body\"", 1);
    check(&|lines| added(&mut lines[1]), &["edited@2", "unknown_field@2"]);
}

#[test]
fn logs_are_part_of_the_evidence() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 2);
    let logs: Vec<PathBuf> = evidence(&dir.path().join("logs"));
    fs::write(&logs[0], b"another log\n").unwrap();
    fs::remove_file(&logs[1]).unwrap();
    let report = verify(dir.path()).unwrap();
    assert_eq!(report.verdict, Verdict::Invalid);
    let mut found: Vec<_> = report.problems.iter().map(|problem| (problem.file.clone(), problem.kind)).collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(found, [(logs[0].clone(), ProblemKind::ChangedLog), (logs[1].clone(), ProblemKind::MissingLog)]);
    assert!(report.problems[0].detail.contains(".jsonl:1"), "{}", report.problems[0].detail);
}

#[test]
fn logs_are_compressed_and_those_of_format_1_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(dir.path()).unwrap();
    let content = "a line that comes again and again\n".repeat(10_000);
    let log = ledger.store_log("run.jsonl", content.as_bytes()).unwrap();
    assert_eq!((log.bytes, log.sha256), (content.len() as u64, Sha256::of(content.as_bytes())));
    let record = ledger.append(check(0.5).log(log.clone())).unwrap().record;
    let stored = evidence(&dir.path().join("logs")).remove(0);
    assert!(fs::metadata(&stored).unwrap().len() < log.bytes / 50);
    let read = |dir: &Path| std::io::read_to_string(Ledger::read_log(dir, &record.logs[0]).unwrap()).unwrap();
    assert_eq!(read(dir.path()), content);

    // The same log as the first format kept it.
    let plain = stored.with_extension("");
    fs::remove_file(&stored).unwrap();
    fs::write(&plain, &content).unwrap();
    assert_eq!((kinds(dir.path()), read(dir.path())), (vec![], content.clone()));
    let other = tempfile::tempdir().unwrap();
    publish(dir.path(), &Selection::All, other.path()).unwrap();
    assert_eq!((kinds(other.path()), read(other.path())), (vec![], content.clone()));
    fs::write(&plain, content.replacen('a', "b", 1)).unwrap();
    assert_eq!(kinds(dir.path()), [ProblemKind::ChangedLog]);

    // A file that decompresses to more than the record names is not read to its end.
    fs::remove_file(&plain).unwrap();
    let bomb = ledger.store_log("bomb", std::io::repeat(b'0').take(1 << 30)).unwrap();
    let path = dir.path().join("logs").join(&bomb.sha256.to_string()[..2]).join(format!("{}.zst", bomb.sha256));
    fs::rename(path, &stored).unwrap();
    let problems = verify(dir.path()).unwrap().problems;
    assert!(problems[0].detail.contains("it has more"), "{problems:?}");
}

#[test]
fn chains_and_heads_belong_together() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = filled(dir.path(), 2);
    let head = dir.path().join(format!("{}.head", ledger.writer()));
    let kept = fs::read(&head).unwrap();
    fs::remove_file(&head).unwrap();
    assert_eq!(kinds(dir.path()), [ProblemKind::BadHead]);
    assert!(matches!(ledger.append(check(9.0)), Err(Error::Broken { .. })));
    assert!(matches!(Ledger::open(dir.path()), Err(Error::Broken { .. })));
    fs::write(&head, kept).unwrap();
    fs::remove_file(chain_of(&ledger)).unwrap();
    assert!(kinds(dir.path()).contains(&ProblemKind::LostRecords));
    assert!(matches!(ledger.append(check(9.0)), Err(Error::Broken { .. })));
    fs::write(dir.path().join("records.jsonl"), b"").unwrap();
    assert!(kinds(dir.path()).contains(&ProblemKind::StrangeFile));
}
