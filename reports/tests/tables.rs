//! Tables out of a ledger on disk.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../ledgers/tests/common/mod.rs"]
mod common;

use assay_ledgers::*;
use assay_reports::*;
use common::*;

/// Hashes hold the time of the append, so snapshots show `HASH` for them.
fn redacted(table: &str, records: &[Record]) -> String {
    records.iter().fold(table.to_owned(), |table, record| {
        assert!(table.contains(&record.original_hash().short()), "no row names record {}", record.hash.short());
        table.replace(&record.original_hash().short(), "HASH")
    })
}

#[test]
fn speed_rows_name_their_record() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(dir.path()).unwrap();
    let margin =
        VerdictRow { row: "memory | margin".to_owned(), verdict: Verdict::Fail, reason: "too little".to_owned() };
    ledger.append(speed(&[1234.5, 1300.25, 1400.0]).verdicts(vec![margin])).unwrap();
    let records = load(dir.path()).unwrap();
    ledger.append(check(0.0)).unwrap();
    let all = load(dir.path()).unwrap();
    insta::assert_snapshot!(redacted(&speed_table_markdown(&all), &records));
    assert_eq!(speed_table_markdown(&all[1..]), "No record yet.\n");
}

#[test]
fn perplexities_come_with_their_comparison() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(dir.path()).unwrap();
    let mut body = perplexity_body(4.25);
    ledger.append(Draft::new(EvidenceClass::Functional, identity(), body.clone())).unwrap();
    body.comparison = None;
    let mut synthetic = identity();
    synthetic.synthetic = true;
    ledger.append(Draft::new(EvidenceClass::Functional, synthetic, body)).unwrap();
    let records = load(dir.path()).unwrap();
    insta::assert_snapshot!(redacted(&perplexity_table_markdown(&records), &records));
}

#[test]
fn the_latest_of_a_configuration_replaces_earlier_builds() {
    let (local, tracked) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ledger = Ledger::open(local.path()).unwrap();
    let with = |change: &dyn Fn(&mut Identity)| {
        let mut identity = identity();
        change(&mut identity);
        let body = speed_body(&[1.0]);
        let draft = Draft::speed(Run::timing_off(), identity, body).class(EvidenceClass::ControlledDevelopment);
        ledger.append(draft).unwrap().record.hash
    };
    let _older = with(&|_| {});
    let budget = with(&|identity| identity.memory.vram_bytes += 1);
    let newer = with(&|identity| identity.binary = Sha256::of(b"another build"));
    let check = ledger.append(check(0.0)).unwrap().record.hash;

    let records = load(local.path()).unwrap();
    let hashes =
        |records: &[Record]| latest(records).unwrap().iter().map(|record| record.original_hash()).collect::<Vec<_>>();
    assert_eq!(hashes(&records), [budget, newer, check]);
    // The order of publication does not make an old record new.
    publish(local.path(), &Selection::Hashes(vec![newer.to_string()]), tracked.path()).unwrap();
    publish(local.path(), &Selection::All, tracked.path()).unwrap();
    assert_eq!(hashes(&load(tracked.path()).unwrap()), [newer, budget, check]);
}
