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

#[test]
fn comparisons_and_verdicts_have_tables() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(dir.path()).unwrap();
    let failed = VerdictRow { row: "decode of 50".to_owned(), verdict: Verdict::Fail, reason: "slower".to_owned() };
    let log = ledger.store_log("run.jsonl", &b"{}\n"[..]).unwrap();
    ledger.append(other_draft(0, identity(), 0.97, "text").log(log).verdicts(vec![failed.clone()])).unwrap();
    ledger.append(check(0.0)).unwrap();
    let external = other_draft(5, identity(), 1.0, "memcheck").verdicts(vec![failed]);
    ledger.append(external).unwrap();
    let records = load(dir.path()).unwrap();
    insta::assert_snapshot!(redacted(&comparison_table_markdown(&records), &records[..1]));
    insta::assert_snapshot!(redacted(&verdict_table_markdown(&records), &records[1..]));
}

#[test]
fn an_older_speed_record_has_the_limit_of_its_card_s_roofline() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(dir.path()).unwrap();
    let mut identity = identity();
    (identity.device.driver, identity.device.cuda) = (Some("1".to_owned()), Some("13.0".to_owned()));
    let mut body = speed_body(&[90.0, 100.0, 110.0]);
    for row in &mut body.rows {
        row.modelled_link_s = None;
    }
    let draft = |body: &SpeedBody| {
        Draft::speed(Run::timing_off(), identity.clone(), body.clone()).class(EvidenceClass::ControlledDevelopment)
    };
    ledger.append(draft(&body)).unwrap();
    let without = speed_table_markdown(&load(dir.path()).unwrap());
    // 3 x 50 tokens, 123,456,789 bytes at 1e9 bytes a second: 1,215 tokens a second.
    let roofline = |bytes_per_s| RooflineBody {
        device: identity.device.name.clone(),
        driver: "1".to_owned(),
        cuda: "13.0".to_owned(),
        memory_read_bytes_per_s: 1e12,
        link: vec![LinkRate {
            copy_bytes: 1 << 20,
            copy_engine_bytes_per_s: bytes_per_s,
            multiprocessors_bytes_per_s: 1.0,
        }],
        bf16_product_flop_per_s: None,
        launch_s: 1e-6,
        graph_node_s: 1e-6,
        round_trip_s: 1e-6,
    };
    ledger.append(Draft::without_identity(EvidenceClass::MeasuredPlanning, roofline(1e9))).unwrap();
    let with = speed_table_markdown(&load(dir.path()).unwrap());
    assert!(
        !without.contains("8.2 %") && with.contains("| decode | 50 | 100.0 |") && with.contains("| 8.2 % |"),
        "{with}"
    );
    // The newest counts, and that of the same run before all.
    ledger.append(Draft::without_identity(EvidenceClass::MeasuredPlanning, roofline(2e9))).unwrap();
    assert!(speed_table_markdown(&load(dir.path()).unwrap()).contains("| 4.1 % |"));
    body.roofline = Some(roofline(4e9));
    ledger.append(draft(&body)).unwrap();
    assert!(speed_table_markdown(&load(dir.path()).unwrap()).contains("| 2.1 % |"));
}

#[test]
fn work_stands_beside_fidelity_and_against_the_model_as_it_was_trained() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(dir.path()).unwrap();
    let trained = of_precision(NumberFormat::Bf16, NumberFormat::F32);
    ledger.append(tasks(trained.clone(), &[true, true, true, false, true])).unwrap();
    let quantized = of_precision(NumberFormat::Int4, NumberFormat::F32);
    // A second attempt at the second task, which goes well: the first one counts.
    let mut twice = tasks_body(&[true, false, false, true, false]);
    let mut second = twice.tasks[1].clone();
    second.attempts[0].outcome = TaskOutcome::Solved;
    twice.tasks.insert(2, second);
    ledger.append(Draft::new(EvidenceClass::Functional, quantized.clone(), twice)).unwrap();
    ledger.append(other_draft(1, quantized.clone(), 0.25, "as trained")).unwrap();
    ledger.append(Draft::new(EvidenceClass::Functional, quantized, perplexity_body(1.5))).unwrap();
    // A run that was stopped has no shares, an endpoint no identity.
    let mut stopped = tasks_body(&[true]);
    stopped.shares.clear();
    ledger.append(Draft::new(EvidenceClass::Functional, trained, stopped)).unwrap();
    ledger.append(other_draft(4, identity(), 1.0, "elsewhere")).unwrap();
    let records = load(dir.path()).unwrap();
    // Three against one: the exact p of McNemar's test is 0.625.
    let mcnemar = |only_left, only_right| {
        assert_eq!((only_left, only_right), (1, 3));
        0.625
    };
    insta::assert_snapshot!(redacted(&work_table_markdown(&records, mcnemar), &records[..2]));
    assert_eq!(work_table_markdown(&records[4..], mcnemar), "No record yet.\n");
}
