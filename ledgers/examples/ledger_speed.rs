//! How long a large ledger takes to verify and to append to: `cargo run --release -p assay-ledgers --example ledger_speed`.
//!
//! The chain is written directly, as appending 100,000 records would sync the disk 200,000 times.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::io::Write as _;
use std::time::Instant;

use assay_ledgers::*;

fn main() {
    let count: u64 = std::env::args().nth(1).map_or(100_000, |count| count.parse().expect("a number of records"));
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(dir.path()).unwrap();
    let samples: Vec<f64> = (0..6).map(|sample| 100.0 + f64::from(sample) / 7.0).collect();
    let mut record = ledger.append(common::speed(&samples)).unwrap().record;
    let chain = common::chain_of(&ledger);
    let mut bytes = std::fs::metadata(&chain).unwrap().len();
    let mut file = std::io::BufWriter::new(std::fs::OpenOptions::new().append(true).open(&chain).unwrap());
    for _ in 1..count {
        record.sequence += 1;
        record.previous = Some(std::mem::take(&mut record.hash));
        let mut line = hash::canonical(&record).unwrap();
        record.hash = Sha256::of(&line);
        line.pop();
        writeln!(line, ",\"hash\":\"{}\"}}", record.hash).unwrap();
        file.write_all(&line).unwrap();
        bytes += line.len() as u64;
    }
    file.flush().unwrap();
    let head = Head { writer: ledger.writer().clone(), count, bytes, hash: Some(record.hash) };
    let mut line = hash::canonical(&head).unwrap();
    line.push(b'\n');
    std::fs::write(dir.path().join(format!("{}.head", ledger.writer())), line).unwrap();

    let start = Instant::now();
    let report = verify(dir.path()).unwrap();
    println!(
        "verify: {} records of {} bytes, {} in {:?}",
        report.records,
        bytes / count,
        report.verdict,
        start.elapsed()
    );
    let start = Instant::now();
    println!("read: {} records in {:?}", read(dir.path()).unwrap().count(), start.elapsed());
    let start = Instant::now();
    for _ in 0..200 {
        ledger.append(common::speed(&samples)).unwrap();
    }
    println!("append to it: {:?} each, syncs included", start.elapsed() / 200);
    // The same where a sync costs nothing: memory, where the system has such a folder.
    if let Ok(dir) = tempfile::tempdir_in("/dev/shm") {
        let ledger = Ledger::open(dir.path()).unwrap();
        let start = Instant::now();
        for _ in 0..2_000 {
            ledger.append(common::speed(&samples)).unwrap();
        }
        println!("append in memory: {:?} each", start.elapsed() / 2_000);
    }
}
