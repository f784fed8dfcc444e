//! Appending, reading, verifying and publishing as a command does them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;

use assay_ledgers::*;
use common::*;

#[test]
fn records_come_back_and_verify() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = filled(dir.path(), 3);
    let log = ledger.store_log("stdout.log", &b"tok/s 12\n"[..]).unwrap();
    let draft = Draft::speed(Run::timing_off(), identity(), speed_body(&[1.0, 2.0, 3.0])).log(log);
    let written = ledger.append(draft).unwrap();
    assert_eq!(written.torn, None);
    assert_eq!(written.record.sequence, 4);

    let report = verify(dir.path()).unwrap();
    assert_eq!((report.records, report.verdict), (4, Verdict::Pass), "{:?}", report.problems);
    assert!(report.problems.is_empty());
    assert_eq!(report.heads, heads(dir.path()).unwrap());
    assert_eq!(report.heads[0].hash, Some(written.record.hash));

    let records: Vec<Record> = read(dir.path()).unwrap().collect::<Result<_>>().unwrap();
    assert_eq!(records[3], written.record);
    assert_eq!(records[3].previous, Some(records[2].hash));
    assert_eq!(Ledger::find(dir.path(), &written.record.hash.short()).unwrap(), written.record);
    assert!(matches!(Ledger::find(dir.path(), "ffffffffffff"), Err(Error::NoSuchRecord { .. })));
    for short in ["", "zz", "abc", "abcdeg", "../../"] {
        let error = Ledger::find(dir.path(), short).unwrap_err();
        assert!(error.to_string().starts_with("expected at least six hex digits"), "{error}");
    }
}

#[test]
fn any_tool_can_check_a_hash() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = filled(dir.path(), 2);
    for line in fs::read_to_string(chain_of(&ledger)).unwrap().lines() {
        let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
        let stated = value.as_object_mut().unwrap().remove("hash").unwrap();
        assert_eq!(Sha256::of_canonical(&value).unwrap().to_string(), stated.as_str().unwrap());
    }
}

#[test]
fn a_line_with_a_seal_that_is_no_record_is_found() {
    let sealed = |content: &str| {
        let hash = Sha256::of(format!("{content}}}").as_bytes());
        format!("{content},\"hash\":\"{hash}\"}}")
    };
    let record = |line: &str| line.rsplit_once(",\"hash\"").unwrap().0.to_owned();
    for (change, kind) in [
        // serde_json calls a list where an enum should be a mistake of syntax.
        (("\"body\":{", "\"body\":[{"), ProblemKind::BadSchema),
        (("\"body\":{", "\"body\":{,"), ProblemKind::Edited),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let ledger = filled(dir.path(), 3);
        let text = fs::read_to_string(chain_of(&ledger)).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let mut content = record(&lines[1]).replacen(change.0, change.1, 1);
        if kind == ProblemKind::BadSchema {
            content = content.replacen("},\"command\"", "}],\"command\"", 1);
        }
        lines[1] = sealed(&content);
        fs::write(chain_of(&ledger), lines.join("\n") + "\n").unwrap();
        let report = verify(dir.path()).unwrap();
        assert_eq!(report.verdict, Verdict::Invalid, "{content}");
        assert!(report.problems.iter().any(|problem| problem.kind == kind), "{:?}", report.problems);
        assert!(read(dir.path()).unwrap().any(|record| record.is_err()));
    }
}

#[test]
fn a_head_of_no_records_vouches_for_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = filled(dir.path(), 2);
    let path = chain_of(&ledger).with_extension("head");
    let head = fs::read_to_string(&path).unwrap().replace("\"count\":2", "\"count\":0");
    fs::write(&path, head).unwrap();
    let report = verify(dir.path()).unwrap();
    assert_eq!(report.verdict, Verdict::Invalid);
    assert!(report.problems[0].to_string().contains("names 0 records"), "{:?}", report.problems);
    assert!(matches!(ledger.append(check(0.5)), Err(Error::Broken { .. })));
}

#[test]
fn what_cannot_be_evidence_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = filled(dir.path(), 2);
    let without_log = Draft::speed(Run::timing_off(), identity(), speed_body(&[1.0]));
    assert!(matches!(ledger.append(without_log), Err(Error::NoRawLog)));
    let log = LogRef { sha256: Sha256::of(b"never stored"), bytes: 12, name: "stderr.log".to_owned() };
    assert!(matches!(ledger.append(check(0.0).log(log)), Err(Error::MissingLog { .. })));
    assert!(matches!(ledger.append(check(f64::NAN)), Err(Error::NotCanonical(_))));
    let mut large = identity();
    large.memory.vram_bytes = (1 << 53) + 1;
    let draft = Draft::new(EvidenceClass::Functional, large, check_body(0.0));
    assert!(matches!(ledger.append(draft), Err(Error::NotCanonical(_))));
    let report = verify(dir.path()).unwrap();
    assert_eq!((report.records, report.verdict), (2, Verdict::Pass), "a refusal writes nothing");
}

#[test]
fn publishing_keeps_records_as_they_were() {
    let (local, tracked) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    filled(local.path(), 4);
    let originals: Vec<Record> = read(local.path()).unwrap().collect::<Result<_>>().unwrap();
    let chosen = Selection::Hashes(vec![originals[2].hash.to_string(), originals[0].hash.short()]);

    let published = publish(local.path(), &chosen, tracked.path()).unwrap();
    assert_eq!(published.len(), 2);
    assert_eq!(published[0].original(), originals[0]);
    assert_eq!(published[1].original(), originals[2]);
    assert_eq!(published[1].original_hash(), originals[2].hash);
    let report = verify(tracked.path()).unwrap();
    assert_eq!((report.records, report.verdict), (2, Verdict::Pass), "{:?}", report.problems);

    let rest = publish(local.path(), &Selection::All, tracked.path()).unwrap();
    assert_eq!(rest.len(), 2, "records that are there already are left out");
    assert_eq!(Ledger::find(tracked.path(), &originals[2].hash.short()).unwrap(), published[1]);

    let again = tempfile::tempdir().unwrap();
    let twice = publish(tracked.path(), &Selection::All, again.path()).unwrap();
    assert_eq!(twice[0].original(), originals[0], "a second publication still names the first origin");
}

#[test]
fn what_is_known_to_be_invalid_is_never_published_as_valid() {
    let (local, tracked) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ledger = filled(local.path(), 3);
    let hashes: Vec<Sha256> = read(local.path()).unwrap().map(|record| record.unwrap().hash).collect();
    let invalidate = |hash: Sha256| ledger.invalidate(&hash.to_string(), "loose", None, []).unwrap().record.hash;
    let publish = |hash: Sha256| {
        let chosen = Selection::Hashes(vec![hash.to_string()]);
        let published = publish(local.path(), &chosen, tracked.path()).unwrap();
        published.iter().map(Record::original_hash).collect::<Vec<_>>()
    };
    let invalid = || {
        let records = read(tracked.path()).unwrap().collect::<Result<Vec<Record>>>().unwrap();
        hashes.iter().map(|&hash| check_counts(hash, &records).is_err()).collect::<Vec<_>>()
    };
    let judge = invalidate(hashes[0]);
    assert_eq!(publish(hashes[0]), [judge, hashes[0]], "the invalidation first: a kill between them harms nothing");
    assert_eq!(invalid(), [true, false, false]);

    // What is said later goes along with whatever is published next: here that the first counts again.
    assert_eq!(publish(hashes[1]), [hashes[1]]);
    let (second, third) = (invalidate(judge), invalidate(hashes[1]));
    assert_eq!(publish(hashes[2]), [second, third, hashes[2]]);
    assert_eq!(invalid(), [false, true, false]);
    assert_eq!(publish(hashes[2]), []);
    assert_eq!(verify(tracked.path()).unwrap().verdict, Verdict::Pass);

    // Taken in whole, another machine's ledger says the same.
    let other = tempfile::tempdir().unwrap();
    import(local.path(), other.path()).unwrap();
    let records = read(other.path()).unwrap().collect::<Result<Vec<Record>>>().unwrap();
    let error = check_counts(hashes[1], &records).unwrap_err();
    assert!(error.is_invalid_evidence() && error.to_string().ends_with("invalidates it: loose"), "{error}");
}

#[test]
fn a_ledger_that_cannot_be_written_is_not_opened() {
    let fails = |damage: &dyn Fn(&Ledger)| {
        let dir = tempfile::tempdir().unwrap();
        damage(&filled(dir.path(), 1));
        let error = Ledger::open(dir.path()).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
    };
    // Permissions stop no test that runs as root; a file where a folder should be stops everybody.
    fails(&|ledger| {
        fs::remove_dir_all(ledger.dir().join("logs")).unwrap();
        fs::write(ledger.dir().join("logs"), "").unwrap();
    });
    fails(&|ledger| {
        fs::remove_file(chain_of(ledger)).unwrap();
        fs::create_dir(chain_of(ledger)).unwrap();
    });
    let dir = tempfile::tempdir().unwrap();
    let ledger = filled(dir.path(), 1);
    let before = fs::read_dir(dir.path()).unwrap().count();
    Ledger::open(dir.path()).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), before, "trying leaves nothing");
    assert_eq!(verify(ledger.dir()).unwrap().verdict, Verdict::Pass);
}

#[test]
fn nothing_is_published_out_of_a_broken_ledger() {
    let (local, tracked) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ledger = filled(local.path(), 3);
    let text = fs::read_to_string(chain_of(&ledger)).unwrap();
    fs::write(chain_of(&ledger), text.replacen("prompt 0", "prompt 1", 1)).unwrap();
    let error = publish(local.path(), &Selection::All, tracked.path()).unwrap_err();
    assert!(matches!(error, Error::SourceInvalid { .. }), "{error}");
    assert!(fs::read_dir(tracked.path()).unwrap().next().is_none());
}

#[test]
fn a_published_result_cannot_be_rewritten() {
    let (local, tracked) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    filled(local.path(), 1);
    publish(local.path(), &Selection::All, tracked.path()).unwrap();
    let mut record = read(tracked.path()).unwrap().next().unwrap().unwrap();
    record.verdicts[0].verdict = Verdict::Fail;
    // A forger who recomputes the outer hash and the head still meets the hash of the original.
    record.hash = Sha256::default();
    let mut line = assay_ledgers::hash::canonical(&record).unwrap();
    let hash = Sha256::of(&line);
    line.pop();
    line.extend_from_slice(format!(",\"hash\":\"{hash}\"}}\n").as_bytes());
    let head = Head { writer: record.writer.clone(), count: 1, bytes: line.len() as u64, hash: Some(hash) };
    fs::write(tracked.path().join(format!("{}.jsonl", record.writer)), line).unwrap();
    let mut head_bytes = assay_ledgers::hash::canonical(&head).unwrap();
    head_bytes.push(b'\n');
    fs::write(tracked.path().join(format!("{}.head", record.writer)), head_bytes).unwrap();
    assert_eq!(kinds(tracked.path()), [ProblemKind::BadOrigin]);
}

#[test]
fn two_machines_ledgers_merge_by_copying() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    filled(one.path(), 3);
    let ledger = filled(other.path(), 2);
    for name in [format!("{}.jsonl", ledger.writer()), format!("{}.head", ledger.writer())] {
        fs::copy(other.path().join(&name), one.path().join(&name)).unwrap();
    }
    let report = verify(one.path()).unwrap();
    assert_eq!((report.records, report.verdict), (5, Verdict::Pass), "{:?}", report.problems);
    assert_eq!(report.heads.len(), 2);
}

#[test]
fn an_anchor_written_down_elsewhere_holds_the_ledger_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = filled(dir.path(), 3);
    let anchors = heads(dir.path()).unwrap();
    filled(dir.path(), 1);
    assert_eq!(verify_anchored(dir.path(), &anchors).unwrap().verdict, Verdict::Pass, "a longer chain keeps it");

    fs::remove_file(chain_of(&ledger)).unwrap();
    fs::remove_file(dir.path().join(format!("{}.head", ledger.writer()))).unwrap();
    assert_eq!(verify(dir.path()).unwrap().verdict, Verdict::Pass, "nothing here says that there was a chain");
    let report = verify_anchored(dir.path(), &anchors).unwrap();
    assert_eq!(report.problems[0].kind, ProblemKind::LostRecords);

    filled(dir.path(), 3); // as many records, but others
    let report = verify_anchored(dir.path(), &anchors).unwrap();
    assert_eq!(report.problems.iter().map(|problem| problem.kind).collect::<Vec<_>>(), [ProblemKind::BadHead]);
}

#[test]
fn every_kind_is_written_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = filled(dir.path(), 1);
    for kind in 0..OTHER_KINDS {
        let log = ledger.store_log("run.jsonl", &b"{}\n"[..]).unwrap();
        let written = ledger.append(other_draft(kind, identity(), 0.25, "text").log(log)).unwrap().record;
        let read = Ledger::find(dir.path(), &written.hash.short()).unwrap();
        assert_eq!(read, written);
        assert!(Body::KINDS.contains(&read.body.kind()));
        assert_eq!(
            read.identity.is_none(),
            matches!(read.body.kind(), "roofline" | "task" | "external" | "invalidation")
        );
    }
    assert_eq!(verify(dir.path()).unwrap().verdict, Verdict::Pass);
}

#[test]
fn only_what_was_not_run_here_may_lack_an_identity() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = filled(dir.path(), 1);
    let mut record = read(dir.path()).unwrap().next().unwrap().unwrap();
    record.identity = None;
    record.hash = Sha256::default();
    let mut line = assay_ledgers::hash::canonical(&record).unwrap();
    let hash = Sha256::of(&line);
    line.pop();
    line.extend_from_slice(format!(",\"hash\":\"{hash}\"}}\n").as_bytes());
    fs::write(chain_of(&ledger), line).unwrap();
    let problems = verify(dir.path()).unwrap().problems;
    assert_eq!(problems[0].kind, ProblemKind::BadSchema);
    assert!(problems[0].detail.contains("a check record has no identity"), "{problems:?}");
}

#[test]
fn a_record_is_invalidated_and_never_removed() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = filled(dir.path(), 3);
    let records = || read(dir.path()).unwrap().collect::<Result<Vec<Record>>>().unwrap();
    let hashes: Vec<String> = records().iter().map(|record| record.hash.to_string()).collect();
    let invalidate = |hash: &str, replacement| ledger.invalidate(hash, "a cable was loose", replacement, []);

    let judge = invalidate(&hashes[0], Some(hashes[1].as_str())).unwrap().record;
    let invalid = invalidations(&records());
    assert_eq!(invalid.len(), 1);
    assert_eq!(invalid[&records()[0].hash], judge.hash);
    assert_eq!(records().len(), 4, "it is still there");
    assert!(matches!(invalidate(&hashes[0], None), Err(Error::AlreadyInvalid { .. })));
    assert!(matches!(invalidate("00000000", None), Err(Error::NoSuchRecord { .. })));
    assert!(matches!(invalidate(&hashes[1], Some(&hashes[1])), Err(Error::ReplacesItself { .. })));
    assert!(matches!(invalidate(&hashes[1], Some(&hashes[0])), Err(Error::Invalidated { .. })));

    // An invalidation can be wrong as well.
    let second = invalidate(&judge.hash.to_string(), None).unwrap().record;
    assert_eq!(invalidations(&records()).keys().copied().collect::<Vec<_>>(), [judge.hash]);
    invalidate(&second.hash.to_string(), None).unwrap();
    let invalid = invalidations(&records());
    assert!(invalid.contains_key(&records()[0].hash) && invalid.contains_key(&second.hash), "{invalid:?}");
    assert_eq!(invalid.len(), 2);
    assert_eq!(verify(dir.path()).unwrap().verdict, Verdict::Pass);
}
