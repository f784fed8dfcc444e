//! Taking in another machine's ledger, and refusing one that cannot be trusted.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use assay_ledgers::*;
use common::*;

/// Every file below a folder, with its bytes.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(dir).unwrap().to_path_buf(), fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn copy(from: &Path, to: &Path) {
    for (name, bytes) in files(from) {
        let path = to.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

fn counts(chains: &[ImportedChain]) -> Vec<(u64, u64)> {
    chains.iter().map(|chain| (chain.records, chain.new)).collect()
}

fn passes(dir: &Path, records: u64) {
    let report = verify(dir).unwrap();
    assert_eq!((report.records, report.verdict), (records, Verdict::Pass), "{:?}", report.problems);
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

/// A ledger here of 2 records and one elsewhere of 3.
struct Machines {
    here: tempfile::TempDir,
    there: tempfile::TempDir,
    other: Ledger,
}

impl Machines {
    fn new() -> Self {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        filled(here.path(), 2);
        let other = filled(there.path(), 3);
        Self { here, there, other }
    }
    fn import(&self) -> Result<Vec<ImportedChain>> {
        import(self.there.path(), self.here.path())
    }
    /// Changes the other machine's chain.
    fn edit(&self, edit: impl FnOnce(String) -> String) {
        let path = chain_of(&self.other);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(path, edit(text)).unwrap();
    }
    /// An import must fail, say this, and change nothing here.
    #[track_caller]
    fn refused(&self, says: &str) -> Error {
        let before = files(self.here.path());
        let error = self.import().unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        assert!(files(self.here.path()) == before, "a refused import left something behind");
        error
    }
}

#[test]
fn records_and_logs_come_as_they_are_and_can_be_published() {
    let machines = Machines::new();
    let (here, there) = (machines.here.path(), machines.there.path());
    assert_eq!(counts(&machines.import().unwrap()), [(3, 3)]);
    passes(here, 5);
    let (ours, theirs) = (files(here), files(there));
    for (name, bytes) in theirs.iter().filter(|(name, _)| name.as_path() != Path::new("writer")) {
        assert_eq!(ours.get(name), Some(bytes), "{}", name.display());
    }

    let tracked = tempfile::tempdir().unwrap();
    let record = read(there).unwrap().next().unwrap().unwrap();
    let published = publish(here, &Selection::Hashes(vec![record.hash.short()]), tracked.path()).unwrap();
    assert_eq!(published[0].original(), record);
    passes(tracked.path(), 1);
}

#[test]
fn a_second_import_changes_nothing_and_a_later_one_brings_what_is_new() {
    let machines = Machines::new();
    machines.import().unwrap();
    let before = files(machines.here.path());
    assert_eq!(counts(&machines.import().unwrap()), [(3, 0)]);
    assert!(files(machines.here.path()) == before);

    let older = tempfile::tempdir().unwrap();
    copy(machines.there.path(), older.path());
    filled(machines.there.path(), 2);
    assert_eq!(counts(&machines.import().unwrap()), [(5, 2)]);
    passes(machines.here.path(), 7);
    assert_eq!(counts(&import(older.path(), machines.here.path()).unwrap()), [(3, 0)], "an older copy is no fork");
    passes(machines.here.path(), 7);
    assert_eq!(counts(&import(machines.here.path(), machines.here.path()).unwrap()).len(), 2, "of itself");
    passes(machines.here.path(), 7);
}

#[test]
fn this_machines_own_chain_is_continued() {
    let machines = Machines::new();
    let copied = tempfile::tempdir().unwrap();
    copy(machines.here.path(), copied.path());
    filled(copied.path(), 2);
    assert_eq!(counts(&import(copied.path(), machines.here.path()).unwrap()), [(4, 2)]);
    filled(machines.here.path(), 1);
    passes(machines.here.path(), 5);
}

#[test]
fn a_flipped_bit_is_refused() {
    let machines = Machines::new();
    machines.edit(|text| text.replacen("prompt 0", "prompt 1", 1));
    let error = machines.refused(".jsonl:1: the record was edited");
    assert!(matches!(error, Error::SourceInvalid { problems: 1, .. }), "{error}");
}

#[test]
fn a_missing_or_changed_log_is_refused() {
    let machines = Machines::new();
    let log = files(machines.there.path()).into_keys().find(|name| name.starts_with("logs")).unwrap();
    let log = machines.there.path().join(log);
    fs::write(&log, "log 7\n").unwrap();
    machines.refused("was changed");
    fs::remove_file(&log).unwrap();
    machines.refused("is not there (named by");
}

#[test]
fn a_removed_tail_or_head_is_refused() {
    let machines = Machines::new();
    machines.edit(|text| text.lines().take(2).fold(String::new(), |kept, line| kept + line + "\n"));
    machines.refused("the end of the chain was removed");
    let machines = Machines::new();
    fs::remove_file(chain_of(&machines.other).with_extension("head")).unwrap();
    machines.refused("has no head");
}

#[test]
fn a_forked_chain_is_refused_with_the_record() {
    let machines = Machines::new();
    let copied = tempfile::tempdir().unwrap();
    copy(machines.there.path(), copied.path());
    machines.import().unwrap();
    filled(machines.there.path(), 1);
    machines.import().unwrap();
    // The copy writes another record 4 under the same name, and a longer chain.
    let fork = Ledger::open(copied.path()).unwrap();
    fork.append(check(0.5)).unwrap();
    fork.append(check(0.25)).unwrap();
    let before = files(machines.here.path());
    let error = import(copied.path(), machines.here.path()).unwrap_err();
    assert!(matches!(error, Error::Forked { sequence: 4, .. }), "{error}");
    assert!(files(machines.here.path()) == before);
}

#[test]
fn one_fork_keeps_every_chain_out() {
    let machines = Machines::new();
    let copied = tempfile::tempdir().unwrap();
    copy(machines.here.path(), copied.path());
    Ledger::open(copied.path()).unwrap().append(check(0.5)).unwrap();
    filled(machines.here.path(), 1);
    copy(copied.path(), machines.there.path());
    machines.refused("the chain forked");
}

#[test]
fn a_newer_format_is_refused() {
    let machines = Machines::new();
    machines.edit(|text| {
        // The hash holds: a newer build wrote it.
        let (content, _) = text.trim_end().rsplit_once(",\"hash\":").unwrap();
        let (before, last) = content.rsplit_once('\n').unwrap();
        let last = last.replacen("\"format_version\":2", "\"format_version\":9", 1);
        let hash = Sha256::of(format!("{last}}}").as_bytes());
        format!("{before}\n{last},\"hash\":\"{hash}\"}}\n")
    });
    machines.refused("format version 9 is newer");
}

#[test]
fn a_torn_end_is_no_record() {
    let machines = Machines::new();
    machines.edit(|text| text + "{\"body\"");
    assert_eq!(counts(&machines.import().unwrap()), [(3, 3)]);
    passes(machines.here.path(), 5);
    // As an append that was killed leaves it here: the next import moves it aside.
    filled(machines.there.path(), 1);
    let here = machines.here.path().join(chain_of(&machines.other).file_name().unwrap());
    fs::write(&here, fs::read_to_string(&here).unwrap() + "{\"bo").unwrap();
    assert_eq!(counts(&machines.import().unwrap()), [(4, 1)]);
    passes(machines.here.path(), 6);
}

#[test]
fn long_chains_come_in_blocks() {
    let machines = Machines::new();
    let text = "x".repeat(3 << 20);
    for _ in 0..4 {
        machines.other.append(check(0.0).command([text.as_str()])).unwrap();
    }
    assert_eq!(counts(&machines.import().unwrap()), [(7, 7)]);
    passes(machines.here.path(), 9);
}

#[test]
fn a_folder_without_a_chain_is_no_ledger() {
    let machines = Machines::new();
    let empty = tempfile::tempdir().unwrap();
    let error = import(empty.path(), machines.here.path()).unwrap_err();
    assert!(matches!(error, Error::NoChain { .. }), "{error}");
    let error = import(&empty.path().join("absent"), machines.here.path()).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
}

#[test]
fn a_first_import_makes_the_ledger() {
    let machines = Machines::new();
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().join("ledgers/local");
    assert_eq!(counts(&import(machines.there.path(), &here).unwrap()), [(3, 3)]);
    passes(&here, 3);
    filled(&here, 1);
    passes(&here, 4);
}
